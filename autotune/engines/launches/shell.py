"""A shell file: its simple commands as words, each with its place in the text.

It is read and not run. Known are quotes, line continuations, here-documents, assignments, arrays,
`+=`, `${X:-default}`, sums, tests of words and numbers, texts for another shell (`bash -c`,
`eval`), files that are sourced, and folders (`$PWD`, `$(dirname "$0")`). All else stays as it is
written, and the file says why.
"""

import ast
import contextlib
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from autotune.base.errors import JobError, RenderError
from autotune.base.user_text import read_text

SUFFIXES = (".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch")
"""What a shell file is called."""
_DATA_SUFFIXES = (".json", ".hjson", ".yaml", ".yml")
_SHEBANG = re.compile(r"#!.*\b(?:ba|z|k|da)?sh\b")
_STARTS = re.compile(
    r"^[ \t]*(?:\w+=\S*[ \t]+)*(?:\S*/)?(?:torchrun|deepspeed|accelerate[ \t]+launch|python3?[ \t]"
    r"|llamafactory-cli|axolotl[ \t]+train|trl|swift)[ \t]+(?![:=])\S",
    re.MULTILINE,
)
_IN_ROUND = r"""[^()'"\\]|\\[\s\S]|'[^']*'|"(?:[^"\\]|\\[\s\S])*\""""
_ROUND = reduce(lambda inner, _: rf"\((?:{_IN_ROUND}|{inner})*\)", range(5), r"\([^()]*\)")
_CURLY = reduce(lambda inner, _: rf"\{{(?:[^{{}}]|{inner})*\}}", range(3), r"\{[^{}]*\}")
_PUT = rf"\$(?:{_ROUND}|{_CURLY}|[A-Za-z_]\w*|\d|(?![({{]))|`(?:[^`\\]|\\[\s\S])*`"
"""What a shell puts something else for."""
_PART = rf"""\\[\s\S]|'[^']*'|"(?:\\[\s\S]|{_PUT}|[^"\\$`])*"|{_PUT}|[<>]{_ROUND}"""
_NAME = r"[A-Za-z_]\w*"
_TOKEN = re.compile(
    r"(?P<blank>(?:[ \t\r]|\\\r?\n)+|\#[^\n]*)"
    rf"|(?P<array>{_NAME}\+?=\((?:{_PART}|(?<=\s)\#[^\n]*|(?<!\s)\#|[^()'\"`\\$\#])*\))"
    r"|\d*(?P<sign><<<|<<-?|>>|>&|<&|>\||<>|[<>](?!\()|(?=&>))(?:&>>?)?[ \t]*"
    r"|(?P<end>&&|\|\||[\n;&|()])"
    rf"|(?P<word>(?:{_PART}|[^\s;&|()<>'\"`\\$])+)"
)
_PIECE = re.compile(rf"""(\\[\s\S])|('[^']*')|(")|({_PUT})|[^\\'"$`]+|.""", re.S)
_NAMED = re.compile(rf"\$(?:({_NAME}|\d)|\{{({_NAME}|\d+)(\[[@*0]\])?(?:(:?[-=])([\s\S]*))?\}})")
_IN_DOCUMENTS = re.compile(rf"\\[$`\\]|\$\w+|\${_CURLY}")
_ASSIGNS = re.compile(rf"({_NAME})(\+?)=")
_UNKNOWN = re.compile(r"[$`]")
_UNKNOWN_FOLDERS = re.compile(r".*[$`][^/]*/")
_SHELLS = ("bash", "sh", "zsh", "ksh", "dash")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_FOLDER_FLAGS = ("--", "-P", "-L", "-f", "-e")
"""Flags of `cd`, `pwd` and their like after which a folder is the same one."""
_FOLDERS_ABOVE = 3
"""Folders, with the script's, in which a file is looked for whose own only the shell knows."""
_MOST_DEEP = 6
"""Texts that read one another, at most."""
_MOST_PUT = 2**20
"""Characters that variables put into a file, at most: each line may double what one holds."""
_COMPARES: Mapping[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")
}
_SUMS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: lambda a, b: int(a / b), ast.Mod: lambda a, b: a - b * int(a / b)},
}
"""Operations of a sum; a shell rounds towards 0."""

