"""A shell file: its simple commands as words, each with its place in the text.

It is read and not run: quotes, comments, line continuations, here-documents, arrays, variables,
sums and tests of them are followed, and so are a text that is handed to another shell, a file that
a here-document writes, and the folder of the script (`$(dirname "$0")`); what only a shell knows
stays as it is written. Where it is asked for, `source FILE` is followed.
"""

import ast
import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)\+?=")
_REFERENCE = re.compile(
    r"\$(?:([A-Za-z_]\w*|\d)|\{([A-Za-z_]\w*|\d+)(?:\[[@*0]\])?(?::?[-=]([^{}]*))?\})"
)
_IN_DOCUMENT = re.compile(rf"\\[$`\\]|{_REFERENCE.pattern}")
"""What a shell puts something else for in a here-document."""
_USE = re.compile(r"\$\{?(\w+)")
_SETS_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?=([^{}]*)\}")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_UNKNOWN = re.compile(r"[$`]")
_UNKNOWN_FOLDERS = re.compile(r".*[$`][^/]*/")
_WHOLE = re.compile(r"-?\d+")
_PREFIXES = ("then", "else", "do", "{", "}", "!", "time")
"""Words before a command that are no part of it."""
_SHELLS = ("bash", "sh", "zsh", "ksh", "dash")
_TEXT_FOLLOWS = re.compile(r"-\w*c")
"""The flag of a shell whose value is the text that it reads."""
_OPERATORS = ("|", "||", "&&", "&", ";", "|&")
_COMPARES: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: int(left / right),
    ast.Mod: lambda left, right: int(math.fmod(left, right)),
}
"""As a shell calculates: quotients are cut towards 0, and a remainder has the dividend's sign."""
_SUM = re.compile(r"[\d\s()+*/%-]+")
"""All that a sum is made of once its variables are put in."""
_LARGEST = 2**53
"""Numbers above it no launch has."""
_MOST_PUT = 2**20
"""Characters that variables put into a file, at most: each line may double what one holds."""
_PER_ELEMENT = 32
"""Characters that an element of an array counts for, beside its own."""
_FOLDERS_ABOVE = 3
"""Folders, with the script's, in which a file is looked for whose own only the shell knows."""
_MOST_DEEP = 4
"""Files that source one another, at most."""
_ASKS_FOLDER = re.compile(r"\s*(?:cd|pwd|dirname|realpath|readlink)\b.{0,300}$", re.DOTALL)
_MOST_FOLDERS = 1000
"""Commands in a file that ask for a folder, at most."""
_FOLDER_FLAGS = ("--", "-P", "-L", "-f", "-e")
"""Flags of `cd`, `pwd` and their like after which a folder is the same one."""
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_HERE_STRING = re.compile(r"[ \t]*<<<[ \t]*")
_INTO_ARRAY = re.compile(r"-r?a|-ar")
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|>>|>&|<&|>\||<>|>|<)|&>>?")
_ENDS = "\n;&|()"
_BLANK = " \t\r"


@dataclass(frozen=True, kw_only=True)
class Word:
    """A word of a command."""

    text: str
    """As the command gets it, with the variables that the file tells."""
    start: int
    """Where it is written: in the command, or where its variable is set."""
    end: int
    """One past its last character there."""
    own_end: int
    """One past the last character of what stands for it in the command."""


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
    """Files that it sources and that could not be read, in words."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Path, as `os.path.normpath` has it -> the text that a here-document writes there. It stands
    on the lines that it has in the file."""

    def lost_below(self, command: Command) -> Command | None:
        """The command behind another one if it begins with a flag: that one has lost its end."""

        def is_flag(other: Command) -> bool:
            return bool(other.words) and other.words[0].text.startswith("--")

        after = self.commands[self.commands.index(command) + 1 :][:1]
        return next((each for each in after if is_flag(each)), None)


@dataclass(frozen=True)
class _Token:
    """A stretch of the text that is one word, or one array."""

    start: int
    end: int
    items: "tuple[_Token, ...] | None" = None
    """The elements of an array; None: it is a word."""


class _Tokens(list[_Token]):
    """The tokens of a simple command, and the file that it writes a here-document to."""

    document: tuple[int, int] | None = None
    """Where the here-document stands."""
    is_literal = False
    """Whether nothing is put in for variables in it."""
    target: tuple[int, int] | None = None
    """Where the name of the file stands that the command writes."""


