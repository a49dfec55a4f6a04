"""The syntax of a shell file: its words, signs and redirections, and where what opens closes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autotune.engines.launches.shell_words import NAME, Chars, plain

_LOOPS = ("for", "select", "while", "until")
_PIPES = ("|", "|&")
_BETWEEN = ("\n", ";", "&", "do")
"""What stands between commands, and before those of a loop."""
_ENDS_OF_CASE = (";;", ";&", ";;&")
_BEFORE_NAMES = ("for", "select", "case", "function")
_KEYWORDS = frozenset(
    (
        *("if", "then", "elif", "else", "fi", "case", "esac", "do", "done", "function"),
        *("{", "}", "!", "time", *_LOOPS),
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


@dataclass(frozen=True, kw_only=True)
class Simple:
    """A simple command."""

    words: Sequence[Chars]
    targets: Sequence[Token]
    """Where it reads and writes."""
    place: int
    """Where it begins."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Commands that `&&` and `||` join, each a pipeline."""

    first: "Pipeline"
    rest: Sequence[tuple[str, "Pipeline"]]
    is_apart: bool
    """Whether it runs in a shell of its own: `&`."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Commands that `|` joins, the result of the last one negated by `!`."""

    parts: "Sequence[Node]"
    is_negated: bool


@dataclass(frozen=True, kw_only=True)
class Group:
    """`{ ... }`, or `( ... )`, which is a shell of its own."""

    lines: Sequence[Line]
    is_shell: bool


