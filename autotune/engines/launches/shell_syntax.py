"""The syntax of a shell file: its commands, and the blocks in which they stand.

What does not belong where it stands, as a lone `fi`, is passed over.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autotune.engines.launches.shell_words import ASSIGNS, DECLARES, NAME, Chars, plain, touched_by

LOOPS = ("for", "select", "while", "until")
_JOINTS = ("&&", "||")
_STRAY = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}"))
_MOST_NESTED = 60
"""Brackets or blocks in one another: no launch has more."""

_BLANK = re.compile(r"(?:(?:[ \t\r]|\\\r?\n|\\\Z)++|\#[^\n]*+)*+")
_SIGN = re.compile(r"&&|\|\||\|&?|;;&?|;&?|[\n&()]")
_REDIRECTS = re.compile(r"\d*(<<<|<<-?|>>|>&|<&|>\||<>|&>>?|[<>](?!\())[ \t]*")
_ARRAY = re.compile(rf"{NAME}\+?=\(")
_PLAIN = re.compile(r"[^\s;&|()<>'\"`\\$]*+")
_OPENS = re.compile(r"['\"`\\$]|[<>]\(")
_QUOTES = re.compile(r"['\"\\]")
_NAMED = re.compile(rf"\$(?:{NAME}|[\d@*#])?")
_ESCAPED = re.compile(r"\$'(?:[^'\\]|\\.)*+'", re.DOTALL)
_SUM = re.compile(r"\$(\(\(.*?\)\))")
_DEFAULT = re.compile(rf"\$\{{({NAME}):?=")
_INSIDE = {
    '"': re.compile(r'[^"\\`$]*+'),
    ")": re.compile(r"(?:[^()'\"\\`$\#]|(?<![\s(])\#|(?<=[\s(])\#[^\n]*+)*+"),
    "}": re.compile(r"[^{}'\"\\`$]*+"),
    "`": re.compile(r"[^`\\]*+"),
}
"""Sign that closes -> what stands before it and opens nothing."""


class OpenError(Exception):
    """Something that does not close; `at` is where it opens."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(f"the {text[at : at + 2].strip()} does not close, or is nested too deep")
        self.at = at


class Token(NamedTuple):
    """A word, a sign, or a redirection with the word behind it."""

    chars: Chars
    text: str
    """As it is written; of a redirection its sign."""
    is_word: bool = False
    document: Chars | None = None
    """The here-document that a redirection begins."""


class Simple(NamedTuple):
    """A simple command."""

    place: int
    words: Sequence[Chars]
    targets: Sequence[Token]
    """Its redirections."""


class Block(NamedTuple):
    """A compound command, a function, a pipe, or a command behind `!`."""

    place: int
    keyword: str
    branches: "Sequence[tuple[Sequence[Item], Sequence[Item]]]"
    """Conditions, none for `else`, and what runs where they hold."""
    names: Sequence[str] = ()
    """Variables that a loop sets."""


class Item(NamedTuple):
    """A command of a list."""

    joint: str
    """`&&` or `||` before it; empty: it runs whatever came of the last one."""
    node: Simple | Block


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
            raise OpenError(text, begun)
        if char == inside:
            closers.pop()
        elif char == "\\":
            step = 3 if text[at + 1 : at + 3] == "\r\n" else 2
        elif sign in ("$(", "<(", ">(", "${"):
            closers.append("}" if sign == "${" else ")")
            step = 2
        elif sign == "$'" and '"' not in "".join(closers).rpartition(")")[2]:
            if (found := _ESCAPED.match(text, at)) is None:
                raise OpenError(text, begun)
            step = found.end() - at
        elif char == "$" and (found := _NAMED.match(text, at)):
            step = found.end() - at
        elif char in '"`':
            closers.append(char)
        elif char == "'" and '"' not in "".join(closers).rpartition(")")[2]:
            step = text.find("'", at + 1) + 1 - at
            if step < 1:
                raise OpenError(text, begun)
        elif (char, inside) in (("(", ")"), ("(", ""), ("{", "}")):
            closers.append(")" if char == "(" else "}")
        at += step
        if not closers:
            return min(at, len(text))


def parsed(chars: Chars) -> list[Item]:
    """The commands of a text.

    Raises:
        OpenError: Something in it does not close.
    """
    return _Parser(_tokens(chars)).items()


def elements(chars: Chars) -> Sequence[Chars] | None:
    """The words in an assignment of an array; None: a word is none."""
    found = _ARRAY.match(plain(chars))
    if found is None:
        return None
    return [one.chars for one in _tokens(chars[found.end() : -1]) if one.is_word]


def simples(items: Sequence[Item]) -> Iterator[Simple]:
    """All simple commands among some, at any depth."""
    for _, node in items:
        if isinstance(node, Simple):
            yield node
            continue
        for condition, body in node.branches:
            yield from simples([*condition, *body])


def assigned(items: Sequence[Item]) -> Iterator[tuple[str, bool]]:
    """Variables that some commands set, and whether they only add to each."""
    for _, node in items:
        if isinstance(node, Block):
            yield from ((name, False) for name in node.names)
            for condition, body in node.branches:
                yield from assigned([*condition, *body])
            continue
        raws = [plain(word) for word in node.words]
        sums = [one for raw in raws for one in _SUM.findall(raw)]
        names = [*touched_by(raws), *(name for one in sums for name in touched_by([one]))]
        names += [name for raw in raws for name in _DEFAULT.findall(raw)]
        yield from ((name, False) for name in names)
        if all(map(ASSIGNS.match, raws)) or raws[0] in DECLARES:
            yield from ((one[1], bool(one[2])) for raw in raws if (one := ASSIGNS.match(raw)))


