"""The syntax of a shell file: its commands, and the blocks in which they stand.

What does not belong where it stands, as a lone `fi`, is passed over.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from autotune.engines.launches.shell_words import ASSIGNS, DECLARES, NAME, Chars, plain, touched_by

LOOPS = ("for", "select", "while", "until")
JOINTS = ("&&", "||")
_STRAY = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}"))
_MOST_NESTED = 60
"""Brackets or blocks in one another: no launch has more."""

_BLANK = re.compile(r"(?:(?:[ \t\r]|\\\r?\n|\\\Z)++|\#[^\n]*+)*+")
_SIGN = re.compile(r"&&|\|[|&]?|;;&?|;&?|[\n&()]")
_REDIRECTS = re.compile(r"\d*(<<<|<<-?|>>|>&|<&|>\||<>|&>>?|[<>](?!\())[ \t]*")
_ARRAY = re.compile(rf"{NAME}\+?=\(")
_KEYWORD = re.compile(r"[^\s;&|()<>]++")
_PLAIN = re.compile(r"[^\s;&|()<>'\"`\\$]*+")
_PARENTHESES = re.compile(r"[ \t]*\([ \t]*\)")
_QUOTES = re.compile(r"['\"\\]")
_NAMED = re.compile(rf"\$(?:{NAME}|\d)?")
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


class Redirection(NamedTuple):
    """What a command reads or writes."""

    sign: str
    word: Chars
    document: Chars
    """The here-document that it begins."""


class Simple(NamedTuple):
    """A simple command."""

    place: int
    words: Sequence[Chars]
    targets: Sequence[Redirection]


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
    return _Parser(chars).items()


def elements(chars: Chars) -> Sequence[Chars] | None:
    """The words in an assignment of an array; None: a word is none."""
    found = _ARRAY.match(plain(chars))
    return None if found is None else _Parser(chars[found.end() : -1]).words()


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


class _Parser:
    def __init__(self, chars: Chars) -> None:
        self._chars, self._text, self._at = chars, plain(chars), 0
        self._depth = 0
        self._documents: list[Redirection] = []
        """Those whose text begins in the next line."""

    def items(self, *stops: str) -> list[Item]:
        """The commands up to a word or a sign, which is left, or to the end."""
        found, joint = list[Item](), ""
        while True:
            node = self._pipe(stops)
            if node is not None:
                found.append(Item(joint, node))
                joint = ""
            sign = self._sign()
            if not sign or sign[:2] in stops:
                return found
            self._take(sign)
            if sign in JOINTS and node is not None:
                joint = sign
            elif sign != "\n":
                joint = ""

    def words(self) -> list[Chars]:
        """All words of a text that holds no commands."""
        found = list[Chars]()
        while self._at < len(self._text):
            found += self._simple(-1).words
            self._at += 1
        return found

    def _pipe(self, stops: tuple[str, ...]) -> Simple | Block | None:
        parts = []
        while (part := self._command(stops)) is not None:
            parts.append(part)
            if self._sign() not in ("|", "|&"):
                break
            self._take(self._sign())
            self._take_lines()
        if len(parts) < 2:
            return parts[0] if parts else None
        return Block(parts[0].place, "|", [((), [Item("", one)]) for one in parts])

    def _command(self, stops: tuple[str, ...]) -> Simple | Block | None:
        """The next command; None where a word or a sign ends the list."""
        while (word := self._word_ahead()) in _STRAY and word not in stops:
            self._at += len(word)
        if word in stops or self._at == len(self._text):
            return None
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise OpenError(self._text, self._at)
        place = self._chars[self._at][1]
        block = self._block(word, stops, place)
        simple = self._simple(place)  # of a block, where it reads and writes
        self._depth -= 1
        return block or (simple if simple.words or simple.targets else None)

    def _block(self, word: str, stops: tuple[str, ...], place: int) -> Simple | Block | None:
        """A command that others stand in; None: it is a simple one."""
        if not word and self._text[self._at] == "(" != self._text[self._at + 1 : self._at + 2]:
            return Block(place, "(", [((), self._within("(", ")"))])
        if word == "{":
            return Block(place, word, [((), self._within(word, "}"))])
        if word == "if":
            return Block(place, word, list(self._branches()))
        if word in LOOPS:
            names: Sequence[str] = ()
            if word in ("for", "select"):
                self._take(word)
                header = [plain(one) for one in self._simple(place).words[:1]]
                names = touched_by(header) if "((" in "".join(header) else header
            condition = self._within("" if names else word, "do", is_left=True)
            return Block(place, word, [(condition, self._within("do", "done"))], names)
        if word == "case":
            self._take(word)
            self._simple(place)
            return Block(place, word, list(self._cases()))
        if word in ("!", "time"):
            self._take(word)
            inner = self._command(stops)
            is_other = inner is None or word == "time"
            return inner if is_other else Block(place, word, [((), [Item("", inner)])])
        if word == "function":
            self._take(word)
            word = self._word_ahead()
        elif not word or word[-1] == "=" or not self._is_defined(word):
            return None
        self._take(word)
        if (found := _PARENTHESES.match(self._text, self._at)) is not None:
            self._at = found.end()
        self._take_lines()
        body = self._command(stops)
        return Block(place, "function", [((), [] if body is None else [Item("", body)])])

    def _is_defined(self, name: str) -> bool:
        return _PARENTHESES.match(self._text, self._at + len(name)) is not None

    def _within(self, begin: str, end: str, *, is_left: bool = False) -> list[Item]:
        """The commands between two words or signs, of which the second may be left."""
        self._take(begin)
        found = self.items(end)
        if not is_left:
            self._take(end)
        return found

    def _branches(self) -> Iterator[tuple[Sequence[Item], Sequence[Item]]]:
        while (word := self._word_ahead()) in ("if", "elif"):
            condition = self._within(word, "then")
            yield condition, self.items("elif", "else", "fi")
        if word == "else":
            self._take(word)
            yield (), self.items("fi")
        self._take("fi")

    def _cases(self) -> Iterator[tuple[Sequence[Item], Sequence[Item]]]:
        self._take_lines()
        while self._at < len(self._text) and self._word_ahead() != "esac":
            while (sign := self._sign()) not in (")", ""):
                self._take(sign)  # `|` between two patterns
            if not sign and not self._simple(-1).words:
                self._at += 1
            if self._sign() == ")":
                self._take(")")
                yield (), self.items(";;", ";&", "esac")
                self._take(self._sign())
                self._take_lines()
        self._take("esac")

    def _simple(self, place: int) -> Simple:
        words, targets = list[Chars](), list[Redirection]()
        while True:
            self._skip()
            if (sign := _REDIRECTS.match(self._text, self._at)) is not None:
                self._at = sign.end()
                target = Redirection(sign[1], self._word(), [])
                if sign[1] == "<<<":
                    words.append(target.word)
                else:
                    targets.append(target)
                    self._documents += [target] if sign[1] in ("<<", "<<-") else []
            elif word := self._word():
                words.append(word)
            elif words and plain(words[0]) == "[[" and plain(words[-1]) != "]]":
                sign = _SIGN.match(self._text, self._at)
                if sign is None or (sign[0] == "\n" and plain(words[-1]) not in JOINTS):
                    return Simple(place, words, targets)
                words.append(self._chars[self._at : sign.end()])
                self._at = sign.end()
            else:
                return Simple(place, words, targets)

    def _word(self) -> Chars:
        """The next word; empty: there is none."""
        text, start = self._text, self._at
        if (array := _ARRAY.match(text, start)) is not None:
            self._at = end_of(text, array.end() - 1)
        elif text.startswith("((", start):
            self._at = end_of(text, start)
        while (found := _PLAIN.match(text, self._at)) is not None:
            self._at = found.end()
            sign = text[self._at : self._at + 2]
            if sign[:1] not in ("'", '"', "`", "\\", "$") and sign not in ("<(", ">("):
                break
            self._at = end_of(text, self._at)
        return self._chars[start : self._at]

    def _word_ahead(self) -> str:
        """The next word, which is left; empty where a sign stands."""
        self._skip()
        found = _KEYWORD.match(self._text, self._at)
        return found[0] if found else ""

    def _sign(self) -> str:
        """The sign that ends a command, which is left; empty: a word or the end stands there."""
        self._skip()
        found = _SIGN.match(self._text, self._at)
        return found[0] if found else ""

    def _skip(self) -> None:
        found = _BLANK.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _take(self, expected: str) -> None:
        """Go past a word or a sign, if it stands there, and past the here-documents of a line."""
        self._skip()
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            if expected == "\n":
                self._take_documents()

    def _take_lines(self) -> None:
        while self._sign() == "\n":
            self._take("\n")

    def _take_documents(self) -> None:
        for _, word, document in self._documents:
            last = re.escape(_QUOTES.sub("", plain(word)))
            end = re.compile(rf"^[ \t]*{last}[ \t\r]*$", re.M).search(self._text, self._at)
            document += self._chars[self._at : end.start() if end else len(self._text)]
            self._at = min(end.end() + 1, len(self._text)) if end else len(self._text)
        self._documents = []