def is_shell(text: str, path: Path) -> bool:
    """Whether a file is a shell's, by its name or its first line."""
    if path.suffix in SUFFIXES or _SHEBANG.match(text):
        return True
    return path.suffix not in _DATA_SUFFIXES and _STARTS.search(text) is not None


def _sourced_file(word: str, path: Path) -> Path | None:
    """The file that `source WORD` means; None: it is not there.

    A folder that only the shell knows is taken for the script's, or one above it.
    """
    rest = _UNKNOWN_FOLDERS.sub("", word)
    if not rest or _UNKNOWN.search(rest):
        return None
    near = (*(folder / rest for folder in path.parents[:_FOLDERS_ABOVE]), Path(rest))
    found = next((each for each in near if each.is_file()), None)
    return None if found is None or found.resolve() == path.resolve() else found


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
        follows: Whether files that it sources are read for their variables.

    Raises:
        JobError: A quote or a bracket in it does not close.
    """
    try:
        lines = [line for line in _lines(text) if line]
    except _OpenError as error:
        line = text.count("\n", 0, error.at) + 1
        raise JobError(f"{path}:{line}: {error}", "close it") from error
    here = {"PWD": ".", "0": str(path), "BASH_SOURCE": str(path)}
    reader = _Reader(text, lines, {**here, **(variables or {})}, path if follows else None)
    return ShellText(
        commands=tuple(reader.commands()),
        exported=reader.exported,
        sourced=tuple(dict.fromkeys(reader.sourced)),
        unread=tuple(dict.fromkeys(reader.unread)),
        written=reader.written,
    )


class _OpenError(Exception):
    """Something that does not close; `at` is where it opens."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(f"{what} does not close")
        self.at = at


Chars = tuple[tuple[str, int | None], ...]
"""Characters, each with its place in the text; None: it stands there in no such form."""


@dataclass(frozen=True, kw_only=True)
class _VariableValue:
    """What a variable is set to."""

    items: tuple[Chars, ...]
    """The elements of an array; a plain variable has one."""
    is_array: bool
    spans: tuple[tuple[int, int], ...]
    """Where that is written."""