Chars = list[tuple[str, int]]
"""Characters, each with its place in the file; -1: in one that it sources."""


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a command."""

    text: str
    """As the command gets it, with the variables that the file tells."""
    start: int
    """Where it is written: in the command, or where its variable is set."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A simple command."""

    words: tuple[Word, ...]
    start: int
    """Where its first word, or the first variable before it, begins."""
    variables: Mapping[str, Word] = field(default_factory=dict)
    """Those that it sets for itself alone: the value and where it is written."""
    within: tuple[str, ...] = ()
    """The command that hands it to a shell as a text; empty: it stands in the file itself."""


def cost_of_lost(lost: Command) -> str:
    """What a shell makes of a line of flags that a lost backslash has cut off, in words."""
    flags = ", ".join(word.text for word in lost.words if word.text.startswith("--"))
    return (
        f"the shell takes {lost.words[0].text} for a command and does not find it; the training "
        f"starts without {flags}"
    )


class _Value(NamedTuple):
    """What a variable is set to."""

    items: list[Chars] | None = None
    """None: only the shell knows it."""
    is_array: bool = False
    why: str = ""
    """Why only the shell knows it; empty: the value itself tells."""


class _Field(NamedTuple):
    """What stands between two blanks, and the words that it is split into."""

    raw: str
    items: list[Chars]
    place: int
    is_array: bool = False

    @property
    def chars(self) -> Chars:
        return [char for item in self.items for char in item]

    @property
    def value(self) -> Chars:
        """Value of an assignment, behind its sign."""
        chars = self.chars
        return chars[_plain(chars).index("=") + 1 :]

    @property
    def text(self) -> str:
        return _plain(self.chars)

    def word(self, chars: Chars) -> Word:
        start = chars[0][1] if chars else -1
        return Word(text=_plain(chars), start=start if start >= 0 else self.place)


@dataclass
class _Block:
    """An `if` or a loop that is open."""

    keyword: str
    start: int
    runs: bool | None
    """Whether what stands in it runs; None: only the shell knows."""
    has_run: bool | None
    """Whether a branch before this one did."""


@dataclass(frozen=True, kw_only=True)
class ShellText:
    """A shell file."""

    commands: tuple[Command, ...]
    exported: Mapping[str, Word]
    """Variables that it exports: the value and where it is written."""
    sourced: tuple[Path, ...]
    """Files that it sources, and whose variables it has from there on."""
    unread: tuple[str, ...]
    """What is not known of it: files that could not be read, and lines that decide."""
    written: Mapping[str, str]
    """Path, as `os.path.normpath` has it -> the text that a here-document writes there. It stands
    on the lines that it has in the file."""

    def lost_below(self, command: Command) -> Command | None:
        """The command behind another one if it begins with a flag: that one has lost its end."""
        below = self.commands[self.commands.index(command) + 1 :][:1]
        return next((one for one in below if one.words[0].text.startswith("--")), None)


def is_shell(text: str, path: Path) -> bool:
    """Whether a file is a shell's, by its name or its first line."""
    if path.suffix in SUFFIXES or _SHEBANG.match(text):
        return True
    return path.suffix not in _DATA_SUFFIXES and _STARTS.search(text) is not None


def read_shell(
    text: str, path: Path, *, variables: Mapping[str, str] | None = None, follows: bool = False
) -> ShellText:
    """Read a shell file.

    Args:
        text: The file.
        path: Its name, for errors.
        variables: What is known of the environment that it runs in.
        follows: Whether files that it sources are read, too.

    Raises:
        JobError: A quote or a bracket in it does not close.
    """
    known = {"PWD": ".", "0": str(path), "BASH_SOURCE": str(path), **(variables or {})}
    reader = _Reader(text, {name: _Value([_unplaced(one)]) for name, one in known.items()})
    try:
        reader.read(list(zip(text, range(len(text)), strict=True)), path if follows else None)
    except _OpenError as error:
        line = text.count("\n", 0, error.at) + 1
        raise JobError(f"{path}:{line}: {error}", "close it") from error
    return ShellText(
        commands=tuple(reader.commands),
        exported=reader.exported,
        sourced=tuple(dict.fromkeys(reader.sourced)),
        unread=tuple(dict.fromkeys(reader.unread)),
        written=reader.written,
    )


