"""A shell file: its simple commands as words, each with its place in the text.

It is read and not run. Known are quotes, line continuations, here-documents, assignments, arrays,
`+=`, `${X:-default}`, sums, tests of words and numbers, texts for another shell (`bash -c`,
`eval`), files that are sourced, and folders (`$PWD`, `$(dirname "$0")`). All else stays as it is
written, and the file says why.
"""

import contextlib
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
_NAMED = re.compile(
    r"\$(?:([A-Za-z_]\w*|\d)|\{([A-Za-z_]\w*|\d+)(\[[@*0]\])?(?:(:?[-=])(.*))?\})", re.S
)
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_PUT_IN = re.compile(r"\\[$`\\]|\$(?:\w+|\{[^{}]*\})")
"""What a shell puts something else for in a here-document."""
_UNKNOWN = re.compile(r"[$`]")
_UNKNOWN_FOLDERS = re.compile(r".*[$`][^/]*/")
_BEFORE_COMMANDS = ("then", "else", "do", "{", "}", "!", "time")
_SHELLS = ("bash", "sh", "zsh", "ksh", "dash")
_TEXT_FOLLOWS = re.compile(r"-\w*c")
"""The flag of a shell whose value is the text that it reads."""
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_INTO_ARRAY = re.compile(r"-r?a|-ar")
_ASKS_FOLDER = re.compile(r"\s*(?:cd|pwd|dirname|realpath|readlink)\b")
_FOLDER_FLAGS = ("--", "-P", "-L", "-f", "-e")
"""Flags of `cd`, `pwd` and their like after which a folder is the same one."""
_FOLDERS_ABOVE = 3
"""Folders, with the script's, in which a file is looked for whose own only the shell knows."""
_MOST_DEEP = 6
"""Texts that read one another, at most."""
_MOST_PUT = 2**20
"""Characters that variables put into a file, at most: each line may double what one holds."""
_LARGEST = 2**53
"""Numbers above it no launch has."""
_COMPARES: Mapping[str, Callable[[int, int], bool]] = {
    **{"-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt},
    **{"-ge": operator.ge, "-lt": operator.lt, "-le": operator.le},
}
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul},
    **{"/": operator.floordiv, "%": operator.mod},
}
_PRODUCT = re.compile(r"(?<![\d)*/%])(?P<left>\d+)(?P<sign>[*/%])(?P<right>\d+)")
_DIFFERENCE = re.compile(r"(?<![\d)*/%+-])(?P<left>\d+)(?P<sign>[+-])(?P<right>\d+)(?![\d*/%])")
_BLANK = " \t\r"
ASSIGNS = re.compile(r"([A-Za-z_]\w*)\+?=")
_ENDS = "\n;&|()"
_WORD_ENDS = f"{_BLANK}{_ENDS}<>"
_CONTINUED = re.compile(r"\\\r?\n")
_REDIRECTION = re.compile(r"(?:\d*(?P<sign><<<|<<-?|>>|>&|<&|>\||<>|>|<)|&>>?)[ \t\r]*")
_SIMPLE = re.compile(r"\$(?:[A-Za-z_]\w*|\d)")
_BARE = re.compile(r"\$\{?(\w+)\}?")

Chars = list[tuple[str, int]]
"""Characters, each with its place in the file."""


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


@dataclass(frozen=True, kw_only=True)
class ShellText:
    """A shell file."""

    commands: tuple[Command, ...]
    exported: Mapping[str, Word]
    """Variables that it exports: the value and where it is written."""
    sourced: tuple[Path, ...] = ()
    """Files that it sources, and whose variables it has from there on."""
    unread: tuple[str, ...] = ()
    """What is not known of it: files that could not be read, and lines that decide."""
    written: Mapping[str, str] = field(default_factory=dict)
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
    text: str,
    path: Path,
    *,
    variables: Mapping[str, str] | None = None,
    follows: bool = False,
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
    outer = {"PWD": ".", "0": str(path), "BASH_SOURCE": str(path), **(variables or {})}
    reader = _Reader(text, path, outer, follows=follows)
    try:
        reader.read(_Source(text, range(len(text))), ())
    except _OpenError as error:
        line = text.count("\n", 0, error.at) + 1
        raise JobError(f"{path}:{line}: {error}", "close it") from error
    except RecursionError as error:
        raise JobError(f"{path}: brackets are nested too deep", "remove some") from error
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