class _Reader:
    """Words out of tokens, with the variables of the file as they are where a command stands."""

    def __init__(
        self,
        text: str,
        lines: "list[_Tokens]",
        variables: Mapping[str, str],
        path: Path | None = None,
        depth: int = 0,
    ) -> None:
        """Start; `path` is None where no file is followed, `depth` counts the files above it."""
        self._text, self._path, self._depth = text, path, depth
        self.sourced: list[Path] = []
        self.unread: list[str] = []
        self.written: dict[str, str] = {}
        self._outer: dict[str, _VariableValue | None] = {}
        """Variables of the environment."""
        for name, value in variables.items():
            chars = tuple((char, None) for char in value)
            self._outer[name] = _VariableValue(items=(chars,), is_array=False, spans=())
        self._lines = [(line, self._is_alternative(line)) for line in lines]
        self._counts = self._counted()
        self._uses: dict[str, list[int]] = {}
        """Variable -> where the file uses it."""
        for use in _USE.finditer(text):
            self._uses.setdefault(use[1], []).append(use.start())
        self._last: Mapping[str, _VariableValue | None] = {}
        """What is held at the end of the file: for functions, which run after it was read."""
        self._now: dict[str, _VariableValue | None] = {}
        """Variable -> what it is; None: only the shell knows."""
        self._n_folders = 0
        self._n_put = 0
        """Characters that variables have put in so far."""
        self.exported: dict[str, Word] = {}

    def commands(self) -> list[Command]:
        """The commands, in the order of the text."""
        self._now = dict(self._outer)
        self._read()
        self._last, self._now = dict(self._now), dict(self._outer)
        return self._read()

    def _read(self) -> list[Command]:
        found: list[Command] = []
        self._n_put = 0
        blocks = _Branches()
        for number, (line, is_alternative) in enumerate(self._lines):
            after = self._lines[number + 1][0] if number + 1 < len(self._lines) else []
            rest = blocks.enter(line, [self._raw(token) for token in line], self._truth(after))
            if not rest:
                continue
            certain = None if is_alternative else blocks.certain
            if self._sets(rest, certain) or self._sources(rest, certain):
                continue
            if certain is not False:
                self._writes(line)
            command = self._command(rest)
            if command is not None:
                is_eval = command.words[:1] and command.words[0].text == "eval"
                found += [*([] if is_eval else [command]), *self._handed_on(command, rest)]
        return found

    def _writes(self, line: "_Tokens") -> None:
        """Take the text that a here-document writes to a file."""
        if line.document is None or line.target is None:
            return
        begin, end = line.document

        def put(found: re.Match[str]) -> str:
            if found[0].startswith("\\"):
                return found[0][1:]
            reference = _REFERENCE.fullmatch(found[0])
            assert reference is not None, "the pattern is a reference or a backslash"
            value = self._value(reference, begin + found.start(), "")
            return "".join(char for char, _ in value[0]) if value else ""

        body = self._text[begin:end]
        body = body if line.is_literal else _IN_DOCUMENT.sub(put, body)
        name = "".join(char for char, _ in self._joined(*line.target).items[0])
        above = "\n" * self._text.count("\n", 0, begin)
        self.written[os.path.normpath(name)] = above + body

    def _truth(self, after: list[_Token]) -> Callable[[list[_Token]], bool | None]:
        """Whether the test of an `if` holds, where one test is all that it asks."""
        is_alone = bool(after) and self._raw(after[0]) == "then"

        def holds(tokens: list[_Token]) -> bool | None:
            if not is_alone or any(token.items is not None for token in tokens):
                return None
            words = ["".join(c for c, _ in field) for t in tokens for field in self._fields(t)]
            if words[:1] not in (["["], ["[["]) or any(map(_UNKNOWN.search, words[1:-1])):
                return None
            return _tested(words[1:-1])

        return holds

    def _is_alternative(self, line: list[_Token]) -> bool:
        """Whether it follows `&&` or `||`, and so runs only sometimes."""
        before = self._text[: line[0].start].rstrip(_BLANK + "\n\\") if line else ""
        return before.endswith(("&&", "||"))

    def _counted(self) -> dict[str, int]:
        """How often the file sets each variable."""
        counts: dict[str, int] = {}
        for line, _ in self._lines:
            bare = list(line)
            while bare and self._raw(bare[0]) in _PREFIXES:
                bare.pop(0)
            for token in self._assignments(bare) if bare else ():
                found = self._assigns(token)
                if found is not None and "+" not in found[0]:
                    counts[found[1]] = counts.get(found[1], 0) + 1
        return counts

    def _sets(self, line: list[_Token], certain: bool | None) -> bool:
        """Take a line that only sets variables; whether it is one."""
        first = self._raw(line[0])
        if first == ":":
            for token in line[1:]:
                found = _SETS_DEFAULT.fullmatch(self._raw(token).strip('"'))
                if found is not None and found[1] not in self._now:
                    begin = token.start + self._raw(token).index(found[2], len(found[1]) + 3)
                    self._hold(found[1], self._joined(begin, begin + len(found[2])), certain)
            return True
        if first == "read":
            return self._reads(line, certain)
        if first in ("for", "select") and len(line) > 1:
            self._now[self._raw(line[1])] = None
            return True
        is_declared = first in _DECLARES
        alone = all(_ASSIGNS.match(self._raw(token)) for token in line)
        if not is_declared and not alone:
            return False
        for token in line[is_declared:]:
            found = self._assigns(token)
            if found is None:
                name = self._raw(token)
                if first == "export" and (held := self._now.get(name)) is not None:
                    self.exported[name] = self._word_of(held, token)
                continue
            if certain is not False:
                self._assign(token, found, certain=certain)
            if is_declared and (held := self._now.get(found[1])) is not None:
                self.exported[found[1]] = self._word_of(held, token)
        return True

    def _reads(self, line: list[_Token], certain: bool | None) -> bool:
        """Take a line that splits a text into an array: `read -ra NAME <<<TEXT`."""
        texts = [self._raw(token) for token in line]
        begin = _HERE_STRING.match(self._text, line[-1].end)
        if len(line) != 3 or not _INTO_ARRAY.fullmatch(texts[1]) or begin is None:
            return False
        token = _Token(begin.end(), _word_end(self._text, begin.end()))
        text = self._joined(token.start, token.end).items
        words = [tuple(word) for word in _at_blanks(text, starts=False) if word]
        if certain is not False:
            span = (token.start, token.end)
            held = _VariableValue(items=tuple(words), is_array=True, spans=(span,))
            self._hold(texts[2], held, certain)
        return True

    def _sources(self, line: list[_Token], certain: bool | None) -> bool:
        """Take the variables of a file beside this one that a line sources; whether it does."""
        if self._path is None or self._raw(line[0]) not in ("source", ".") or len(line) < 2:
            return False
        word = "".join(char for field in self._fields(line[1]) for char, _ in field)
        path = _sourced_file(word, self._path)
        try:
            if path is None or self._depth >= _MOST_DEEP:
                raise RenderError(f"{word}: is not there", "")
            text = read_text(path)
            lines = [inner for inner in _lines(text) if inner]
        except (RenderError, _OpenError):
            number = self._text.count("\n", 0, line[0].start) + 1
            self.unread.append(f"{word}, which line {number} sources, is not read")
            return False
        self.sourced.append(path)
        if certain is False:
            return True
        reader = _Reader(text, lines, {}, path, self._depth + 1)
        # No character of it stands in this text: what is put in is where it is sourced.
        span = (line[0].start, line[-1].end)
        before = {name: held and _elsewhere(held, span) for name, held in self._now.items()}
        of_file = tuple((char, None) for char in str(path))
        source = _VariableValue(items=(of_file,), is_array=False, spans=())
        before |= {"BASH_SOURCE": source}
        reader._outer = before
        reader.commands()
        self.sourced += reader.sourced
        self.unread += reader.unread
        for name, held in reader._now.items():
            if name not in before or held is not before[name]:
                self._now[name] = _elsewhere(held, span) if held and certain else None
        for name, exported in reader.exported.items():
            self.exported[name] = replace(exported, start=span[0], end=span[1], own_end=span[1])
        return True

    def _assign(self, token: _Token, found: re.Match[str], *, certain: bool | None) -> None:
        begin, name, is_added = token.start + found.end(), found[1], "+" in found[0]
        if token.items is None:
            made = self._joined(begin, token.end, name)
        else:
            fields = [f for item in token.items for f in self._fields(item, inside=name)]
            made = _VariableValue(items=tuple(fields), is_array=True, spans=((begin, token.end),))
        if not is_added:
            text = "".join(char for char, _ in made.items[0]) if made.items else ""
            if not made.is_array and ("$(" in text or "`" in text):  # what a program says
                self._now[name] = None
            else:
                self._hold(name, made, certain)
            return
        before = self._now.get(name, _VariableValue(items=(), is_array=made.is_array, spans=()))
        if before is None:
            return
        added = made.items
        if certain is None:  # whether it is there, only the shell knows
            added = (tuple((char, None) for char in f"${{{name}[@]}}"),)
        if before.is_array:
            items = (*before.items, *added)
        else:
            items = (tuple(char for field in (*before.items, *added) for char in field),)
        spans = (*before.spans, *made.spans)
        self._now[name] = _VariableValue(items=items, is_array=before.is_array, spans=spans)

    def _hold(self, name: str, held: _VariableValue, certain: bool | None) -> None:
        # Set in several branches: which of them holds, only the shell knows.
        is_known = certain or self._counts.get(name, 1) < 2
        self._now[name] = held if is_known else None

    def _command(self, line: list[_Token]) -> Command | None:
        variables: dict[str, Word] = {}
        rest = list(line)
        while rest and rest[0].items is None and (found := self._assigns(rest[0])) is not None:
            token = rest.pop(0)
            begin = token.start + found.end()
            variables[found[1]] = self._word_of(self._joined(begin, token.end), token, begin)
        if not rest or rest[0].items is not None:
            return None
        words = tuple(word for token in rest for word in self._words(token))
        return Command(words=words, start=line[0].start, variables=variables)

    def _handed_on(self, command: Command, line: list[_Token]) -> Iterator[Command]:
        """The commands in a text that a command hands to a shell: `bash -c TEXT`, `eval TEXT`."""
        texts = [self._raw(token) for token in line]
        if texts[0] == "eval" and len(line) > 2:
            for part in _parts(command.words[1:]):
                yield replace(command, words=tuple(part), within=("eval",))
            return
        for at, (token, text) in enumerate(zip(line, texts, strict=True)):
            is_text = texts[at - 1] == "eval" if at == 1 else False
            if at > 1:
                is_text = _TEXT_FOLLOWS.fullmatch(texts[at - 1]) is not None and (
                    texts[at - 2].rpartition("/")[2] in _SHELLS
                )
            if not is_text:
                continue
            outer = tuple(word.text for word in command.words)
            is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
            start, end = token.start + is_quoted, token.end - is_quoted
            try:
                lines = [line for line in _lines(self._text, start, end) if line]
            except _OpenError:  # what the outer shell puts in may close it
                continue
            for inner in lines:
                words = [word for each in inner for word in self._words(each)]
                for part in _parts(words):
                    # What ends the text is what a further flag stands before.
                    yield replace(command, words=tuple(part), within=outer)

    def _assignments(self, line: list[_Token]) -> Iterator[_Token]:
        is_declared = self._raw(line[0]) in _DECLARES
        alone = all(_ASSIGNS.match(self._raw(token)) for token in line)
        for token in line[1:] if is_declared else line if alone else []:
            if _ASSIGNS.match(self._raw(token)):
                yield token

    def _assigns(self, token: _Token) -> re.Match[str] | None:
        return _ASSIGNS.match(self._raw(token))

    def _words(self, token: _Token) -> Iterator[Word]:
        """The words that a token stands for: several where it is a variable without quotes."""
        raw = self._raw(token)
        fields = list(self._fields(token))
        if _REFERENCE.search(raw) is None and len(fields) == 1:
            text = "".join(char for char, _ in fields[0])
            yield Word(text=text, start=token.start, end=token.end, own_end=token.end)
            return
        found = _REFERENCE.fullmatch(raw.strip('"'))
        is_shared = (
            found is not None and len(fields) == 1 and self._is_shared(found[1] or found[2])
        )
        for chars in fields:
            start, end = _place(chars)
            if start is None or end is None or is_shared:  # the other uses keep the value
                start, end = token.start, token.end
            text = "".join(char for char, _ in chars)
            yield Word(text=text, start=start, end=end, own_end=token.end)

    def _is_shared(self, name: str) -> bool:
        """Whether the file uses a variable more than once, but for what sets it."""
        held = self._now.get(name) or self._last.get(name)
        spans = held.spans if held is not None else ()
        uses = (
            at
            for at in self._uses.get(name, ())
            if not any(start <= at < end for start, end in spans)
        )
        return next(uses, None) is not None and next(uses, None) is not None

    def _word_of(self, held: _VariableValue, token: _Token, begin: int | None = None) -> Word:
        text = "".join(char for field in held.items for char, _ in field)
        start, end = held.spans[0] if begin is None else (begin, token.end)
        return Word(text=text, start=start, end=end, own_end=token.end)

    def _raw(self, token: _Token) -> str:
        return self._text[token.start : token.end]

    def _joined(self, start: int, end: int, name: str = "") -> _VariableValue:
        """A value that is one word, whatever it is made of."""
        fields = self._fields(_Token(start, end), is_split=False, inside=name)
        chars = tuple(char for field in fields for char in field)
        return _VariableValue(items=(chars,), is_array=False, spans=((start, end),))

    def _fields(
        self, token: _Token, *, is_split: bool = True, inside: str = ""
    ) -> Iterator[Chars]:
        """What a token is split into, without its quotes, with the variables of the file.

        Args:
            token: A word as it is written.
            is_split: Whether blanks of a variable without quotes end a word.
            inside: Variable that is being set; itself it is not.
        """
        raw, base = self._raw(token), token.start
        word: list[tuple[str, int | None]] | None = None
        at, quoted = 0, False
        while at < len(raw):
            char = raw[at]
            found = _REFERENCE.match(raw, at)
            if char == "'" and not quoted:
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                word = word or []
                word += _placed(raw[at + 1 : end], base + at + 1)
                at = end + 1
            elif char == '"':
                quoted, word = not quoted, word or []
                at += 1
            elif char == "\\" and at + 1 < len(raw):
                if raw[at + 1] != "\n":
                    word = word or []
                    word.append((raw[at + 1], base + at + 1))
                at += 2
            elif raw.startswith("$((", at) or found is not None:
                if found is None:
                    end = _bracket_end(raw, at + 1)
                    parts = self._sum(raw[at:end], base + at)
                else:
                    end = found.end()
                    parts = self._value(found, base, inside)
                if quoted or not is_split:
                    pieces = [list(part) for part in parts]
                else:
                    pieces = list(_at_blanks(parts, starts=word is not None))
                for number, piece in enumerate(pieces):
                    if number and word is not None:
                        yield tuple(word)
                        word = None
                    if piece or quoted:
                        word = word or []
                        word += piece
                at = end
            elif char == "`" or (char == "$" and raw[at + 1 : at + 2] in ("(", "{")):
                is_old = char == "`"
                last = raw.find("`", at + 1) if is_old else -1
                end = last + 1 or (len(raw) if is_old else _bracket_end(raw, at + 1))
                folder = None
                if is_old or raw[at + 1] == "(":
                    folder = self._folder(base + at + 2 - is_old, base + end - 1)
                word = word or []
                word += (
                    _placed(raw[at:end], base + at)
                    if folder is None
                    else [(each, None) for each in folder]
                )
                at = end
            else:
                word = word or []
                word.append((char, base + at))
                at += 1
        if word is not None:
            yield tuple(word)

    def _folder(self, start: int, end: int) -> str | None:
        """What commands print that only ask for a folder; None: they are others.

        `pwd`, `dirname "$0"`, `cd "$(dirname "$0")/.." && pwd`.
        """
        here, printed = ".", None
        if _ASKS_FOLDER.match(self._text, start, end) is None or self._n_folders > _MOST_FOLDERS:
            return None
        self._n_folders += 1
        try:
            lines = [line for line in _lines(self._text, start, end) if line]
        except _OpenError:
            return None
        for line in lines:
            words = ["".join(c for c, _ in word) for token in line for word in self._fields(token)]
            name, *rest = [word for word in words if word not in _FOLDER_FLAGS] or [""]
            if any(map(_UNKNOWN.search, rest)) or len(rest) != (name != "pwd"):
                return None
            if name == "cd":
                here = os.path.join(here, rest[0])
            elif name == "pwd":
                printed = here
            elif name == "dirname":
                printed = os.path.dirname(rest[0]) or "."
            elif name in ("realpath", "readlink"):
                printed = rest[0]
            else:
                return None
        return None if printed is None else os.path.normpath(printed)

    def _value(self, found: re.Match[str], base: int, inside: str) -> tuple[Chars, ...]:
        """What a reference stands for; itself, where only the shell knows."""
        name = found[1] or found[2]
        held = self._now.get(name)
        if held is None and name not in self._now and name != inside:
            held = self._last.get(name) if self._counts.get(name, 0) < 2 else None
        if held is not None:
            is_whole = held.is_array and ("[@]" in found[0] or "[*]" in found[0])
            items = held.items if is_whole else held.items[:1]
            self._n_put += sum(len(item) + _PER_ELEMENT for item in items)
            if self._n_put <= _MOST_PUT:
                return items
        elif name not in self._now and found[3] is not None:
            begin = found.start(3)
            default = _Token(base + begin, base + found.end(3))
            return (self._joined(default.start, default.end, inside).items[0],)
        return (_placed(found[0], base + found.start()),)

    def _sum(self, raw: str, start: int) -> tuple[Chars, ...]:
        """The number that `$((...))` is; itself, where it is not known."""

        def put(found: re.Match[str]) -> str:
            value = self._value(found, start, "")
            return "".join(char for char, _ in value[0]) if value else ""

        inner = _REFERENCE.sub(put, raw[3:-2])
        inner = _NAME.sub(lambda found: put(_as_reference(found[0])), inner)
        number = _calculated(inner)
        if number is None:
            return (_placed(raw, start),)
        return (tuple((char, None) for char in str(number)),)