class _OpenError(Exception):
    """Something that does not close; `at` is where it opens."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(f"the {text[at : at + 2].strip()} does not close")
        self.at = at


class _Reader:
    """Goes through texts, and holds the variables as they are where a command stands."""

    def __init__(self, text: str, held: dict[str, _Value]) -> None:
        self._text, self._held = text, held
        self.commands: list[Command] = []
        self.exported: dict[str, Word] = {}
        self.sourced: list[Path] = []
        self.unread: list[str] = []
        self.written: dict[str, str] = {}
        self._blocks: list[_Block] = []
        self._is_alternative = False
        """Whether the present command follows `&&` or `||`, and so runs only sometimes."""
        self._depth = self._n_put = 0

    def read(self, chars: Chars, path: Path | None, within: tuple[str, ...] = ()) -> None:
        """Take all commands of a text.

        Args:
            chars: The text.
            path: The file that it is, or that holds it; None: files that it sources are not read.
            within: The command that hands it on.

        Raises:
            _OpenError: Something in it does not close.
        """
        text, at = _plain(chars), 0
        n_blocks, is_alternative = len(self._blocks), self._is_alternative
        documents: list[tuple[str, bool, str, str]] = []
        self._depth += 1
        while at < len(text):
            n_unread = len(self.unread)
            fields, targets, end, at = self._command(chars, text, at)
            fields = self._without_keywords(fields, end)
            if not fields:
                del self.unread[n_unread:]
            documents += _documents(fields, targets) if self._certain is not False else ()
            if fields and not self._sets(fields) and not self._sources(fields, path):
                self._runs(fields, path, within)
            self._is_alternative = is_alternative or end in ("&&", "||")
            for last, is_literal, name, variable in documents if end == "\n" else ():
                found = re.compile(rf"^[ \t]*{re.escape(last)}[ \t\r]*$", re.M).search(text, at)
                stop = found.start() if found else len(text)
                body = chars[at:stop]
                body = body if is_literal else self._filled_in(body)
                if name:
                    above = "\n" * text.count("\n", 0, at)
                    self.written[os.path.normpath(name)] = above + _plain(body)
                elif variable:
                    self._hold(variable, _Value([body]))
                at = found.end() + 1 if found else len(text)
            documents = [] if end == "\n" else documents
        self._depth -= 1
        self._is_alternative = is_alternative
        del self._blocks[n_blocks:]

    def _command(
        self, chars: Chars, text: str, at: int
    ) -> tuple[list[_Field], list[tuple[str, _Field]], str, int]:
        """The words of a command, its redirections, the sign behind it, and where that ends."""
        fields: list[_Field] = []
        targets: list[tuple[str, _Field]] = []
        sign = ""
        while (token := _TOKEN.match(text, at)) is not None:
            start, at = at, token.end()
            if token["end"]:
                return fields, targets, token["end"], at
            if token["array"]:
                begin = text.index("(", start) + 1
                items = self._items(chars[begin : at - 1])
                fields.append(_Field(token[0], items, chars[start][1], is_array=True))
            elif token["word"]:
                made = self._field(
                    chars[start:at], is_split=not (sign or _ASSIGNS.match(token[0]))
                )
                if text[at : at + 1] == "(" and _ASSIGNS.fullmatch(made.raw):
                    raise _OpenError(text, at)
                if sign in ("", "<<<"):
                    fields.append(made)
                else:
                    targets.append((sign, made))
            if not token["blank"]:
                sign = (token["sign"] or "&") if token["sign"] is not None else ""
        if at < len(text):
            raise _OpenError(text, at)
        return fields, targets, "", at

    def _items(self, chars: Chars) -> list[Chars]:
        """The elements of an array."""
        text, at, found = _plain(chars), 0, list[Chars]()
        while at < len(text):
            fields, _, _, at = self._command(chars, text, at)
            found += [item for one in fields for item in one.items]
        return found

    def _field(self, chars: Chars, *, is_split: bool = True) -> _Field:
        """A word without its quotes, with the variables of the file."""
        raw, at, is_quoted = _plain(chars), 0, False
        done: list[Chars] = []
        word: Chars | None = None
        while (found := _PIECE.match(raw, at)) is not None:
            escaped, single, quote, put = found.groups()
            start, at = at, found.end()
            part = chars[start:at]
            if escaped and escaped[1] == "\n":
                continue
            if put and (values := self._put_in(part)) is not None:
                is_whole = is_quoted or not is_split
                for number, piece in enumerate(
                    values if is_whole else _split(values, joins=word is not None)
                ):
                    if number and word is not None:
                        done.append(word)
                        word = None
                    if piece or is_quoted:
                        word = (word or []) + piece
                continue
            if quote:
                is_quoted, part = not is_quoted, []
            elif single and is_quoted:
                at, part = start + 1, part[:1]
            elif single:
                part = part[1:-1]
            elif escaped and (not is_quoted or escaped[1] in '$`"\\'):
                part = part[1:]
            word = [] if word is None else word
            word += part
        items = done if word is None else [*done, word]
        return _Field(raw, items, chars[0][1] if chars else -1)

    def _filled_in(self, chars: Chars) -> Chars:
        """A here-document with the variables put in that it names."""
        text, last, found = _plain(chars), 0, Chars()
        for one in _IN_DOCUMENTS.finditer(text):
            part = chars[one.start() : one.end()]
            value = part[1:] if one[0][0] == "\\" else self._field(part, is_split=False).chars
            found += [*chars[last : one.start()], *value]
            last = one.end()
        return [*found, *chars[last:]]

    def _put_in(self, chars: Chars) -> list[Chars] | None:
        """What an expansion stands for; None: only the shell knows."""
        raw = _plain(chars)
        if raw.startswith("$(("):
            names = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", r"${\1}", raw[3:-2])
            number = _sum(self._field(_unplaced(names), is_split=False).text)
            return None if number is None else [_unplaced(str(number))]
        if raw.startswith(("`", "$(")):
            folder = self._folder(chars[1 if raw[0] == "`" else 2 : -1])
            return None if folder is None else [_unplaced(folder)]
        if (found := _NAMED.fullmatch(raw)) is None:
            return None
        name, sign = found[1] or found[2], found[4]
        held = self._held.get(name)
        if held is None and sign is None:
            return None
        if held is None:
            default = self._field(chars[found.start(5) : found.end(5)], is_split=False).chars
            if "=" in sign:
                self._hold(name, _Value([default]))
            return [default]
        if held.items is None:
            self.unread += filter(None, [held.why])
            return None
        items = held.items if held.is_array and found[3] in ("[@]", "[*]") else held.items[:1]
        self._n_put += sum(len(item) + 32 for item in items)
        return items if self._n_put <= _MOST_PUT else None

    def _folder(self, chars: Chars) -> str | None:
        """What commands print that only ask for a folder; None: they are others.

        `pwd`, `dirname "$0"`, `cd "$(dirname "$0")/.." && pwd`.
        """
        inside = _Reader(self._text, dict(self._held))
        with contextlib.suppress(_OpenError):
            inside.read(chars, None)
        here, printed = ".", None
        for command in inside.commands:
            texts = [one.text for one in command.words if one.text not in _FOLDER_FLAGS]
            name, rest = "".join(texts[:1]), texts[1:]
            if any(map(_UNKNOWN.search, rest)) or len(rest) != (name != "pwd"):
                return None
            if name == "cd":
                here = os.path.join(here, rest[0])
            elif name == "pwd":
                printed = here
            elif name in ("dirname", "realpath", "readlink"):
                printed = rest[0] if name != "dirname" else os.path.dirname(rest[0]) or "."
            else:
                return None
        return None if printed is None else os.path.normpath(printed)

    @property
    def _certain(self) -> bool | None:
        """Whether what stands here runs; None: only the shell knows."""
        states = [block.runs for block in self._blocks]
        if False in states:
            return False
        return None if None in states or self._is_alternative else True

    def _why(self) -> str:
        block = next((block for block in self._blocks if block.runs is None), None)
        if block is None:
            return ""
        return (
            f"{self._line(block.start)} decides by `{block.keyword}`: say the launch with --launch"
        )

    def _line(self, place: int) -> str:
        number = self._text.count("\n", 0, max(0, place)) + 1
        return f"line {number}" if place >= 0 else "a file that it sources"

    def _without_keywords(self, fields: list[_Field], end: str) -> list[_Field]:
        """The words of a command behind its keywords, which open and close blocks."""
        blocks = self._blocks
        while fields:
            word, place = fields[0].raw, fields[0].place
            is_test = len(fields) > 1 and fields[1].raw in ("[", "[[")
            truth = _truth(fields[1:]) if is_test and end in ("\n", ";") else None
            if word == "if":
                blocks.append(_Block(word, place, truth, truth))
                return [] if is_test else fields[1:]
            if word in ("elif", "else") and blocks:
                block = blocks[-1]
                truth, before = True if word == "else" else truth, block.has_run
                block.runs = False if before else truth if before is False else None
                block.has_run = before or block.runs
                if word == "elif":
                    return []
            elif word in ("for", "while", "until", "select", "case"):
                blocks.append(_Block(word, place, None, None))
                if word in ("for", "select") and len(fields) > 1:
                    self._held[fields[1].raw] = _Value()
                return []
            elif word in ("fi", "done", "esac"):
                del blocks[-1:]
                return []
            elif word not in ("then", "else", "do", "{", "}", "!", "time"):
                return fields
            fields = fields[1:]
        return []

    def _sets(self, fields: Sequence[_Field]) -> bool:
        """Take a line that only sets variables; whether it is one."""
        names = [one.raw for one in fields]
        if names[0] == "read":  # what a here-document gives it, is held where that stands
            if len(names) == 4 and names[1] in ("-a", "-ra", "-ar"):
                items = [chars for chars in _at_blanks(fields[3].chars) if chars]
                self._hold(names[2], _Value(items, is_array=True))
            return True
        is_declared = names[0] in _DECLARES
        if not is_declared and not all(map(_ASSIGNS.match, names)):
            return names[0] == ":"  # ${X:=default} has set where it was put in
        for one in fields[is_declared:]:
            found = _ASSIGNS.match(one.raw)
            name = found[1] if found else one.raw
            if found is not None and self._certain is not False:
                self._assign(name, one, is_added=bool(found[2]))
            held = self._held.get(name, _Value())
            if is_declared and held.items is not None:
                self.exported[name] = one.word([char for item in held.items for char in item])
        return True

    def _assign(self, name: str, given: _Field, *, is_added: bool) -> None:
        value = _Value(given.items if given.is_array else [given.value], given.is_array)
        if not given.is_array and re.search(r"\$\(|`", _plain(given.value)):  # what a program says
            value = _Value()
        if not is_added:
            return self._hold(name, value)
        before = self._held.get(name, _Value([], is_array=value.is_array))
        if before.items is None:
            return None
        added = value.items or []
        if self._certain is None:  # whether it is there, only the shell knows
            self.unread += filter(None, [self._why()])
            added = [_unplaced(f"${{{name}[@]}}")]
        items = [*before.items, *added]
        if not before.is_array:
            items = [[char for item in items for char in item]]
        self._held[name] = _Value(items, is_array=before.is_array)
        return None

    def _hold(self, name: str, value: _Value) -> None:
        """Set a variable, unless only the shell knows whether it is set."""
        if self._certain is not False:
            self._held[name] = value if self._certain else _Value(why=self._why())

    def _sources(self, fields: Sequence[_Field], path: Path | None) -> bool:
        """Read a file that a line sources; whether it does."""
        if path is None or len(fields) < 2 or fields[0].raw not in ("source", "."):
            return False
        name, commands, outer = fields[1].text, self.commands, self._held.get("BASH_SOURCE")
        found = _sourced(name, path)
        try:
            if found is None or self._depth >= _MOST_DEEP:
                raise RenderError(f"{name}: is not there", "")
            self.commands, chars = [], _unplaced(read_text(found))
            self._held["BASH_SOURCE"] = _Value([_unplaced(str(found))])
            self.sourced.append(found)
            self.read(chars, found)
        except (RenderError, _OpenError):
            where = self._line(fields[0].place)
            self.unread.append(f"{name}, which {where} sources, is not read")
        finally:
            self.commands, self._held["BASH_SOURCE"] = commands, outer or _Value()
        return found is not None

    def _runs(self, fields: Sequence[_Field], path: Path | None, within: tuple[str, ...]) -> None:
        """Take a command, or those in the text that it hands to a shell."""
        n_set = next(at for at, one in enumerate(fields) if not _ASSIGNS.match(one.raw))
        rest, variables = fields[n_set:], {}
        words = tuple(one.word(chars) for one in rest for chars in one.items)
        if not words or self._certain is False:
            return
        for one in fields[:n_set]:
            name = one.raw.partition("=")[0]
            variables[name] = one.word(one.value)
        texts = tuple(word.text for word in words)
        if texts[0] == "eval":
            parts = [[*chars, (" ", -1)] for one in rest for chars in one.items][1:]
            text = _Field("", parts, fields[0].place)
            return self._hands_on(text, path, ("eval",))
        if texts[0] == "cd" and len(texts) == 2:
            here = os.path.join(self._field(_unplaced("$PWD")).text, texts[1])
            is_known = _UNKNOWN.search(here) is None
            self._hold("PWD", _Value([_unplaced(os.path.normpath(here))] if is_known else None))
        made = Command(words=words, start=fields[0].place, variables=variables, within=within)
        self.commands.append(made)
        for shell, flag, one in zip(rest, rest[1:], rest[2:], strict=False):
            if shell.text.rpartition("/")[2] in _SHELLS and re.fullmatch(r"-\w*c", flag.text):
                self._hands_on(one, path, texts)

    def _hands_on(self, text: _Field, path: Path | None, within: tuple[str, ...]) -> None:
        """Read a text that a command hands to a shell; one that does not close is left."""
        if self._depth < _MOST_DEEP:
            chars = [(char, at if at >= 0 else text.place) for char, at in text.chars]
            with contextlib.suppress(_OpenError):
                self.read(chars, path, within)


def _documents(
    fields: Sequence[_Field], targets: Iterable[tuple[str, _Field]]
) -> Iterator[tuple[str, bool, str, str]]:
    """The here-documents of a command: the last line, whether it is as it stands, where it goes.

    That is a file, or a variable.
    """
    targets = list(targets)
    files = [one.text for sign, one in targets if sign in (">", ">|")]
    command = fields[0].raw if fields else ""
    name = files[-1] if files else fields[-1].text if command == "tee" else ""
    variable = fields[-1].text if command == "read" else ""
    for sign, one in targets:
        if sign in ("<<", "<<-"):
            yield one.text, one.raw[:1] in ("'", '"', "\\"), name, variable


def _sourced(name: str, base: Path) -> Path | None:
    """The file that `source NAME` means; None: it is not there.

    A folder that only the shell knows is taken for the script's, or one above it.
    """
    rest = _UNKNOWN_FOLDERS.sub("", name)
    if not rest or _UNKNOWN.search(rest):
        return None
    near = (*(folder / rest for folder in base.parents[:_FOLDERS_ABOVE]), Path(rest))
    found = next((one for one in near if one.is_file()), None)
    return None if found is None or found.resolve() == base.resolve() else found


def _truth(fields: Sequence[_Field]) -> bool | None:
    """Whether `[ ... ]` holds; None: it asks something else than about words and numbers."""
    words = [_plain(chars) for one in fields[1:-1] for chars in one.items]
    if fields[-1].raw not in ("]", "]]") or any(map(_UNKNOWN.search, words)):
        return None
    if len(words) == 2 and words[0] in ("-n", "-z"):
        return bool(words[1]) is (words[0] == "-n")
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in ("=", "==", "!=") and not set("*?[") & set(right):
        return (left == right) is (sign != "!=")
    if sign in _COMPARES and re.fullmatch(r"-?\d+ -?\d+", f"{left} {right}"):
        return _COMPARES[sign](int(left), int(right))
    return None


def _sum(text: str) -> int | None:
    """The number that `$((...))` is; None: it is not known."""
    if len(text) > 300 or re.fullmatch(r"[\d\s()+*/%-]+", text) is None:
        return None
    with contextlib.suppress(SyntaxError, ZeroDivisionError, OverflowError, KeyError, ValueError):
        return _number(ast.parse(text.strip(), mode="eval").body)
    return None


def _number(node: ast.AST) -> int:
    """The value of a node of a sum; a KeyError or ValueError where it is of another kind."""
    if isinstance(node, ast.UnaryOp):
        number = _number(node.operand)
        return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.BinOp):
        return _SUMS[type(node.op)](_number(node.left), _number(node.right))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(node)


def _plain(chars: Chars) -> str:
    return "".join(char for char, _ in chars)


def _unplaced(text: str) -> Chars:
    return [(char, -1) for char in text]


def _at_blanks(chars: Chars) -> Iterator[Chars]:
    """A value split at its blanks: empty at an end where a blank stands there."""
    word: Chars = []
    for char in chars:
        if char[0] in " \t\r\n":
            yield word
            word = []
        else:
            word.append(char)
    yield word


def _split(parts: Sequence[Chars], *, joins: bool) -> Iterator[Chars]:
    """Values without quotes, split at their blanks; the first joins what stands before it."""
    for number, part in enumerate(parts):
        is_first = number == 0 and joins
        # A backslash before a line's end is no word of its own.
        yield from (
            word
            for at, word in enumerate(_at_blanks(part))
            if (word and _plain(word) != "\\") or (is_first and at == 0)
        )