class _Source(NamedTuple):
    """A text that a shell reads: the file, one that it sources, or one that a command hands on."""

    text: str
    places: Sequence[int]
    """Where each character stands in the file; -1: in one that it sources."""

    def placed(self, start: int, end: int) -> Chars:
        return list(zip(self.text[start:end], self.places[start:end], strict=True))


class _Token(NamedTuple):
    """A stretch of a text that is one word, or one array."""

    start: int
    end: int
    items: "tuple[_Token, ...] | None" = None
    """The elements of an array; None: it is a word."""


@dataclass
class _Line:
    """The tokens of a simple command, and the file that it writes a here-document to."""

    tokens: list[_Token] = field(default_factory=list)
    is_alternative: bool = False
    """Whether it follows `&&` or `||`."""
    document: tuple[int, int] | None = None
    is_literal: bool = False
    """Whether nothing is put in for variables in the document."""
    target: _Token | None = None
    """The name of the file that it writes."""


def _scan(text: str, at: int, stops: str, opened: int = -1) -> int:
    """The first of some characters outside of quotes and brackets; the end, if it may be missing.

    Raises:
        _OpenError: It is missing; `opened` is what it would close.
    """
    knows_quotes = stops in (_WORD_ENDS, ")")
    while at < len(text):
        char = text[at]
        if char in stops:
            return at
        if char == "\\":
            if stops == _WORD_ENDS and _CONTINUED.match(text, at):
                return at
            at += 2
        elif char in "'`" and knows_quotes:
            close = text.find(char, at + 1)
            if close < 0:
                raise _OpenError(text, at)
            at = close + 1
        elif char == '"':
            at = _scan(text, at + 1, '"', at) + 1
        elif text.startswith(("$(", "${"), at):
            at = _scan(text, at + 2, ")" if text[at + 1] == "(" else "}", at) + 1
        elif char == "(" and stops == ")":
            at = _scan(text, at + 1, ")", at) + 1
        else:
            at += 1
    if opened >= 0:
        raise _OpenError(text, opened)
    return len(text)


def _past_expansion(text: str, at: int, end: int) -> int:
    """One past `$NAME`, `${...}`, `$(...)` or what stands in backticks."""
    if text[at] == "`":
        return min(end, _scan(text, at + 1, "`", at) + 1)
    if text[at + 1 : at + 2] in ("(", "{"):
        return min(end, _scan(text, at + 2, ")" if text[at + 1] == "(" else "}", at) + 1)
    found = _SIMPLE.match(text, at, end)
    return at + 1 if found is None else found.end()


def _lines(text: str, at: int = 0, opened: int = -1) -> tuple[list[_Line], int]:
    """The simple commands of a text, or the one line of an array's elements, and where they end.

    Raises:
        _OpenError: A quote or a bracket does not close.
    """
    line, in_array = _Line(), opened >= 0
    lines, waiting = [line], list[tuple[str, _Line]]()
    while at < len(text):
        char = text[at]
        if char in _BLANK or (in_array and char == "\n"):
            at += 1
        elif (continued := _CONTINUED.match(text, at)) is not None:
            at = continued.end()
        elif char == "#":
            at = _scan_to(text, "\n", at)
        elif text[at : at + 2] in ("<(", ">("):
            line.tokens.append(_Token(at, _scan(text, at + 2, ")", at) + 1))
            at = line.tokens[-1].end
        elif (found := _REDIRECTION.match(text, at)) is not None:
            start = found.end()
            at = _scan(text, start, _WORD_ENDS)
            sign, name = found["sign"], text[start:at]
            if sign in ("<<", "<<-"):
                waiting.append((name.strip("'\"\\"), line))
                line.is_literal = name[:1] in ("'", '"', "\\")
            elif sign in (">", ">|"):
                line.target = _Token(start, at)
            elif sign == "<<<":
                line.tokens.append(_Token(start, at))
        elif in_array and char in ")":
            return lines, at + 1
        elif char in _ENDS:
            line = _Line(is_alternative=text[at : at + 2] in ("&&", "||"))
            lines.append(line)
            at += 1 + line.is_alternative
            if char == "\n":
                for word, owner in waiting:
                    at = _take_document(text, at, word, owner)
                waiting = []
        else:
            end = max(at + 1, _scan(text, at, _WORD_ENDS))
            items = None
            if text[end : end + 1] == "(" and ASSIGNS.fullmatch(text[at:end]):
                inner, end = _lines(text, end + 1, end)
                items = tuple(token for one in inner for token in one.tokens)
            line.tokens.append(_Token(at, end, items))
            at = end
    if in_array:
        raise _OpenError(text, opened)
    return lines, at