class _Branches:
    """Which branches of a file run, as far as its own variables tell."""

    def __init__(self) -> None:
        self._open: list[tuple[str, bool | None, bool | None]] = []
        """Kind of a block, whether its present branch runs, and whether one before it did."""

    @property
    def certain(self) -> bool | None:
        """Whether what stands here runs; None: only the shell knows."""
        states = [runs for _, runs, _ in self._open]
        return False if False in states else None if None in states else True

    def enter(
        self, line: list[_Token], texts: list[str], holds: Callable[[list[_Token]], bool | None]
    ) -> list[_Token]:
        """Take the keywords at the start of a line; returns what is left of it."""
        at = 0
        while at < len(line):
            word = texts[at]
            if word in ("if", "elif"):
                truth = holds(line[at + 1 :])
                if word == "if":
                    self._open.append(("if", truth, truth))
                elif self._open:
                    _, _, before = self._open.pop()
                    runs = False if before else truth if before is False else None
                    self._open.append(("if", runs, before or (truth if before is False else None)))
                return line[at + 1 :] if texts[at + 1 : at + 2] not in (["["], ["[["]) else []
            if word == "else" and self._open:
                _, _, before = self._open.pop()
                self._open.append(("if", None if before is None else not before, True))
            elif word in ("for", "while", "until", "select", "case"):
                self._open.append((word, None, None))
                return line[at:] if word in ("for", "select") else []
            elif word in ("fi", "done", "esac"):
                if self._open:
                    self._open.pop()
                return []
            elif word not in _PREFIXES:
                return line[at:]
            at += 1
        return []


