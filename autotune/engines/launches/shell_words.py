"""The words of a shell's text and where they stand: quotes, brackets, here-documents."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

BLANK = " \t\r"
ASSIGNS = re.compile(r"([A-Za-z_]\w*)\+?=")
_ENDS = "\n;&|()"
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|>>|>&|<&|>\||<>|>|<)|&>>?")
_SIMPLE = re.compile(r"\$(?:[A-Za-z_]\w*|\d)")


class OpenError(Exception):
    """Something that does not close; `at` is where it opens."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(f"{what} does not close")
        self.at = at


@dataclass(frozen=True)
class Token:
    """A stretch of the text that is one word, or one array."""

    start: int
    end: int
    items: "tuple[Token, ...] | None" = None
    """The elements of an array; None: it is a word."""


@dataclass
class Line:
    """The tokens of a simple command, and the file that it writes a here-document to."""

    tokens: list[Token] = field(default_factory=list)
    is_alternative: bool = False
    """Whether it follows `&&` or `||`."""
    document: tuple[int, int] | None = None
    """Where its here-document stands."""
    is_literal: bool = False
    """Whether nothing is put in for variables in it."""
    target: Token | None = None
    """The name of the file that it writes."""


def lines_of(text: str) -> Iterator[Line]:
    """The simple commands of a text.

    Raises:
        OpenError: A quote or a bracket does not close.
    """
    line, at = Line(), 0
    waiting: list[tuple[str, Line]] = []
    """Ends of here-documents that begin after this line, and whose they are."""
    while at < len(text):
        char = text[at]
        if char in BLANK:
            at += 1
        elif char == "\\" and text[at + 1 : at + 3].lstrip("\r")[:1] == "\n":
            at = text.index("\n", at) + 1
        elif char == "#":
            at = _line_end(text, at)
        elif (found := _REDIRECTION.match(text, at)) is not None:
            start = found.end()
            while text[start : start + 1] and text[start] in BLANK:
                start += 1
            at = _word_end(text, start)
            sign, name = found[0].lstrip("0123456789"), text[start:at]
            if sign in ("<<", "<<-"):
                waiting.append((name.strip("'\"\\"), line))
                line.is_literal = name[:1] in ("'", '"', "\\")
            elif sign in (">", ">|"):
                line.target = Token(start, at)
            elif sign == "<<<":
                line.tokens.append(Token(start, at))
        elif char in _ENDS:
            yield line
            line = Line(is_alternative=text[at : at + 2] in ("&&", "||"))
            at += 1 + line.is_alternative
            if char == "\n":
                for word, owner in waiting:
                    begin, at = at, _past_document(text, at, word)
                    owner.document = (begin, max(begin, text.rfind("\n", begin, at - 1) + 1))
                    tokens = owner.tokens
                    if tokens and not owner.target and text.startswith("tee", tokens[0].start):
                        owner.target = tokens[-1]
                waiting = []
        else:
            line.tokens.append(_token(text, at))
            at = line.tokens[-1].end
    yield line


def _token(text: str, start: int) -> Token:
    end = _word_end(text, start)
    if text[end : end + 1] != "(" or not ASSIGNS.fullmatch(text[start:end]):
        return Token(start, max(end, start + 1))
    items: list[Token] = []
    at = end + 1
    while at < len(text) and text[at] != ")":
        if text[at] in "\n\\" or text[at] in BLANK:
            at += 1
        elif text[at] == "#":
            at = _line_end(text, at)
        elif text[at] in _ENDS:
            raise OpenError("the array", end)
        else:
            items.append(Token(at, _element_end(text, at)))
            at = items[-1].end
    if at >= len(text):
        raise OpenError("the array", end)
    return Token(start, at + 1, tuple(items))


def _element_end(text: str, start: int) -> int:
    """One past an element of an array, which may be what a program writes: `<(sort names)`."""
    if text[start] not in "<>":
        return _word_end(text, start)
    return past(text, start + 2, ")", start) if text[start + 1 : start + 2] == "(" else start + 1


def _word_end(text: str, at: int) -> int:
    """One past a word: quotes, `$(...)` and `${...}` belong to it whole."""
    while at < len(text):
        char = text[at]
        if char in BLANK or char in _ENDS or char in "<>":
            return at
        if char in "'\"`":
            at = past(text, at + 1, char, at)
        elif char == "\\":
            if text[at + 1 : at + 3].lstrip("\r")[:1] == "\n":
                return at
            at += 2
        elif char == "$":
            at = past_expansion(text, at, len(text))
        else:
            at += 1
    return min(at, len(text))


def past_expansion(text: str, at: int, end: int) -> int:
    """One past `$NAME`, `${...}`, `$(...)` or what stands in backticks."""
    if text[at] == "`":
        return min(end, past(text, at + 1, "`", at))
    if text[at + 1 : at + 2] in ("(", "{"):
        return min(end, past(text, at + 2, {"(": ")", "{": "}"}[text[at + 1]], at))
    found = _SIMPLE.match(text, at, end)
    return at + 1 if found is None else found.end()


def past(text: str, at: int, close: str, opened: int) -> int:
    """One past what closes a quote or a bracket, with those that are open inside of it.

    Raises:
        OpenError: It does not close.
    """
    if close in "'`":
        at = text.find(close, at)
        if at >= 0:
            return at + 1
        raise _open(text, opened)
    stack = [(close, opened)]
    while at < len(text):
        close, opened = stack[-1]
        char = text[at]
        if char == close:
            stack.pop()
            at += 1
            if not stack:
                return at
        elif char == "\\":
            at += 2
        elif text[at : at + 2] in ("$(", "${"):
            stack.append((")" if text[at + 1] == "(" else "}", at))
            at += 2
        elif char == "(" and close == ")":
            stack.append((")", at))
            at += 1
        elif char == '"' and close != '"':
            stack.append(('"', at))
            at += 1
        elif char in "'`" and close == ")":
            at = past(text, at + 1, char, at)
        else:
            at += 1
    raise _open(text, stack[-1][1])


def _open(text: str, at: int) -> OpenError:
    mark = text[at + 1] if text[at] == "$" else text[at]
    return OpenError(f"the {'bracket' if mark in '({' else 'quote'} {mark}", at)


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