def _tokens(chars: Chars) -> list[Token]:
    text, at, found = plain(chars), 0, list[Token]()
    is_test, n_documented = False, 0
    while (blank := _BLANK.match(text, at)) and (at := blank.end()) < len(text):
        start, document = at, None
        if redirects := _REDIRECTS.match(text, at):
            start, at = redirects.end(), _word_end(text, redirects.end())
            document = Chars() if redirects[1] in ("<<", "<<-") else None
            sign, is_word = redirects[1], redirects[1] == "<<<"
        elif (signs := _SIGN.match(text, at)) and text[at : at + 2] != "((":
            at, sign = signs.end(), signs[0]
            is_word, is_test = is_test and sign != "\n", is_test and sign != "\n"
        else:
            at, is_word = _word_end(text, at), True
            sign = text[start:at]
            is_test = sign == "[[" or (is_test and sign != "]]")
        found.append(Token(chars[start:at], sign, is_word, document))
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


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    def items(self, *stops: str) -> list[Item]:
        """The commands up to a word or a sign, which is left, or to the end."""
        found, joint = list[Item](), ""
        while True:
            if (node := self._pipe(stops)) is not None:
                found.append(Item(joint, node))
                joint = ""
            sign = self._ahead()
            if not sign or sign in stops:
                return found
            self._at += 1
            if sign in _JOINTS and node is not None:
                joint = sign
            elif sign != "\n":
                joint = ""

    def _ahead(self, further: int = 0) -> str:
        """The next token, which is left, as it is written; empty: there is none."""
        at = self._at + further
        return self._tokens[at].text if at < len(self._tokens) else ""

    def _take(self, *expected: str) -> None:
        """Go past tokens, if they stand there."""
        for one in expected:
            self._at += self._ahead() == one

    def _take_lines(self) -> None:
        while self._ahead() == "\n":
            self._at += 1

    def _pipe(self, stops: Sequence[str]) -> Simple | Block | None:
        parts = []
        while (part := self._command(stops)) is not None:
            parts.append(part)
            if self._ahead() not in ("|", "|&"):
                break
            self._at += 1
            self._take_lines()
        if len(parts) < 2:
            return parts[0] if parts else None
        return Block(parts[0].place, "|", [((), [Item("", one)]) for one in parts])

    def _command(self, stops: Sequence[str]) -> Simple | Block | None:
        """The next command; None where a word or a sign ends the list."""
        while (word := self._ahead()) in _STRAY and word not in stops:
            self._at += 1
        if not word or word in stops:
            return None
        chars = self._tokens[self._at].chars
        place = chars[0][1] if chars else -1
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise OpenError(word, 0)
        block = self._block(word, stops, place)
        simple = self._simple(place)  # of a block, where it reads and writes
        self._depth -= 1
        return block or (simple if simple.words or simple.targets else None)

    def _block(self, word: str, stops: Sequence[str], place: int) -> Simple | Block | None:
        """A command that others stand in; None: it is a simple one."""
        if word in ("(", "{"):
            return Block(place, word, [((), self._within(word, ")" if word == "(" else "}"))])
        if word == "if":
            return Block(place, word, list(self._branches()))
        if word in LOOPS:
            self._take(word)
            names: Sequence[str] = ()
            if word in ("for", "select"):
                names = [plain(one) for one in self._simple(place).words[:1]]
                names = touched_by(names) if names and "((" in names[0] else names
            condition = self.items("do")
            return Block(place, word, [(condition, self._within("do", "done"))], names)
        if word == "case":
            self._simple(place)
            return Block(place, word, list(self._cases()))
        if word in ("!", "time"):
            self._take(word)
            inner = self._command(stops)
            if inner is None or word == "time":
                return inner
            return Block(place, word, [((), [Item("", inner)])])
        if word == "function":
            self._take(word)
        elif [self._ahead(1), self._ahead(2)] != ["(", ")"]:
            return None
        self._at += 1
        self._take("(", ")")
        self._take_lines()
        body = self._command(stops)
        return Block(place, "function", [((), [] if body is None else [Item("", body)])])

    def _within(self, begin: str, end: str) -> list[Item]:
        """The commands between two words or signs."""
        self._take(begin)
        found = self.items(end)
        self._take(end)
        return found

    def _branches(self) -> Iterator[tuple[Sequence[Item], Sequence[Item]]]:
        while (word := self._ahead()) in ("if", "elif"):
            condition = self._within(word, "then")
            yield condition, self.items("elif", "else", "fi")
        if word == "else":
            self._take(word)
            yield (), self.items("fi")
        self._take("fi")

    def _cases(self) -> Iterator[tuple[Sequence[Item], Sequence[Item]]]:
        ends = (";;", ";&", ";;&", "esac")
        while self._ahead() not in ("", "esac"):
            is_pattern = self._ahead() != ")"
            self._at += 1
            if not is_pattern:
                yield (), self.items(*ends)
                self._take(*ends[:-1])
        self._take("esac")

    def _simple(self, place: int) -> Simple:
        words, targets = list[Chars](), list[Token]()
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.is_word:
                words.append(token.chars)
            elif _REDIRECTS.fullmatch(token.text):
                targets.append(token)
            else:
                break
            self._at += 1
        return Simple(place, words, targets)