def _tested(words: Sequence[str]) -> bool | None:
    """Whether `[ ... ]` holds; None: it asks something else than about words and numbers."""
    if len(words) == 2 and words[0] in ("-n", "-z"):
        return bool(words[1]) is (words[0] == "-n")
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in ("=", "==") and not set("*?[") & set(right):
        return left == right
    if sign == "!=" and not set("*?[") & set(right):
        return left != right
    by_number = _COMPARES.get(sign)
    if by_number is None or not (_WHOLE.fullmatch(left) and _WHOLE.fullmatch(right)):
        return None
    return by_number(int(left), int(right))


def _calculated(expression: str) -> int | None:
    """A whole number as a shell calculates it; None: it is no such expression."""
    if _SUM.fullmatch(expression) is None:
        return None
    try:
        return _number_of(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, KeyError):
        return None
    except (RecursionError, MemoryError):  # the parser's own stack is full
        return None


def _number_of(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number_of(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _number_of(node.left), _number_of(node.right)
        if max(abs(left), abs(right)) > _LARGEST:
            raise ValueError
        return _OPERATIONS[type(node.op)](left, right)
    raise ValueError


def _elsewhere(held: _VariableValue, span: tuple[int, int]) -> _VariableValue:
    """A value that is written in another text, which stands for `span` of this one."""
    items = tuple(tuple((char, None) for char, _ in item) for item in held.items)
    return replace(held, items=items, spans=(span,))


def _placed(text: str, start: int) -> Chars:
    return tuple((char, start + at) for at, char in enumerate(text))


def _place(field: Chars) -> tuple[int | None, int | None]:
    """Where a word is written, if it stands there as it is."""
    places = [place for _, place in field if place is not None]
    if not places or len(places) < len(field) or places[-1] - places[0] != len(field) - 1:
        return None, None
    return places[0], places[-1] + 1


def _at_blanks(parts: Sequence[Chars], *, starts: bool) -> Iterator[list[tuple[str, int | None]]]:
    """Values without quotes, split at their blanks; the first joins what stands before it."""
    first = True
    for number, part in enumerate(parts):
        words: list[list[tuple[str, int | None]]] = [[]]
        for char in part:
            if char[0] in _BLANK + "\n":
                if words[-1] or len(words) == 1:
                    words.append([])
            else:
                words[-1].append(char)
        # A backslash before a line's end is no word of its own.
        words = [word for word in words if [char for char, _ in word] != ["\\"]]
        if number:
            words = [word for word in words if word]
        for word in words:
            if word or (first and starts):
                yield word
            first = False


def _as_reference(name: str) -> re.Match[str]:
    found = _REFERENCE.match(f"${{{name}}}")
    assert found is not None, "a name makes a reference"
    return found


def _parts(words: Sequence[Word]) -> Iterator[list[Word]]:
    """The commands of words that a shell reads again: operators end them."""
    part: list[Word] = []
    skips = False
    for word in words:
        if word.text in _OPERATORS:
            yield part
            part = []
        elif skips:
            skips = False
        elif (found := _REDIRECTION.match(word.text)) is not None:
            skips = found.end() == len(word.text)
        elif word.text.endswith(";"):
            yield [*part, replace(word, text=word.text[:-1])]
            part = []
        else:
            part.append(word)
    yield part


def _lines(text: str, at: int = 0, stop: int | None = None) -> Iterator[_Tokens]:
    """The tokens of each simple command; of a part of the text, where it is given."""
    text = text[:stop]
    line = _Tokens()
    waiting: list[tuple[str, _Tokens]] = []
    """Ends of here-documents that begin after this line, and whose they are."""
    while at < len(text):
        char = text[at]
        if char in _BLANK:
            at += 1
        elif char == "\\" and text[at + 1 : at + 3].lstrip("\r")[:1] == "\n":
            at = text.index("\n", at) + 1
        elif char == "#":
            at = _line_end(text, at)
        elif (found := _REDIRECTION.match(text, at)) is not None:
            at = found.end()
            while at < len(text) and text[at] in _BLANK:
                at += 1
            end = _word_end(text, at)
            sign, name = found[0].lstrip("0123456789"), text[at:end]
            if sign in ("<<", "<<-"):
                waiting.append((name.strip("'\"\\"), line))
                line.is_literal = name[:1] in ("'", '"', "\\")
            elif sign in (">", ">|"):
                line.target = (at, end)
            at = end
        elif char in _ENDS:
            yield line
            line = _Tokens()
            at += 1
            if char == "\n":
                for word, owner in waiting:
                    begin, at = at, _past_document(text, at, word)
                    last = text.rfind("\n", begin, at - 1)
                    owner.document = (begin, max(begin, last + 1))
                    if not owner.target and owner and text.startswith("tee", owner[0].start):
                        owner.target = (owner[-1].start, owner[-1].end)
                waiting = []
        else:
            token = _token(text, at)
            line.append(token)
            at = token.end
    yield line


def _token(text: str, start: int) -> _Token:
    end = _word_end(text, start)
    if text[end : end + 1] == "(" and _ASSIGNS.fullmatch(text[start:end]):
        items: list[_Token] = []
        at = end + 1
        while at < len(text) and text[at] != ")":
            if text[at] in "\n\\" or text[at] in _BLANK:
                at += 1
            elif text[at] == "#":
                at = _line_end(text, at)
            elif text[at] in _ENDS:
                raise _OpenError("the array", end)
            else:
                items.append(_Token(at, _element_end(text, at)))
                at = items[-1].end
        if at >= len(text):
            raise _OpenError("the array", end)
        return _Token(start, at + 1, tuple(items))
    return _Token(start, max(end, start + 1))


def _element_end(text: str, start: int) -> int:
    """One past an element of an array, which may be what a program writes: `<(sort names)`."""
    if text[start] not in "<>":
        return _word_end(text, start)
    is_program = text[start + 1 : start + 2] == "("
    return _past_bracket(text, start + 1) if is_program else start + 1


def _word_end(text: str, start: int) -> int:
    """One past a word: quotes, `$(...)` and `${...}` belong to it whole."""
    at = start
    while at < len(text):
        char = text[at]
        if char in _BLANK or char in _ENDS or char in "<>":
            return at
        if char == "'":
            at = _past(text, at, "'")
        elif char == '"':
            at = _past_quoted(text, at)
        elif char == "`":
            at = _past(text, at, "`")
        elif char == "\\":
            if text[at + 1 : at + 3].lstrip("\r")[:1] == "\n":
                return at
            at += 2
        elif char == "$" and text[at + 1 : at + 2] in ("(", "{"):
            at = _past_bracket(text, at + 1)
        else:
            at += 1
    return min(at, len(text))


def _past(text: str, start: int, mark: str) -> int:
    end = text.find(mark, start + 1)
    if end < 0:
        raise _OpenError(f"the quote {mark}", start)
    return end + 1


def _past_quoted(text: str, start: int) -> int:
    at = start + 1
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text[at] == "$" and text[at + 1 : at + 2] in ("(", "{"):
            at = _past_bracket(text, at + 1)
        elif text[at] == '"':
            return at + 1
        else:
            at += 1
    raise _OpenError('the quote "', start)


def _bracket_end(word: str, start: int) -> int:
    """One past a bracket of a word; its end where quotes hide the other one."""
    try:
        return _past_bracket(word, start)
    except _OpenError:
        return len(word)


def _past_bracket(text: str, start: int) -> int:
    opens, closes = text[start], {"(": ")", "{": "}"}[text[start]]
    depth, at = 0, start
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "'" and opens == "(":
            at = _past(text, at, "'") - 1
        elif text[at] == opens:
            depth += 1
        elif text[at] == closes:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    raise _OpenError(f"the bracket {opens}", start)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _past_document(text: str, at: int, word: str) -> int:
    """One past a here-document; one that does not end takes the rest, as in a shell."""
    while at < len(text):
        end = _line_end(text, at)
        line = text[at:end].strip()
        at = end + 1
        if line == word:
            return at
    return len(text)
