"""The syntax of a shell file: its words, signs and redirections, and where what opens closes."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from autotune.engines.launches.shell_words import NAME, Chars, plain

LOOPS = ("for", "select", "while", "until")
_PIPES = ("|", "|&")
_BETWEEN = ("\n", ";", "&", "do")
"""What stands between commands, and before those of a loop."""
_ARM_ENDS = (";;", ";&", ";;&")
"""What ends an arm of a `case`; behind the last two it goes on."""
_BEFORE_NAMES = ("for", "select", "case", "function")
_KEYWORDS = frozenset(
    (
        *("if", "then", "elif", "else", "fi", "case", "esac", "do", "done", "function"),
        *("{", "}", "!", "time", *LOOPS),
    )
)
MOST_NESTED = 60
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
        sign = re.sub(r"^([$<>]?[^\w\s]).*", r"\1", sign.strip(), flags=re.DOTALL)
        super().__init__(f"the {sign} does not close, or is nested too deep")
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
        if not char or len(closers) > MOST_NESTED:
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
            sign, kind = redirects[1], "redirection"
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


class Simple(NamedTuple):
    """A simple command: its words, where it reads and writes, and where it begins."""

    words: Sequence[Chars]
    targets: Sequence[Token]
    place: int


class Choice(NamedTuple):
    """`if`, or `case` with its word and patterns; a branch without a condition is the `else`."""

    name: str
    place: int
    word: Chars
    """Empty: it is none, or an arm goes on into the next one (`;&`)."""
    branches: "Sequence[Branch]"


class Block(NamedTuple):
    """`{`, `(` (also what `|` starts), `&`, a loop with its condition first, or a function."""

    name: str
    place: int
    words: Sequence[Chars]
    """Those behind `for`, or the function's name."""
    lines: "Sequence[Line]"


Branch = tuple["Sequence[Line]", Sequence[Chars], "Sequence[Line]"]
"""The condition of an `if`, the patterns of a `case`, and what runs."""
Node = Simple | Choice | Block
Line = Sequence[tuple[str, bool, Sequence[Node]]]
"""Pipelines: the `&&` or `||` before each, whether `!` negates it, and its commands."""


def lines_of(chars: Chars) -> Sequence[Line]:
    """The commands of a text. What ends that has not begun is passed.

    Raises:
        OpenError: Something in it does not close.
    """
    return _Parser(tokens_of(chars)).lines()


class _Parser:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._opened: list[Token] = []
        """Those that begin the blocks here."""

    def _ahead(self, further: int = 0) -> str:
        """The token that comes, as it is written; empty: none does."""
        at = self._at + further
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _take(self) -> Token:
        """The token that comes; an `OpenError`: none does."""
        if self._at >= len(self._tokens):
            opened = self._opened[-1]
            raise OpenError(opened.text, opened.chars[0][1])
        self._at += 1
        return self._tokens[self._at - 1]

    def _pass(self, *texts: str) -> None:
        while self._ahead() in texts:
            self._at += 1

    def lines(self, *ends: str) -> Sequence[Line]:
        """Take lines up to what ends a block, or else to the end of the text."""
        found = list[Line]()
        while (text := self._ahead()) and text not in ends:
            if text in _BETWEEN:
                self._at += 1
                continue
            joint, line = "&&", list[tuple[str, bool, Sequence[Node]]]()
            while joint in ("&&", "||"):
                line.append((joint, *self._pipeline()))
                if (joint := self._ahead()) in ("&&", "||"):
                    self._at += 1
                    self._pass("\n")
            found.append(alone(_apart(line, "&")) if joint == "&" else line)
        if ends and not text:
            self._take()
        return found

    def _pipeline(self) -> tuple[bool, Sequence[Node]]:
        is_negated, parts, is_piped = False, list[Node](), True
        while self._ahead() in ("!", "time"):
            is_negated ^= self._take().text == "!"
        while is_piped:
            parts += self._command()
            if is_piped := self._ahead() in _PIPES:
                self._at += 1
                self._pass("\n")
        return is_negated, parts if len(parts) == 1 else [_apart(alone(one)) for one in parts]

    def _command(self) -> list[Node]:
        """Take a simple command, a block, or the definition of a function; nothing: it is none."""
        if not self._ahead():
            return []
        token = self._tokens[self._at]
        is_name = token.kind == "word" and [self._ahead(1), self._ahead(2)] == ["(", ")"]
        if token.kind in ("word", "redirection") and not is_name:
            return [self._simple()]
        self._at += 1
        blocks: dict[str, Callable[[Token], Node]] = {
            **{"if": self._if, "case": self._case, "{": self._group, "(": self._group},
            **dict.fromkeys(LOOPS, self._loop),
        }
        block = blocks.get(token.text)
        if is_name or token.text == "function":
            block = self._function
        if block is None:  # it ends what has not begun
            return []
        self._opened.append(token)
        if len(self._opened) > MOST_NESTED or not self._ahead():
            raise OpenError(token.text, token.chars[0][1])
        node = block(token)
        self._opened.pop()
        self._simple()  # where it reads and writes
        return [node]

    def _simple(self) -> Simple:
        begun = self._at
        while self._ahead() and self._tokens[self._at].kind in ("word", "redirection"):
            self._at += 1
        found = self._tokens[begun : self._at]
        words = [one.chars for one in found if one.kind == "word"]
        targets = [one for one in found if one.kind == "redirection"]
        first = found[0].chars if found else ()
        return Simple(words, targets, first[0][1] if first else -1)

    def _group(self, opened: Token) -> Block:
        lines = self.lines(")" if opened.text == "(" else "}")
        self._at += 1
        return Block(opened.text, opened.chars[0][1], (), lines)

    def _if(self, opened: Token) -> Choice:
        branches, part = list[Branch](), "if"
        while part != "fi":
            condition: Sequence[Line] = ()
            if part != "else":
                condition = self.lines("then")
                self._at += 1
            branches.append((condition, (), self.lines("elif", "else", "fi")))
            part = self._take().text
        return Choice("if", opened.chars[0][1], [], branches)

    def _case(self, opened: Token) -> Choice:
        branches = list[Branch]()
        word = self._take().chars
        while self._ahead() not in ("in", ""):
            self._at += 1
        self._at += 1
        self._pass("\n")
        while self._ahead() != "esac":
            patterns = list[Chars]()
            while self._ahead() != ")":
                token = self._take()
                patterns += [token.chars] * (token.kind != "sign")
            self._at += 1
            branches.append(((), patterns, self.lines(*_ARM_ENDS, "esac")))
            word = [] if self._ahead() in _ARM_ENDS[1:] else word
            self._pass(*_ARM_ENDS, "\n")
        self._at += 1
        return Choice("case", opened.chars[0][1], word, branches)

    def _loop(self, opened: Token) -> Block:
        words = self._simple().words if opened.text in ("for", "select") else ()
        lines = self.lines("done")
        self._at += 1
        return Block(opened.text, opened.chars[0][1], words, lines)

    def _function(self, opened: Token) -> Block:
        name = opened if opened.text != "function" else self._take()
        self._at += 2 * (self._ahead() == "(")
        self._pass("\n")
        lines = [alone(one) for one in self._command()]
        return Block("function", opened.chars[0][1], [name.chars], lines)


def alone(node: Node) -> Line:
    """A command as a line."""
    return [("&&", False, [node])]


def _apart(line: Line, name: str = "(") -> Block:
    return Block(name, -1, (), [line])
