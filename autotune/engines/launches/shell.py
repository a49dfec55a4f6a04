"""A shell file: its simple commands as words, each with its place in the text.

It is read and not run. Known are quotes, line continuations, here-documents, assignments, arrays,
`+=`, `${X:-default}`, sums, tests of words and numbers, texts for another shell (`bash -c`,
`eval`), files that are sourced, and folders (`$PWD`, `$(dirname "$0")`). All else stays as it is
written, and the file says why.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

from autotune.base.errors import JobError, RenderError
from autotune.base.flags import flag
from autotune.base.user_text import read_text
from autotune.engines.launches.shell_words import (
    ASSIGNS,
    NAME,
    UNKNOWN,
    Chars,
    Field,
    Value,
    Word,
    at_blanks,
    plain,
    split,
    sum_of,
    touched_by,
    truth_of,
    unplaced,
)

SUFFIXES = (".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch")
"""What a shell file is called."""
_DATA_SUFFIXES = (".json", ".hjson", ".yaml", ".yml")
_SHEBANG = re.compile(r"#!.*\b(?:ba|z|k|da)?sh\b")
_STARTS = re.compile(
    r"^[ \t]*(?:\w+=\S*[ \t]+)*(?:\S*/)?(?:torchrun|deepspeed|accelerate[ \t]+launch|python3?[ \t]"
    r"|llamafactory-cli|axolotl[ \t]+train|trl|swift)[ \t]+(?![:=])\S",
    re.MULTILINE,
)
_IN_ROUND = r"""[^()'"\\]|\\[\s\S]|'[^']*+'|"(?:[^"\\]|\\[\s\S])*+\""""
_ROUND = reduce(lambda inner, _: rf"\((?:{_IN_ROUND}|{inner})*+\)", range(9), r"\([^()]*+\)")
_CURLY = reduce(lambda inner, _: rf"\{{(?:[^{{}}]|{inner})*+\}}", range(7), r"\{[^{}]*+\}")
_PUT = rf"\$(?:{_ROUND}|{_CURLY}|[A-Za-z_]\w*|\d|(?![({{]))|`(?:[^`\\]|\\[\s\S])*+`"
"""What a shell puts something else for."""
_PART = rf"""\\[\s\S]|'[^']*+'|"(?:\\[\s\S]|{_PUT}|[^"\\$`])*+"|{_PUT}|[<>]{_ROUND}"""
_TOKEN = re.compile(  # what is matched once is not matched again in another way
    r"(?P<blank>(?:[ \t\r]|\\\r?\n|\\\Z)++|\#[^\n]*+)"
    rf"|(?P<array>{NAME}\+?=\((?:{_PART}|(?<=[\s(])\#[^\n]*+|(?<![\s(])\#|[^()'\"`\\$\#])*+\))"
    rf"|(?P<sum>\({_ROUND}\))"
    r"|\d*(?P<sign><<<|<<-?|>>|>&|<&|>\||<>|[<>](?!\()|(?=&>))(?:&>>?)?[ \t]*"
    r"|(?P<end>&&|\|\||[\n;&|()])"
    rf"|(?P<word>(?:{_PART}|[^\s;&|()<>'\"`\\$])++)"
)
_PIECE = re.compile(rf"""(\\[\s\S])|('[^']*')|(")|({_PUT})|[^\\'"$`]+|.""", re.S)
_NAMED = re.compile(rf"\$(?:({NAME}|\d)|\{{({NAME}|\d+)(\[[@*0]\])?(?:(:?[-=])([\s\S]*))?\}})")
_IN_DOCUMENTS = re.compile(rf"\\[$`\\]|\$\w+|\${_CURLY}")
_VARIABLES = re.compile(rf"\$\{{?({NAME})")
_CLOSED = re.compile(r"[ \t]*\)")
_LOOPS = ("for", "while", "until", "select")
_OFTEN = (*_LOOPS, "function")
_JOINS = ("&&", "||")
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
    unread: tuple[str, ...] = ()
    """Why words of it are not known, or may be others: lines that decide, files not read."""


def cost_of_lost(lost: Command) -> str:
    """What a shell makes of a line of flags that a lost backslash has cut off, in words."""
    flags = ", ".join(word.text for word in lost.words if word.text.startswith("--"))
    return (
        f"the shell takes {lost.words[0].text} for a command and does not find it; the training "
        f"starts without {flags}"
    )