def _scan_to(text: str, mark: str, at: int) -> int:
    found = text.find(mark, at)
    return len(text) if found < 0 else found


def _take_document(text: str, begin: int, word: str, owner: _Line) -> int:
    """One past a here-document; one that does not end takes the rest, as in a shell."""
    start, at = begin, begin
    while at < len(text):
        start, end = at, _scan_to(text, "\n", at)
        at = end + 1
        if text[start:end].strip() == word:
            break
    else:
        start = len(text)
    owner.document = (begin, start)
    tokens = owner.tokens
    if tokens and not owner.target and text.startswith("tee", tokens[0].start):
        owner.target = tokens[-1]
    return min(at, len(text))


class _Value(NamedTuple):
    """What a variable is set to."""

    items: list[Chars] | None = None
    """None: only the shell knows it."""
    is_array: bool = False
    why: str = ""
    """Why only the shell knows it; empty: the value itself tells."""


@dataclass
class _OpenBlock:
    """An `if` or a loop that is open."""

    keyword: str
    start: int
    runs: bool | None
    """Whether what stands in it runs; None: only the shell knows."""
    has_run: bool | None
    """Whether a branch before this one did."""


class _Reader:
    """Goes through texts, and holds the variables as they are where a command stands."""

    def __init__(
        self, text: str, path: Path, variables: Mapping[str, str], *, follows: bool
    ) -> None:
        self._text, self._path, self._follows = text, path, follows
        self.commands: list[Command] = []
        self.exported: dict[str, Word] = {}
        self.sourced: list[Path] = []
        self.unread: list[str] = []
        self.written: dict[str, str] = {}
        self._held = {name: _Value([_unplaced(value)]) for name, value in variables.items()}
        self._blocks: list[_OpenBlock] = []
        self._is_alternative = False
        """Whether the present command follows `&&` or `||`, and so runs only sometimes."""
        self._depth = 0
        self._n_put = 0

    def read(self, source: _Source, within: tuple[str, ...]) -> None:
        """Take all commands of a text.

        Raises:
            _OpenError: Something in it does not close; nothing of it is taken then.
        """
        lines, _ = _lines(source.text)
        self._depth += 1
        n_blocks, is_alternative = len(self._blocks), self._is_alternative
        for line in lines:
            tokens = self._without_keywords(source, line)
            if not tokens:
                continue
            self._is_alternative = is_alternative or line.is_alternative
            if not self._sets(source, tokens) and not self._sources(source, tokens):
                self._writes(source, line)
                self._runs(source, tokens, within)
        self._depth -= 1
        self._is_alternative = is_alternative
        del self._blocks[n_blocks:]

    @property
    def _certain(self) -> bool | None:
        """Whether what stands here runs; None: only the shell knows."""
        states = [block.runs for block in self._blocks]
        if False in states:
            return False
        return None if None in states or self._is_alternative else True

    def _without_keywords(self, source: _Source, line: _Line) -> list[_Token]:
        """The tokens of a line behind its keywords, which open and close blocks."""
        tokens, blocks = list(line.tokens), self._blocks
        while tokens:
            word, place = _raw(source, tokens[0]), source.places[tokens[0].start]
            is_test = len(tokens) > 1 and _raw(source, tokens[1]) in ("[", "[[")
            truth = self._truth(source, tokens[1:]) if is_test else None
            if word == "if":
                blocks.append(_OpenBlock("if", place, truth, truth))
                return [] if is_test else tokens[1:]
            if word in ("elif", "else") and blocks:
                block = blocks[-1]
                truth, before = True if word == "else" else truth, block.has_run
                block.runs = False if before else truth if before is False else None
                block.has_run = before or block.runs
                if word == "elif":
                    return []
            elif word in ("for", "while", "until", "select", "case"):
                blocks.append(_OpenBlock(word, place, None, None))
                if word in ("for", "select") and len(tokens) > 1:
                    self._held[_raw(source, tokens[1])] = _Value()
                return []
            elif word in ("fi", "done", "esac"):
                del blocks[-1:]
                return []
            elif word not in _BEFORE_COMMANDS:
                return tokens
            tokens.pop(0)
        return []

    def _truth(self, source: _Source, tokens: Sequence[_Token]) -> bool | None:
        """Whether `[ ... ]` holds; None: it asks something else than about words and numbers."""
        words = [_plain(chars) for token in tokens[1:-1] for chars in self._fields(source, token)]
        after = source.text[tokens[-1].end :].lstrip("; \t\r\n")
        if any(map(_UNKNOWN.search, words)) or not after.startswith("then"):
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

    def _sets(self, source: _Source, tokens: list[_Token]) -> bool:
        """Take a line that only sets variables; whether it is one."""
        texts = [_raw(source, token) for token in tokens]
        if texts[0] == ":":  # ${X:=default} sets where it is put in
            for token in tokens[1:]:
                self._fields(source, token)
            return True
        if texts[0] == "read" and len(tokens) == 4 and _INTO_ARRAY.fullmatch(texts[1]):
            items = [chars for chars in _at_blanks(self._joined(source, tokens[3])) if chars]
            self._hold(texts[2], _Value(items, is_array=True))
            return True
        is_declared = texts[0] in _DECLARES
        if not is_declared and not all(map(ASSIGNS.match, texts)):
            return False
        for token, text in list(zip(tokens, texts, strict=True))[is_declared:]:
            found = ASSIGNS.match(text)
            name = text if found is None else found[1]
            if found is not None and self._certain is not False:
                self._assign(source, token, found)
            held = self._held.get(name, _Value())
            if is_declared and held.items is not None:
                value = [char for item in held.items for char in item]
                self.exported[name] = self._word(source, value, token)
        return True

    def _assign(self, source: _Source, token: _Token, found: re.Match[str]) -> None:
        name = found[1]
        if token.items is None:
            value = self._joined(source, _Token(token.start + found.end(), token.end))
            made = _Value([value])
            if "$(" in _plain(value) or "`" in _plain(value):  # what a program says
                self._held[name] = _Value()
                return
        else:
            items = [chars for item in token.items for chars in self._fields(source, item)]
            made = _Value(items, is_array=True)
        if "+" not in found[0]:
            self._hold(name, made)
            return
        before = self._held.get(name, _Value([], is_array=made.is_array))
        if before.items is None:
            return
        added = made.items or []
        if self._certain is None:  # whether it is there, only the shell knows
            self.unread += filter(None, [self._why()])
            added = [_unplaced(f"${{{name}[@]}}")]
        items = [*before.items, *added]
        if not before.is_array:
            items = [[char for item in items for char in item]]
        self._held[name] = _Value(items, is_array=before.is_array)

    def _hold(self, name: str, value: _Value) -> None:
        """Set a variable, unless only the shell knows whether it is set."""
        if self._certain is None:
            self._held[name] = _Value(why=self._why())
        elif self._certain:
            self._held[name] = value

    def _why(self) -> str:
        block = next((block for block in self._blocks if block.runs is None), None)
        if block is None:
            return ""
        line = self._text.count("\n", 0, block.start) + 1
        return f"line {line} decides by `{block.keyword}`: say the launch with --launch"

    def _sources(self, source: _Source, tokens: list[_Token]) -> bool:
        """Read a file that a line sources; whether it does."""
        is_sourcing = _raw(source, tokens[0]) in ("source", ".")
        if not self._follows or len(tokens) < 2 or not is_sourcing:
            return False
        word = "".join(map(_plain, self._fields(source, tokens[1])))
        path = self._file(word)
        commands, outer = list(self.commands), (self._held.get("BASH_SOURCE"), self._path)
        try:
            if path is None or self._depth >= _MOST_DEEP:
                raise RenderError(f"{word}: is not there", "")
            text = read_text(path)
            self._held["BASH_SOURCE"] = _Value([_unplaced(str(path))])
            self._path = path
            self.sourced.append(path)
            self.read(_Source(text, [-1] * len(text)), ())
        except (RenderError, _OpenError):
            number = self._text.count("\n", 0, source.places[tokens[0].start]) + 1
            self.unread.append(f"{word}, which line {number} sources, is not read")
            return path is not None
        finally:
            self.commands = commands
            self._held["BASH_SOURCE"], self._path = outer[0] or _Value(), outer[1]
        return True

    def _file(self, word: str) -> Path | None:
        """The file that `source WORD` means; None: it is not there.

        A folder that only the shell knows is taken for the script's, or one above it.
        """
        rest = _UNKNOWN_FOLDERS.sub("", word)
        if not rest or _UNKNOWN.search(rest):
            return None
        near = (*(folder / rest for folder in self._path.parents[:_FOLDERS_ABOVE]), Path(rest))
        found = next((one for one in near if one.is_file()), None)
        return None if found is None or found.resolve() == self._path.resolve() else found

    def _writes(self, source: _Source, line: _Line) -> None:
        """Take the text that a here-document writes to a file."""
        if line.document is None or line.target is None or self._certain is False:
            return
        begin, end = line.document

        def put(found: re.Match[str]) -> str:
            return found[0][1:] if found[0].startswith("\\") else self._put(found[0])

        body = source.text[begin:end]
        body = body if line.is_literal else _PUT_IN.sub(put, body)
        name = _plain(self._joined(source, line.target))
        above = "\n" * source.text.count("\n", 0, begin)
        self.written[os.path.normpath(name)] = above + body

    def _put(self, text: str) -> str:
        """A text with the variables put in that it names."""
        return _plain(self._joined(_Source(text, [-1] * len(text)), _Token(0, len(text))))

    def _runs(self, source: _Source, tokens: list[_Token], within: tuple[str, ...]) -> None:
        """Take a command, or those in the text that it hands to a shell."""
        variables: dict[str, Word] = {}
        start = source.places[tokens[0].start]
        rest = list(tokens)
        while rest and rest[0].items is None:
            found = ASSIGNS.match(_raw(source, rest[0]))
            if found is None:
                break
            value = self._joined(source, _Token(rest[0].start + found.end(), rest[0].end))
            variables[found[1]] = self._word(source, value, rest.pop(0))
        if not rest or rest[0].items is not None:
            return
        fields = [(self._fields(source, token), token) for token in rest]
        words = tuple(self._word(source, chars, at) for parts, at in fields for chars in parts)
        texts = [word.text for word in words]
        if texts[:1] == ["eval"]:
            parts = [[*chars, (" ", -1)] for some, _ in fields for chars in some][1:]
            self._hands_on([char for part in parts for char in part], start, ("eval",))
            return
        if words:
            made = Command(words=words, start=start, variables=variables, within=within)
            self.commands.append(made)
        for at, (some, token) in enumerate(fields[2:], start=2):
            shell, flag = ("".join(map(_plain, fields[at - n][0])) for n in (2, 1))
            if shell.rpartition("/")[2] in _SHELLS and _TEXT_FOLLOWS.fullmatch(flag):
                chars = [char for part in some for char in part]
                self._hands_on(chars, source.places[token.start], tuple(texts))

    def _hands_on(self, chars: Chars, place: int, within: tuple[str, ...]) -> None:
        """Read a text that a command hands to a shell; one that does not close is left."""
        if self._depth < _MOST_DEEP:
            places = [at if at >= 0 else place for _, at in chars]
            with contextlib.suppress(_OpenError):
                self.read(_Source(_plain(chars), places), within)

    def _word(self, source: _Source, chars: Chars, token: _Token) -> Word:
        start = chars[0][1] if chars else -1
        return Word(text=_plain(chars), start=start if start >= 0 else source.places[token.start])

    def _joined(self, source: _Source, token: _Token) -> Chars:
        """A value that is one word, whatever it is made of."""
        return [char for part in self._fields(source, token, is_split=False) for char in part]

    def _fields(self, source: _Source, token: _Token, *, is_split: bool = True) -> list[Chars]:
        """What a token is split into, without its quotes, with the variables of the file."""
        text, at, end = source.text, token.start, token.end
        done: list[Chars] = []
        word: Chars | None = None
        quoted = False
        while at < end:
            char = text[at]
            if char == "'" and not quoted:
                close = _scan_to(text, "'", at + 1)
                word = (word or []) + source.placed(at + 1, close)
                at = close + 1
            elif char == '"':
                quoted, word, at = not quoted, word or [], at + 1
            elif char == "\\" and at + 1 < end:
                if text[at + 1] != "\n":
                    word = (word or []) + source.placed(at + 1, at + 2)
                at += 2
            elif char in "$`" and (close := _past_expansion(text, at, end)) > at + 1:
                parts = self._put_in(source, at, close)
                pieces = parts or [source.placed(at, close)]
                if parts is not None and is_split and not quoted:
                    pieces = list(_split(parts, joins=word is not None))
                for number, piece in enumerate(pieces):
                    if number and word is not None:
                        done.append(word)
                        word = None
                    if piece or quoted:
                        word = (word or []) + piece
                at = close
            else:
                word = word if word is not None else []
                word += source.placed(at, at + 1)
                at += 1
        return done if word is None else [*done, word]

    def _put_in(self, source: _Source, start: int, end: int) -> list[Chars] | None:
        """What an expansion stands for; None: only the shell knows."""
        raw = source.text[start:end]
        if raw.startswith("$(("):
            number = _sum(self._put(_NAME.sub(r"${\g<0>}", _BARE.sub(r"\1", raw[3:-2]))))
            return None if number is None else [_unplaced(str(number))]
        if raw[0] == "`" or raw.startswith("$("):
            inner = _Token(start + 1 if raw[0] == "`" else start + 2, end - 1)
            folder = self._folder(source, inner)
            return None if folder is None else [_unplaced(folder)]
        found = _NAMED.fullmatch(raw)
        if found is None:
            return None
        name = found[1] or found[2]
        held = self._held.get(name)
        if held is None and found[4] is None:
            return None
        if held is None:
            default = self._joined(source, _Token(start + found.start(5), start + found.end(5)))
            if "=" in found[4]:
                self._hold(name, _Value([default]))
            return [default]
        if held.items is None:
            self.unread += filter(None, [held.why])
            return None
        items = held.items if held.is_array and found[3] in ("[@]", "[*]") else held.items[:1]
        self._n_put += sum(len(item) + 32 for item in items)
        return items if self._n_put <= _MOST_PUT else None

    def _folder(self, source: _Source, inner: _Token) -> str | None:
        """What commands print that only ask for a folder; None: they are others.

        `pwd`, `dirname "$0"`, `cd "$(dirname "$0")/.." && pwd`.
        """
        here, printed = ".", None
        part = _Source(_raw(source, inner), source.places[inner.start : inner.end])
        if _ASKS_FOLDER.match(part.text) is None or len(part.text) > 300:
            return None
        for line in _lines(part.text)[0]:
            words = [_plain(one) for token in line.tokens for one in self._fields(part, token)]
            name, *rest = [word for word in words if word not in _FOLDER_FLAGS] or [""]
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


def _sum(text: str) -> int | None:
    """The number that `$((...))` is; None: it is not known, or has signs of its own."""
    text = re.sub(r"\s+", "", text)
    if len(text) > 300 or re.fullmatch(r"[\d()+*/%-]+", text) is None:
        return None
    while (found := _PRODUCT.search(text) or _DIFFERENCE.search(text)) is not None:
        left, right = int(found["left"]), int(found["right"])
        if max(left, right) > _LARGEST or (right == 0 and found["sign"] in "/%"):
            return None
        made = _OPERATIONS[found["sign"]](left, right)
        text = f"{text[: found.start()]}{made}{text[found.end() :]}"
        text = re.sub(r"\((\d+)\)", r"\1", text)
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _raw(source: _Source, token: _Token) -> str:
    return source.text[token.start : token.end]


def _plain(chars: Chars) -> str:
    return "".join(char for char, _ in chars)


def _unplaced(text: str) -> Chars:
    return [(char, -1) for char in text]


def _at_blanks(chars: Chars) -> Iterator[Chars]:
    """A value split at its blanks: empty at an end where a blank stands there."""
    word: Chars = []
    for char in chars:
        if char[0] in f"{_BLANK}\n":
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