@dataclass(frozen=True, kw_only=True)
class Choice:
    """`if` or `case`."""

    place: int
    name: str
    word: Chars
    """What a `case` compares."""
    branches: "Sequence[Branch]"


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One branch of a `Choice`."""

    condition: Sequence[Line]
    """Of an `if`; nothing: it is the `else`."""
    patterns: Sequence[Chars]
    """Of a `case`."""
    lines: Sequence[Line]


@dataclass(frozen=True, kw_only=True)
class Loop:
    """`for`, `select`, `while` or `until`; the condition of the last two begins its body."""

    place: int
    name: str
    words: Sequence[Chars]
    """Those behind `for`."""
    lines: Sequence[Line]
    size: int
    """Characters of the body, with its here-documents."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """The definition of a function."""

    name: str
    lines: Sequence[Line]
    size: int
    """As of `Loop.size`."""


Node = Simple | Group | Choice | Loop | Function


def lines_of(chars: Chars) -> Sequence[Line]:
    """The commands of a text. What ends that has not begun is passed.

    Raises:
        OpenError: Something in it does not close.
    """
    return _Parser(tokens_of(chars)).lines(None)


class _Parser:
    """Goes through tokens."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = self._n_nested = 0

    def _ahead(self, further: int = 0) -> str:
        """The token that comes, as it is written; empty: none does."""
        at = self._at + further
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _take(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _pass(self, *texts: str) -> None:
        while self._ahead() in texts and self._ahead():
            self._at += 1

    def lines(self, opened: Token | None, *ends: str) -> Sequence[Line]:
        """Take lines up to what ends a block, or else to the end of the text."""
        found = list[Line]()
        while self._ahead() not in ends and self._ahead():
            if self._ahead() in _BETWEEN:
                self._at += 1
            elif (first := self._pipeline()) is not None:
                rest = list[tuple[str, Pipeline]]()
                while (joint := self._ahead()) in ("&&", "||"):
                    self._at += 1
                    self._pass("\n")
                    if (then := self._pipeline()) is not None:
                        rest.append((joint, then))
                found.append(Line(first=first, rest=rest, is_apart=self._ahead() == "&"))
        if opened is not None and not self._ahead():
            raise OpenError(opened.text, opened.chars[0][1])
        return found

    def _pipeline(self) -> Pipeline | None:
        is_negated, parts, is_piped = False, list[Node](), True
        while self._ahead() in ("!", "time"):
            is_negated ^= self._take().text == "!"
        while is_piped:
            if (part := self._command()) is not None:
                parts.append(part)
            if is_piped := self._ahead() in _PIPES:
                self._at += 1
                self._pass("\n")
        return Pipeline(parts=parts, is_negated=is_negated) if parts else None

    def _command(self) -> Node | None:
        """Take a simple command, a block, or the definition of a function; None: it is none."""
        if not self._ahead():
            return None
        token = self._tokens[self._at]
        is_name = token.kind == "word" and [self._ahead(1), self._ahead(2)] == ["(", ")"]
        if token.kind in ("word", "redirection") and not is_name:
            return self._simple()
        self._at += 1
        blocks = {"if": self._if, "case": self._case, "{": self._group, "(": self._group}
        block = self._loop if token.text in _LOOPS else blocks.get(token.text)
        if is_name or token.text == "function":
            block = self._function
        if block is None:  # it ends what has not begun
            return None
        self._n_nested += 1
        if self._n_nested > _MOST_NESTED or not self._ahead():
            raise OpenError(token.text, token.chars[0][1])
        node = block(token)
        self._n_nested -= 1
        self._simple()  # where it reads and writes
        return node

    def _simple(self) -> Simple:
        begun = self._at
        while self._ahead() and self._tokens[self._at].kind in ("word", "redirection"):
            self._at += 1
        found = self._tokens[begun : self._at]
        first = found[0].chars if found else ()
        return Simple(
            words=[one.chars for one in found if one.kind == "word"],
            targets=[one for one in found if one.kind == "redirection"],
            place=first[0][1] if first else -1,
        )

    def _group(self, opened: Token) -> Group:
        body = self.lines(opened, "}" if opened.text == "{" else ")")
        self._at += 1
        return Group(lines=body, is_shell=opened.text == "(")

    def _if(self, opened: Token) -> Choice:
        branches, part = list[Branch](), "if"
        while part != "fi":
            condition: Sequence[Line] = ()
            if part != "else":
                condition = self.lines(opened, "then")
                self._at += 1
            body = self.lines(opened, "elif", "else", "fi")
            branches.append(Branch(condition=condition, patterns=(), lines=body))
            part = self._take().text
        return Choice(place=opened.chars[0][1], name="if", word=[], branches=branches)

    def _case(self, opened: Token) -> Choice:
        branches, word = list[Branch](), self._take().chars
        while self._ahead() not in ("in", ""):
            self._at += 1
        self._at += 1
        self._pass("\n")
        while self._ahead() != "esac":
            patterns = list[Chars]()
            while self._ahead() not in (")", ""):
                token = self._take()
                patterns += [token.chars] * (token.kind != "sign")
            self._at += 1
            body = self.lines(opened, *_ENDS_OF_CASE, "esac")
            branches.append(Branch(condition=(), patterns=patterns, lines=body))
            self._pass(*_ENDS_OF_CASE, "\n")
        self._at += 1
        return Choice(place=opened.chars[0][1], name="case", word=word, branches=branches)

    def _loop(self, opened: Token) -> Loop:
        words = self._simple().words if opened.text in ("for", "select") else ()
        begun = self._at
        body = self.lines(opened, "done")
        size = self._size(begun)
        self._at += 1
        place, name = opened.chars[0][1], opened.text
        return Loop(place=place, name=name, words=words, lines=body, size=size)

    def _function(self, opened: Token) -> Function:
        name = opened.text if opened.text != "function" else self._take().text
        self._at += 2 * (self._ahead() == "(")
        self._pass("\n")
        begun, node = self._at, self._command()
        body = [] if node is None else [_alone(node)]
        return Function(name=name, lines=body, size=self._size(begun))

    def _size(self, begun: int) -> int:
        """Characters from a token on to the one that comes, with their here-documents."""
        tokens = self._tokens[begun : self._at]
        return sum(len(one.chars) + len(one.document or ()) for one in tokens)


def _alone(node: Node) -> Line:
    return Line(first=Pipeline(parts=[node], is_negated=False), rest=(), is_apart=False)