@dataclass
class _Block:
    """An `if`, a loop, a function or braces that are open, or what stands behind a `&&`."""

    keyword: str
    start: int
    runs: bool | None
    """Whether what stands in it runs; None: only the shell knows."""
    has_run: bool | None
    """Whether a branch before this one did; behind a `&&`: whether what stands before it holds."""
    may_differ: bool = False
    """Whether values that may be others decide that."""
    saved: dict[str, Value | None] | None = None
    """What variables held before a branch that runs only if values are others set them."""


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
    reader = _Reader(text, {name: Value([unplaced(one)]) for name, one in known.items()})
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
        super().__init__(f"the {text[at : at + 2].strip()} does not close, or is nested too deep")
        self.at = at


class _Reader:
    """Goes through texts, and holds the variables as they are where a command stands."""

    def __init__(self, text: str, held: dict[str, Value]) -> None:
        self._text, self._held = text, held
        self.commands: list[Command] = []
        self.exported: dict[str, Word] = {}
        self.sourced: list[Path] = []
        self.unread: list[str] = []
        self.written: dict[str, str] = {}
        self._blocks: list[_Block] = []
        self._gone: list[str] = []
        """Files that it sources and that are not read, in words."""
        self._is_handed = False
        """Whether the present text is one that a command hands on, and that may be another."""
        self._defines = False
        """Whether a function's name stands before the next brace."""
        self._depth = self._n_put = self._n_differing = 0

    def read(self, chars: Chars, path: Path | None, within: tuple[str, ...] = ()) -> None:
        """Take all commands of a text.

        Args:
            chars: The text.
            path: The file that it is, or that holds it; None: files that it sources are not read.
            within: The command that hands it on.

        Raises:
            _OpenError: Something in it does not close.
        """
        text, at = plain(chars), 0
        n_blocks = len(self._blocks)
        documents: list[tuple[str, bool, str, str]] = []
        self._depth += 1
        while at < len(text):
            n_unread = len(self.unread)
            given, targets, end, at = self._command(chars, text, at)
            if given and end == "(" and (closed := _CLOSED.match(text, at)):
                given, at, self._defines = [], closed.end(), True
            fields = self._without_keywords(given, end)
            if not fields or self._certain is False:
                del self.unread[n_unread:]
            documents += _documents(fields, targets) if self._certain is not False else ()
            if fields and not self._sets(fields) and not self._sources(fields, path):
                self._runs(fields, path, within)
            if given and end != "|":
                self._joins(fields if given[0].raw != "!" else [], end, given[0].place, n_blocks)
            for last, is_literal, name, variable in documents if end == "\n" else ():
                found = re.compile(rf"^[ \t]*{re.escape(last)}[ \t\r]*$", re.M).search(text, at)
                stop = found.start() if found else len(text)
                body = chars[at:stop]
                body = body if is_literal else self._filled_in(body)
                if name and not (self._is_aside and os.path.normpath(name) in self.written):
                    above = "\n" * text.count("\n", 0, at)
                    self.written[os.path.normpath(name)] = above + plain(body)
                elif variable:
                    self._hold(variable, Value([body]))
                at = found.end() + 1 if found else len(text)
            documents = [] if end == "\n" else documents
        self._depth -= 1
        del self._blocks[n_blocks:]

    def _command(
        self, chars: Chars, text: str, at: int
    ) -> tuple[list[Field], list[tuple[str, Field]], str, int]:
        """The words of a command, its redirections, the sign behind it, and where that ends."""
        fields: list[Field] = []
        targets: list[tuple[str, Field]] = []
        sign = ""
        while (token := _TOKEN.match(text, at)) is not None:
            start, at = at, token.end()
            if token["end"]:
                return fields, targets, token["end"], at
            if token["array"]:
                begin, before = text.index("(", start) + 1, self._n_differing
                items = self._items(chars[begin : at - 1])
                may_differ = self._n_differing > before
                fields.append(Field(token[0], items, chars[start][1], True, may_differ))
            elif token["sum"]:
                fields.append(Field(token[0], [chars[start:at]], chars[start][1]))
            elif token["word"]:
                made = self._field(chars[start:at], is_split=not (sign or ASSIGNS.match(token[0])))
                if text[at : at + 1] == "(" and ASSIGNS.fullmatch(made.raw):
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
        text, at, found = plain(chars), 0, list[Chars]()
        while at < len(text):
            fields, _, _, at = self._command(chars, text, at)
            found += [item for one in fields for item in one.items]
        return found

    def _field(self, chars: Chars, *, is_split: bool = True) -> Field:
        """A word without its quotes, with the variables of the file."""
        raw, at, is_quoted, before = plain(chars), 0, False, self._n_differing
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
                    values if is_whole else split(values, joins=word is not None)
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
        place = chars[0][1] if chars else -1
        return Field(raw, items, place, may_differ=self._n_differing > before)

    def _filled_in(self, chars: Chars) -> Chars:
        """A here-document with the variables put in that it names."""
        text, last, found = plain(chars), 0, Chars()
        for one in _IN_DOCUMENTS.finditer(text):
            part = chars[one.start() : one.end()]
            value = part[1:] if one[0][0] == "\\" else self._field(part, is_split=False).chars
            found += [*chars[last : one.start()], *value]
            last = one.end()
        return [*found, *chars[last:]]

    def _put_in(self, chars: Chars) -> list[Chars] | None:
        """What an expansion stands for; None: only the shell knows."""
        raw = plain(chars)
        if raw.startswith("$(("):
            self._forget(touched_by([raw[1:]]))
            names = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", r"${\1}", raw[3:-2])
            number = sum_of(self._field(unplaced(names), is_split=False).text)
            return None if number is None else [unplaced(str(number))]
        if raw.startswith(("`", "$(")):
            folder = self._folder(chars[1 if raw[0] == "`" else 2 : -1])
            return None if folder is None else [unplaced(folder)]
        if (found := _NAMED.fullmatch(raw)) is None:
            return None
        name, sign = found[1] or found[2], found[4]
        held = self._held.get(name)
        if held is None and sign is None:
            return None
        if held is None:
            default = self._field(chars[found.start(5) : found.end(5)], is_split=False).chars
            self._n_differing += 1
            if "=" in sign:
                self._hold(name, Value([default], may_differ=True))
            return [default]
        if held.items is None:
            self.unread += filter(None, [held.why])
            return None
        items = held.items if held.is_array and found[3] in ("[@]", "[*]") else held.items[:1]
        self._n_differing += held.may_differ
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
            if any(map(UNKNOWN.search, rest)) or len(rest) != (name != "pwd"):
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
        return False if False in states else None if None in states else True

    @property
    def _is_aside(self) -> bool:
        return any(block.saved is not None for block in self._blocks)

    @property
    def _may_differ(self) -> bool:
        return any(block.may_differ for block in self._blocks)

    def _why(self) -> str:
        block = next((block for block in self._blocks if block.runs is None), None)
        if block is None:
            return ""
        line = self._line(block.start)
        return f"{line} decides by `{block.keyword}`: say the launch with {flag('launch')}"

    def _line(self, place: int) -> str:
        number = self._text.count("\n", 0, max(0, place)) + 1
        return f"line {number}" if place >= 0 else "a file that it sources"

    def _asks(self, fields: Sequence[Field]) -> tuple[bool | None, bool]:
        """Whether a test holds (None: only the shell knows), and whether it may be otherwise.

        Where the values may be those of another turn or call, only the shell knows.
        """
        truth = truth_of(fields) if len(fields) > 1 and fields[0].raw in ("[", "[[") else None
        if truth is None or any(block.keyword in _OFTEN for block in self._blocks):
            return None, False
        return truth, any(one.may_differ for one in fields)

    def _opens(self, block: _Block, runs: bool | None, *, may_differ: bool) -> None:
        """Begin a branch; one that runs only if values are others is gone through aside."""
        is_aside = runs is False and may_differ
        block.runs = is_aside or runs
        block.saved = {} if is_aside else None

    def _leaves(self, block: _Block) -> None:
        """End a branch: of one gone through aside stays only that what it sets may differ."""
        saved, block.saved = block.saved, None
        for name, value in (saved or {}).items():
            self._put(name, value and value._replace(may_differ=True))

    def _put(self, name: str, value: Value | None) -> None:
        """Let a variable hold a value; None: it is not set."""
        saved = next((one.saved for one in reversed(self._blocks) if one.saved is not None), None)
        if saved is not None:
            saved.setdefault(name, self._held.get(name))
        if value is None:
            self._held.pop(name, None)
        else:
            self._held[name] = value

    def _joins(self, fields: Sequence[Field], end: str, place: int, n_blocks: int) -> None:
        """End what stands behind a `&&` or `||`, and begin what stands behind this one."""
        truth, may_differ = self._asks(fields)
        if len(self._blocks) > n_blocks and self._blocks[-1].keyword in _JOINS:
            block = self._blocks.pop()
            runs = block.runs if block.saved is None else False
            self._leaves(block)
            truth = truth if runs else block.has_run if runs is False else None
            may_differ |= block.may_differ
        if end in _JOINS:
            self._blocks.append(_Block(end, place, None, truth, may_differ))
            runs = None if truth is None else truth is (end == "&&")
            self._opens(self._blocks[-1], runs, may_differ=may_differ)

    def _without_keywords(self, fields: list[Field], end: str) -> list[Field]:
        """The words of a command behind its keywords, which open and close blocks."""
        blocks = self._blocks
        while fields:
            word, place = fields[0].raw, fields[0].place
            is_test = len(fields) > 1 and fields[1].raw in ("[", "[[")
            is_whole = is_test and end in ("\n", ";")
            truth, differs = self._asks(fields[1:]) if is_whole else (None, False)
            if word == "if":
                blocks.append(_Block(word, place, None, truth, differs))
                self._opens(blocks[-1], truth, may_differ=differs)
                return [] if is_test else fields[1:]
            if word in ("elif", "else") and blocks:
                block = blocks[-1]
                self._leaves(block)
                truth, differs = (True, False) if word == "else" else (truth, differs)
                before, may_differ = block.has_run, block.may_differ if block.has_run else differs
                runs = False if before else truth if before is False else None
                block.has_run, block.may_differ = before or runs, block.may_differ or differs
                self._opens(block, runs, may_differ=may_differ)
                if word == "elif":
                    return []
            elif word in (*_LOOPS, "case"):
                blocks.append(_Block(word, place, None, None))
                names = [one.raw for one in fields[1:]]
                self._forget(names[:1] if word in ("for", "select") else touched_by(names))
                return []
            elif word == "function":
                self._defines, fields = True, fields[1:]
            elif word == "{":
                name = "function" if self._defines else word
                blocks.append(_Block(name, place, True, None, self._defines))
                self._defines = False
            elif word in ("fi", "done", "esac") or (
                word == "}" and blocks and blocks[-1].keyword in ("{", "function")
            ):
                if blocks:
                    self._leaves(blocks.pop())
                return []
            elif word not in ("then", "else", "do", "}", "!", "time"):
                return fields
            fields = fields[1:]
        return []

    def _sets(self, fields: Sequence[Field]) -> bool:
        """Take a line that only sets variables; whether it is one."""
        names = [one.raw for one in fields]
        touched = touched_by(names)
        if names[0] == "unset" and self._certain:
            for name in touched:
                self._put(name, None)
        else:
            self._forget(touched)
        if names[0] == "read":  # what a here-document gives it, is held where that stands
            if len(names) == 4 and names[1] in ("-a", "-ra", "-ar"):
                items = [chars for chars in at_blanks(fields[3].chars) if chars]
                value = Value(items, is_array=True, may_differ=fields[3].may_differ)
                self._hold(names[2], value)
            return True
        if touched or names[0].startswith("(("):
            return True
        is_declared = names[0] in _DECLARES
        if not is_declared and not all(map(ASSIGNS.match, names)):
            return names[0] in (":", "[", "[[")  # ${X:=default} has set where it was put in
        for one in fields[is_declared:]:
            found = ASSIGNS.match(one.raw)
            name = found[1] if found else one.raw
            if found is not None and self._certain is not False:
                self._assign(name, one, is_added=bool(found[2]))
            held = self._held.get(name, Value())
            if is_declared and held.items is not None and not self._is_aside:
                self.exported[name] = one.word([char for item in held.items for char in item])
        return True

    def _assign(self, name: str, given: Field, *, is_added: bool) -> None:
        items, may_differ = given.items if given.is_array else [given.value], given.may_differ
        value = Value(items, given.is_array, may_differ=may_differ)
        if not given.is_array and re.search(r"\$\(|`", plain(given.value)):  # what a program says
            value = Value()
        if not is_added:
            return self._hold(name, value)
        before = self._held.get(name, Value([], is_array=value.is_array))
        if before.items is None:
            return None
        added, why = value.items or [], before.why
        if self._certain is None:  # whether it is there, only the shell knows
            why = self._why()
            self.unread.append(why)
            added = [unplaced(f"${{{name}[@]}}")]
        items = [*before.items, *added]
        if not before.is_array:
            items = [[char for item in items for char in item]]
        may_differ = may_differ or before.may_differ or self._may_differ
        self._put(name, Value(items, before.is_array, why, may_differ))
        return None

    def _hold(self, name: str, value: Value) -> None:
        """Set a variable, unless only the shell knows whether it is set."""
        if self._certain is not False:
            value = value._replace(may_differ=value.may_differ or self._may_differ)
            self._put(name, value if self._certain else Value(why=self._why()))

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._hold(name, Value())

    def _sources(self, fields: Sequence[Field], path: Path | None) -> bool:
        """Read a file that a line sources; whether it does."""
        if path is None or len(fields) < 2 or fields[0].raw not in ("source", "."):
            return False
        name, commands, outer = fields[1].text, self.commands, self._held.get("BASH_SOURCE")
        found = _sourced(name, path)
        try:
            if found is None or self._depth >= _MOST_DEEP:
                raise RenderError(f"{name}: is not there", "")
            self.commands, chars = [], unplaced(read_text(found))
            self._held["BASH_SOURCE"] = Value([unplaced(str(found))])
            self.sourced.append(found)
            self.read(chars, found)
        except (RenderError, _OpenError):
            if self._certain is not False:
                where = self._line(fields[0].place)
                self._gone.append(f"{name}, which {where} sources, is not read")
                self.unread += self._gone[-1:]
                for each, value in list(self._held.items()):
                    self._put(each, value._replace(may_differ=True))
        finally:
            self.commands, self._held["BASH_SOURCE"] = commands, outer or Value()
        return found is not None

    def _runs(self, fields: Sequence[Field], path: Path | None, within: tuple[str, ...]) -> None:
        """Take a command, or those in the text that it hands to a shell."""
        n_set = next(at for at, one in enumerate(fields) if not ASSIGNS.match(one.raw))
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
            may_differ = any(one.may_differ for one in rest)
            text = Field("", parts, fields[0].place, may_differ=may_differ)
            return self._hands_on(text, path, ("eval",))
        if texts[0] == "cd" and len(texts) == 2:
            here = os.path.join(self._field(unplaced("$PWD")).text, texts[1])
            is_known = UNKNOWN.search(here) is None
            self._hold("PWD", Value([unplaced(os.path.normpath(here))] if is_known else None))
        names = _VARIABLES.findall(" ".join([*texts, *(one.text for one in variables.values())]))
        unread = [self._held[name].why for name in names if name in self._held]
        may_differ = self._is_handed or any(one.may_differ for one in fields)
        if may_differ or not self._held.keys() >= set(names):
            unread += self._gone
        made = Command(
            words=words,
            start=fields[0].place,
            variables=variables,
            within=within,
            unread=tuple(dict.fromkeys(filter(None, unread))),
        )
        self.commands.append(made)
        for shell, option, one in zip(rest, rest[1:], rest[2:], strict=False):
            if shell.text.rpartition("/")[2] in _SHELLS and re.fullmatch(r"-\w*c", option.text):
                self._hands_on(one, path, texts)

    def _hands_on(self, text: Field, path: Path | None, within: tuple[str, ...]) -> None:
        """Read a text that a command hands to a shell; one that does not close is left."""
        if self._depth < _MOST_DEEP:
            chars = [(char, at if at >= 0 else text.place) for char, at in text.chars]
            before, self._is_handed = self._is_handed, self._is_handed or text.may_differ
            with contextlib.suppress(_OpenError):
                self.read(chars, path, within)
            self._is_handed = before


def _documents(
    fields: Sequence[Field], targets: Iterable[tuple[str, Field]]
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
    if not rest or UNKNOWN.search(rest):
        return None
    near = (*(folder / rest for folder in base.parents[:_FOLDERS_ABOVE]), Path(rest))
    found = next((one for one in near if one.is_file()), None)
    return None if found is None or found.resolve() == base.resolve() else found
