"""The syntax of a shell file: its words, signs and redirections, and where what opens closes."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from autotune.engines.launches.shell_words import NAME, Chars, plain

LOOPS = ("for", "select", "while", "until")
PIPES = ("|", "|&")
_BEFORE_NAMES = ("for", "select", "case", "function")
_KEYWORDS = frozenset(
    (
        *("if", "then", "elif", "else", "fi", "case", "esac", "do", "done", "function"),
        *("{", "}", "!", "time", *LOOPS),
    )
)
_MOST_NESTED = 60
"""Brackets in one another: no launch has more."""

_BLANK = re.compile(r"(?:(?:[ \t\r]|\\\r?\n|\\\Z)++|\#[^\n]*+)*+")
_SIGN = re.compile(r"&&|\|\||\|&?|;;&?|;&?|[\n&()]")
_REDIRECTS = re.compile(r"\d*(<<<|<<-?|>>|>&|<&|>\||<>|&>>?|[<>](?!\())[ \t]*")
_ARRAY = re.compile(rf"{NAME}\+?=\(")
_PLAIN = re.compile(r"[^\s;&|()<>'\"`\\$]*+")
_OPENS = re.compile(r"['\"`\\$]|[<>]\(")
_QUOTES = re.compile(r"['\"\\]")
_NAMED = re.compile(rf"\$(?:{NAME}|[\d@*#])?")
_ESCAPED = re.compile(r"\$'(?:[^'\\]|\\.)*+'", re.DOTALL)
_INSIDE = {
    '"': re.compile(r'[^"\\`$]*+'),
    ")": re.compile(r"(?:[^()'\"\\`$\#]|(?<![\s(])\#|(?<=[\s(])\#[^\n]*+)*+"),
    "}": re.compile(r"[^{}'\"\\`$]*+"),
    "`": re.compile(r"[^`\\]*+"),
}
"""Sign that closes -> what stands before it and opens nothing."""


class OpenError(Exception):
    """Something that does not close; `at` is where it opens."""

    def __init__(self, sign: str, at: int) -> None:
        super().__init__(f"the {sign.strip()} does not close, or is nested too deep")
        self.at = at


class Token(NamedTuple):
    """A word, a keyword, a sign, or a redirection with the word behind it."""

    kind: str
    """word, keyword, sign or redirection."""
    chars: Chars
    text: str
    """As it is written; of a redirection its sign."""
    document: Chars | None = None
    """The here-document that a redirection begins."""


def end_of(text: str, at: int) -> int:
    """One past a quote, an expansion, an escape or a bracket that begins there.

    Raises:
        OpenError: It does not close.
    """
    begun, closers = at, list[str]()
    while True:
        inside = closers[-1] if closers else ""
        if inside and (found := _INSIDE[inside].match(text, at)):
            at = found.end()
        sign = text[at : at + 2]
        char, step = sign[:1], 1
        if not char or len(closers) > _MOST_NESTED:
            raise OpenError(text[begun : begun + 2], begun)
        if char == inside:
            closers.pop()
        elif char == "\\":
            step = 3 if text[at + 1 : at + 3] == "\r\n" else 2
        elif sign in ("$(", "<(", ">(", "${"):
            closers.append("}" if sign == "${" else ")")
            step = 2
        elif sign == "$'" and '"' not in "".join(closers).rpartition(")")[2]:
            if (found := _ESCAPED.match(text, at)) is None:
                raise OpenError(text[begun : begun + 2], begun)
            step = found.end() - at
        elif char == "$" and (found := _NAMED.match(text, at)):
            step = found.end() - at
        elif char in '"`':
            closers.append(char)
        elif char == "'" and '"' not in "".join(closers).rpartition(")")[2]:
            step = text.find("'", at + 1) + 1 - at
            if step < 1:
                raise OpenError(text[begun : begun + 2], begun)
        elif (char, inside) in (("(", ")"), ("(", ""), ("{", "}")):
            closers.append(")" if char == "(" else "}")
        at += step
        if not closers:
            return min(at, len(text))


def tokens_of(chars: Chars) -> list[Token]:
    """The tokens of a text, here-documents with their redirections.

    Raises:
        OpenError: Something in it does not close.
    """
    text, at, found = plain(chars), 0, list[Token]()
    is_test, is_first, n_documented = False, True, 0
    while (blank := _BLANK.match(text, at)) and (at := blank.end()) < len(text):
        start, document = at, None
        if redirects := _REDIRECTS.match(text, at):
            start, at = redirects.end(), _word_end(text, redirects.end())
            sign, kind = redirects[1], "word" if redirects[1] == "<<<" else "redirection"
            document = Chars() if sign in ("<<", "<<-") else None
        elif (signs := _SIGN.match(text, at)) and text[at : at + 2] != "((":
            at, sign = signs.end(), signs[0]
            is_test = is_test and sign != "\n"
            kind = "word" if is_test else "sign"
            is_first = is_first or not is_test
        else:
            at = _word_end(text, at)
            sign = text[start:at]
            kind = "keyword" if is_first and sign in _KEYWORDS else "word"
            is_name = bool(found) and found[-1].text == "function"
            is_first = is_name or (kind == "keyword" and sign not in _BEFORE_NAMES)
            is_test = sign == "[[" or (is_test and sign != "]]")
        found.append(Token(kind, chars[start:at], sign, document))
        if sign == "\n":
            for one in found[n_documented:]:
                at = _documented(chars, text, one, at)
            n_documented = len(found)
    return found


def _documented(chars: Chars, text: str, target: Token, at: int) -> int:
    """Take the here-document of a redirection, which begins there: where it ends."""
    if target.document is None:
        return at
    last = re.escape(_QUOTES.sub("", plain(target.chars)))
    end = re.compile(rf"^[ \t]*{last}[ \t\r]*$", re.M).search(text, at)
    target.document.extend(chars[at : end.start() if end else len(text)])
    return end.end() + 1 if end else len(text)


def _word_end(text: str, at: int) -> int:
    if (array := _ARRAY.match(text, at)) is not None:
        at = end_of(text, array.end() - 1)
    elif text.startswith("((", at):
        at = end_of(text, at)
    while found := _PLAIN.match(text, at):
        at = found.end()
        if not _OPENS.match(text, at):
            break
        at = end_of(text, at)
    return at


def elements(chars: Chars) -> Sequence[Chars] | None:
    """The words in an assignment of an array; None: a word is none."""
    found = _ARRAY.match(plain(chars))
    if found is None:
        return None
    return [
        one.chars for one in tokens_of(chars[found.end() : -1]) if one.kind in ("word", "keyword")
    ]
