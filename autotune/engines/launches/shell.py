"""A shell file: its simple commands as words, each with its place in the text.

It is read and not run: quotes, comments, line continuations, here-documents, arrays and variables
that the file itself sets once are followed; what only a shell knows stays as it is written.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.base.errors import JobError

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
_REFERENCE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?-([^{}]*))?\})")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
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


@dataclass(frozen=True, kw_only=True)
class ShellText:
    """A shell file."""

    commands: tuple[Command, ...]
    exported: Mapping[str, Word]
    """Variables that it exports: the value and where it is written."""


@dataclass(frozen=True)
class _Token:
    """A stretch of the text that is one word, or one array."""

    start: int
    end: int
    items: "tuple[_Token, ...] | None" = None
    """The elements of an array; None: it is a word."""


def is_shell(text: str, path: Path) -> bool:
    """Whether a file is a shell's, by its name or its first line."""
    if path.suffix in SUFFIXES or _SHEBANG.match(text):
        return True
    return path.suffix not in _DATA_SUFFIXES and _STARTS.search(text) is not None


def read_shell(text: str, path: Path) -> ShellText:
    """Read a shell file.

    Raises:
        JobError: A quote or a bracket in it does not close.
    """
    try:
        lines = [line for line in _lines(text) if line]
    except _OpenError as error:
        line = text.count("\n", 0, error.at) + 1
        raise JobError(f"{path}:{line}: {error}", "close it") from error
    reader = _Reader(text, lines)
    commands = [made for line in lines if (made := reader.command(line)) is not None]
    return ShellText(commands=tuple(commands), exported=reader.exported)


class _OpenError(Exception):
    """Something that does not close; `at` is where it opens."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(f"{what} does not close")
        self.at = at


class _Reader:
    """Words out of tokens, with the variables of the file."""

    def __init__(self, text: str, lines: list[list[_Token]]) -> None:
        self._text = text
        self._set: dict[str, list[_Token]] = {}
        """Variable -> what the file sets it to."""
        self._values: dict[str, int] = {}
        """Variable -> where its value begins; of one that is set once."""
        self.exported: dict[str, Word] = {}
        names: dict[str, int] = {}
        for line in lines:
            for token in self._assignments(line):
                name, begin = self._assigned(token)
                names[name] = names.get(name, 0) + 1
                self._set[name] = [token]
                self._values[name] = begin
        for name, count in names.items():
            if count > 1:  # which of them holds, only the shell knows
                del self._set[name], self._values[name]
        for line in lines:
            first = self._raw(line[0])
            if first in _DECLARES:
                for token in self._assignments(line):
                    name, begin = self._assigned(token)
                    self.exported[name] = self._word(begin, token.end, token.end)

    def command(self, line: list[_Token]) -> Command | None:
        """The command of a line; None where it only sets variables."""
        variables: dict[str, Word] = {}
        rest = list(line)
        while rest and rest[0].items is None and _ASSIGNS.match(self._raw(rest[0])):
            token = rest.pop(0)
            name, begin = self._assigned(token)
            variables[name] = self._word(begin, token.end, token.end)
        if not rest or self._raw(rest[0]) in _DECLARES or rest[0].items is not None:
            return None
        words = tuple(word for token in rest for word in self._words(token))
        return Command(words=words, start=line[0].start, variables=variables)

    def _assignments(self, line: list[_Token]) -> Iterator[_Token]:
        is_declared = self._raw(line[0]) in _DECLARES
        all_ = all(_ASSIGNS.match(self._raw(token)) for token in line)
        for token in line[1:] if is_declared else line if all_ else []:
            if _ASSIGNS.match(self._raw(token)):
                yield token

    def _assigned(self, token: _Token) -> tuple[str, int]:
        found = _ASSIGNS.match(self._raw(token))
        assert found is not None, "only assignments are asked for"
        return found[1], token.start + found.end()

    def _words(self, token: _Token, inside: tuple[str, ...] = ()) -> Iterator[Word]:
        """The words that a token stands for: several where it is a variable without quotes."""
        raw = self._raw(token)
        bare = raw[1:-1] if raw[:1] == raw[-1:] == '"' else raw
        found = _REFERENCE.fullmatch(bare)
        name = found and (found[1] or found[2])
        if name is None or name not in self._set or name in inside:
            yield self._word(token.start, token.end, token.end)
            return
        held = self._set[name][0]
        n_uses = len(re.findall(rf"\$\{{?{name}\b", self._text))
        begin = self._values[name]
        if held.items is not None:
            for item in held.items:
                for word in self._words(item, (*inside, name)):
                    yield replace(word, own_end=token.end)
            return
        parts = [(begin, held.end)] if raw != bare else self._split(begin, held.end)
        for start, end in parts:
            word = self._word(start, end, token.end)
            if n_uses > 1 and len(parts) == 1:  # the others keep the value
                word = Word(text=word.text, start=token.start, end=token.end, own_end=token.end)
            yield word

    def _split(self, start: int, end: int) -> list[tuple[int, int]]:
        """The words of a value that is used without quotes."""
        raw = self._text[start:end]
        if raw[:1] in ("'", '"') and raw[-1:] == raw[:1]:
            start, raw = start + 1, raw[1:-1]
        parts = re.finditer(r"[^\s\\]+(?:\\[^\s][^\s\\]*)*", raw)
        return [(start + part.start(), start + part.end()) for part in parts]

    def _word(self, start: int, end: int, own_end: int) -> Word:
        text = self._value(self._text[start:end])
        return Word(text=text, start=start, end=end, own_end=own_end)

    def _raw(self, token: _Token) -> str:
        return self._text[token.start : token.end]

    def _value(self, raw: str, depth: int = 0) -> str:
        """A word without its quotes, and with its variables as far as the file tells them."""
        parts: list[str] = []
        at, quoted = 0, False
        while at < len(raw):
            char = raw[at]
            found = _REFERENCE.match(raw, at)
            if char == "'" and not quoted:
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                parts.append(raw[at + 1 : end])
                at = end + 1
            elif char == '"':
                quoted = not quoted
                at += 1
            elif char == "\\" and at + 1 < len(raw):
                parts.append("" if raw[at + 1] == "\n" else raw[at + 1])
                at += 2
            elif found is not None:
                parts.append(self._put(found, depth))
                at = found.end()
            else:
                parts.append(char)
                at += 1
        return "".join(parts)

    def _put(self, found: re.Match[str], depth: int) -> str:
        name = found[1] or found[2]
        held = self._set.get(name, [None])[0]
        if held is not None and held.items is None and depth < len(self._set):
            return self._value(self._text[self._values[name] : held.end], depth + 1)
        if held is None and found[3] is not None:
            return found[3].strip("\"'")
        return found[0]


def _lines(text: str) -> Iterator[list[_Token]]:
    """The tokens of each simple command."""
    line: list[_Token] = []
    at = 0
    waiting: list[str] = []
    """Ends of here-documents that begin after this line."""
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
            if found[0].lstrip("0123456789") in ("<<", "<<-"):
                waiting.append(text[at:end].strip("'\"\\"))
            at = end
        elif char in _ENDS:
            yield line
            line = []
            at += 1
            if char == "\n":
                for word in waiting:
                    at = _past_document(text, at, word)
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
                items.append(_Token(at, _word_end(text, at)))
                at = items[-1].end
        if at >= len(text):
            raise _OpenError("the array", end)
        return _Token(start, at + 1, tuple(items))
    return _Token(start, max(end, start + 1))


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
