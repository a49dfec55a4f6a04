"""A shell file: its simple commands as words, each with its place in the text.

It is read and not run. Known are quotes, line continuations, here-documents, assignments, arrays,
`+=`, `${X:-default}`, sums, tests of words and numbers, texts for another shell (`bash -c`,
`eval`), files that are sourced, and folders (`$PWD`, `$(dirname "$0")`). All else stays as it is
written, and the commands say why.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from autotune.base.errors import JobError, RenderError
from autotune.base.flags import flag
from autotune.base.text import named
from autotune.base.user_text import read_text
from autotune.engines.launches.files import SHELL_SUFFIXES, is_shell, may_launch
from autotune.engines.launches.shell_syntax import (
    LOOPS,
    Block,
    Item,
    OpenError,
    Simple,
    Token,
    assigned,
    elements,
    end_of,
    parsed,
    simples,
)
from autotune.engines.launches.shell_words import (
    ASSIGNS,
    DECLARES,
    NAME,
    OPTION_READERS,
    UNKNOWN,
    Chars,
    Field,
    Value,
    Word,
    at_blanks,
    chars_of_escapes,
    joined,
    plain,
    split,
    sum_of,
    touched_by,
    truth_of,
    unplaced,
)

_PIECE = re.compile(r"""(\\\r?\n)|\\([\s\S])|'([^']*)'|(")|([$`])|[^\\'"$`]+|.""", re.S)
_NAMED = re.compile(rf"\$(?:({NAME}|[\d@*#])|\{{({NAME}|\d+)(\[[@*0]\])?(?:(:?[-=])([\s\S]*))?}})")
_IN_DOCUMENTS = re.compile(r"\\[$`\\]|\$(?:\w|\{|\(\()")
_VARIABLES = re.compile(rf"\$\{{?({NAME})")
_UNKNOWN_FOLDERS = re.compile(r".*[$`][^/]*/")
_SHELLS = ("bash", "sh", "zsh", "ksh", "dash")
_STARTERS = (*_SHELLS, "exec", "nohup", "sbatch", "srun")
"""Commands that start a shell file."""
_ALL_GIVEN = {"$@", "$*"}
_ELSEWHERE = ("ssh", "pdsh", "clush", "tmux", "screen")
"""Commands whose last word is a text for a shell: of another machine, or another terminal."""
_STARTS_NOTHING = ("echo", "printf", "cd", "mkdir", "set", "shift", "exit", "return", "sleep")
_FOLDER_FLAGS = ("--", "-P", "-L", "-f", "-e")
"""Flags of `cd`, `pwd` and their like after which a folder is the same one."""
_FOLDERS_ABOVE = 3
"""Folders, with the script's, in which a file is looked for whose own only the shell knows."""
_MOST_DEEP = 6
"""Texts that read one another, at most."""
_MOST_PUT = 2**20
"""Characters that variables put into a file, at most: each line may double what one holds."""

_Changes = dict[str, Value | None]
"""Variable -> what it holds; None: it is not set."""


class _Truth(NamedTuple):
    """Whether a command holds."""

    holds: bool | None
    """None: only the shell knows."""
    may_differ: bool = False
    """Whether values that may be others decide that."""


_OPEN = _Truth(None)
_TRUTHS = {"true": True, ":": True, "false": False}
"""Commands that say it by their names."""


class _Branch(NamedTuple):
    """What was gone through under a condition."""

    runs: bool | None
    """None: only the shell knows."""
    may_differ: bool
    """Whether values that may be others decide that."""
    changes: _Changes
    truth: _Truth = _OPEN


@dataclass(frozen=True, kw_only=True)
class Command:
    """A simple command."""

    words: tuple[Word, ...]
    start: int
    """Where its first word, or the first variable before it, begins."""
    variables: Mapping[str, Word] = field(default_factory=dict)
    """Those of its environment that the file sets: the value and where it is written."""
    within: tuple[str, ...] = ()
    """The command that hands it to a shell as a text; empty: it stands in the file itself."""
    unread: tuple[str, ...] = ()
    """Why words of it are not known, or may be others: lines that decide, files not read."""

    @property
    def unread_because(self) -> str:
        """Why not all of it is known, in one line with the way out; empty: all is."""
        return f"{named(self.unread, '; ', most=3)}: say the launch with {flag('launch')}" * any(
            self.unread
        )

    @property
    def cost_of_lost(self) -> str:
        """What a shell makes of it where a lost backslash has cut off this line of flags."""
        flags = ", ".join(word.text for word in self.words if word.text.startswith("--"))
        return (
            f"the shell takes {self.words[0].text} for a command and does not find it; the "
            f"training starts without {flags}"
        )


@dataclass(frozen=True, kw_only=True)
class ShellText:
    """A shell file."""

    commands: tuple[Command, ...]
    sourced: tuple[Path, ...]
    """Files that it sources, and whose variables it has from there on."""
    written: Mapping[str, str]
    """Path, as `os.path.normpath` has it -> the text that a here-document writes there. It stands
    on the lines that it has in the file."""

    def lost_below(self, command: Command) -> Command | None:
        """The command behind another one if it begins with a flag: that one has lost its end."""
        below = self.commands[self.commands.index(command) + 1 :][:1]
        return next((one for one in below if one.words[0].text.startswith("--")), None)


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
    held: _Changes = {name: Value([unplaced(one)]) for name, one in known.items()}
    reader = _Reader(text, held, {path.resolve()})
    try:
        reader.read(list(zip(text, range(len(text)), strict=True)), path if follows else None)
    except OpenError as error:
        line = text.count("\n", 0, error.at) + 1
        raise JobError(f"{path}:{line}: {error}", "close it") from error
    return ShellText(
        commands=tuple(reader.commands),
        sourced=tuple(dict.fromkeys(reader.sourced)),
        written=reader.written,
    )


class _Reader:
    """Goes through commands, and holds the variables as they are where each stands."""

    def __init__(self, text: str, held: _Changes, files: Set[Path] = frozenset()) -> None:
        self._text = text
        self._files = files
        """The file that is read, and those that start it."""
        self._file = ""
        """The file that is read in a shell of its own, in words; empty: it is the text."""
        self._scopes = [held]
        """Variables, and what each open block has changed of them."""
        self._exported: dict[str, None] = {}
        self._n_certain = 0
        """Scopes, from the first on, whose values may be others where a function is called."""
        self.commands: list[Command] = []
        self.sourced: list[Path] = []
        self.written: dict[str, str] = {}
        self._gone: list[str] = []
        """Files that it sources and that are not read, in words."""
        self._path: Path | None = None
        """The file that is read, or that holds the text; None: none that it sources is read."""
        self._within: tuple[str, ...] = ()
        """The command that hands on the text that is read."""
        self._deciders: list[str] = []
        """What decides the values that are put into the command."""
        self._text_deciders: list[str] = []
        """What decides the text that is read, where a command hands it on."""
        self._is_handed = False
        """Whether that text may be another."""
        self._is_aside = False
        """Whether what stands here runs only if values are others."""
        self._depth = self._n_put = self._n_differing = 0

    def read(self, chars: Chars, path: Path | None, within: tuple[str, ...] = ()) -> None:
        """Take all commands of a text.

        Args:
            chars: The text.
            path: The file that it is, or that holds it; None: files that it sources are not read.
            within: The command that hands it on.

        Raises:
            OpenError: Something in it does not close.
        """
        items = parsed(chars)
        before = self._path, self._within
        self._path, self._within, self._depth = path, within, self._depth + 1
        self._list(items)
        (self._path, self._within), self._depth = before, self._depth - 1

    def _get(self, name: str) -> Value | None:
        for number in range(len(self._scopes) - 1, -1, -1):
            if name in self._scopes[number]:
                value = self._scopes[number][name]
                return value and value.differing(number < self._n_certain)
        return None

    def _put(self, name: str, value: Value | None) -> None:
        """Let a variable hold a value; None: it is not set."""
        self._scopes[-1][name] = value

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._put(name, Value())

    def _names(self) -> Iterable[str]:
        return dict.fromkeys(name for scope in self._scopes for name in scope)

    def _given(self, name: str) -> Value | None:
        """What `$1`, `$#` or `$@` is; a file that nobody is seen to start has no words."""
        words = self._get("@")
        if name == "#" and words is None:
            return Value([unplaced("0")], may_differ=True)
        if words is None or words.items is None or name in "@*":
            return words
        sure = [one for one in words.items if plain(one) not in _ALL_GIVEN]
        sure = [unplaced(str(len(sure)))] if name == "#" else sure[int(name) - 1 :][:1]
        return Value(sure, may_differ=words.may_differ) if sure else None

    def _line(self, place: int) -> str:
        number = self._text.count("\n", 0, max(0, place)) + 1
        return self._file or (f"line {number}" if place >= 0 else "a file that it sources")

    def _why(self, keyword: str, place: int) -> str:
        return f"{self._line(place)} decides by `{keyword}`"

    def _list(self, items: Sequence[Item]) -> _Truth:
        truth, place = _Truth(True), -1
        for joint, node in items:
            if joint:
                runs = None if truth.holds is None else truth.holds is (joint == "&&")
                branch = self._branch(partial(self._node, node), runs, truth.may_differ)
                self._merge([branch], self._why(joint, place))
                holds = branch.truth.holds if runs else truth.holds if runs is False else None
                truth = _Truth(holds, truth.may_differ or branch.truth.may_differ)
            else:
                truth = self._node(node)
            place = node.place
        return truth

    def _branch(self, run: Callable[[], _Truth], runs: bool | None, may_differ: bool) -> _Branch:
        """Go through what runs, or may, and keep its changes apart."""
        if runs is False and not may_differ:
            return _Branch(runs, may_differ, {})
        before = self._is_aside
        self._is_aside = before or runs is False
        truth, changes = self._apart(run)
        self._is_aside = before
        return _Branch(runs, may_differ, changes, truth)

    def _apart(
        self, run: Callable[[], _Truth], given: _Changes | None = None
    ) -> tuple[_Truth, _Changes]:
        """Go through commands from some changes on: what came of it, and all that it changes."""
        self._scopes.append(given or {})
        truth = run()
        return truth, self._scopes.pop()

    def _merge(self, branches: Sequence[_Branch], why: str, *, is_all: bool = False) -> None:
        """Let variables hold what is left by branches of which one runs, or unless `is_all` none.

        Of one that runs only if values are others stays that what it changes may differ.
        """
        may_differ = any(branch.may_differ for branch in branches)
        n_open = sum(branch.runs is None for branch in branches)
        changed: dict[str, list[tuple[bool | None, Value | None]]] = {}
        for branch in branches:
            for name, value in branch.changes.items():
                changed.setdefault(name, []).append((branch.runs, value))
        for name, ends in changed.items():
            before = self._get(name)
            held = next((value for runs, value in ends if runs), before)
            if n_open:
                open_ = [value for runs, value in ends if runs is None]
                is_kept = not is_all or len(open_) < n_open
                held = _one_of(name, before, [*open_, *([before] if is_kept else ())], why)
            self._put(name, held and held.differing(may_differ))

    def _node(self, node: Simple | Block) -> _Truth:
        if isinstance(node, Simple):
            return self._simple(node)
        first = node.branches[0][1] if node.branches else ()
        if node.keyword in ("{", "!"):
            truth = self._list(first)
            is_other = node.keyword == "!" and truth.holds is not None
            return truth._replace(holds=not truth.holds) if is_other else truth
        if node.keyword in ("(", "|"):  # each in a shell of its own
            for _, body in node.branches:
                self._apart(partial(self._list, body))
        elif node.keyword == "function":
            before, self._n_certain = self._n_certain, len(self._scopes)
            _, changes = self._apart(partial(self._list, first), {"@": Value()})
            changes.pop("@", None)
            self._n_certain = before
            # Whether it is called is not followed: a variable with another value may keep it.
            others = {n: v for n, v in changes.items() if self._get(n) not in (None, v)}
            given = {name: value for name, value in changes.items() if name not in others}
            self._merge([_Branch(True, True, given)], "")
            self._merge([_Branch(None, True, others)], self._why("function", node.place))
        elif node.keyword in LOOPS:
            self._loop(node)
        else:
            self._choice(node)
        return _OPEN

    def _loop(self, node: Block) -> None:
        why, given = self._why(node.keyword, node.place), _Changes()
        for name, is_added in assigned([Item("", node)]):
            before = given.get(name, self._get(name))
            given[name] = _added(name, before, why) if is_added and before else Value(why=why)
        condition, body = node.branches[0]
        _, changes = self._apart(partial(self._list, [*condition, *body]), given)
        begun = {plain(one.words[0]) for one in simples([*condition, *body]) if one.words}
        if begun.isdisjoint(OPTION_READERS) or (self._file and self._scopes[0].get("@")):
            self._merge([_Branch(None, False, changes)], why)
            return
        # It reads the options of the file, which is read as it is started without one.
        for name in changes.keys() - {"@"}:
            value = self._get(name) or Value()
            self._put(name, value._replace(why=value.why or why, may_differ=True))

    def _choice(self, node: Block) -> None:
        """Go through an `if` or a `case`."""
        is_if, branches = node.keyword == "if", list[_Branch]()
        has_run: bool | None = False
        may_differ = False
        for condition, body in node.branches:
            truth = self._list(condition) if condition else _Truth(is_if or None)
            runs = None if has_run is None else truth.holds
            runs = False if has_run or truth.holds is False else runs
            differs = may_differ if has_run else truth.may_differ
            branches.append(self._branch(partial(self._list, body), runs, differs))
            has_run = runs if has_run is False else has_run
            may_differ = may_differ or truth.may_differ
        is_all = is_if and bool(node.branches) and not node.branches[-1][0]
        self._merge(branches, self._why(node.keyword, node.place), is_all=is_all)

    def _simple(self, node: Simple) -> _Truth:
        self._deciders = [*self._text_deciders]
        fields = [self._element(word) for word in node.words]
        targets = [(one, self._field(one.chars, is_split=False)) for one in node.targets]
        if fields and not self._sets(fields) and not self._sources(fields):
            self._runs(fields)
        self._document(fields, targets)
        if fields and fields[0].raw in _TRUTHS:
            return _Truth(_TRUTHS[fields[0].raw])
        if len(fields) < 2 or fields[0].raw not in ("[", "[["):
            return _OPEN
        return _Truth(truth_of(fields), any(one.may_differ for one in fields))

    def _element(self, chars: Chars) -> Field:
        """A word of a command, or an assignment with it."""
        raw, before = plain(chars), self._n_differing
        if raw.startswith("(("):
            return Field(raw, [chars], chars[0][1])
        if (inside := elements(chars)) is None:
            return self._field(chars, is_split=not ASSIGNS.match(raw))
        items = [item for one in inside for item in self._field(one).items]
        return Field(raw, items, chars[0][1], True, self._n_differing > before)

    def _field(self, chars: Chars, *, is_split: bool = True) -> Field:
        """A word without its quotes, with the variables of the file."""
        raw, at, is_quoted, before = plain(chars), 0, False, self._n_differing
        done: list[Chars] = []
        word: Chars | None = None
        while (found := _PIECE.match(raw, at)) is not None:
            continued, escaped, single, quote, expands = found.groups()
            start, at = at, found.end()
            if continued:
                continue
            part = chars[start:at]
            if expands:
                with contextlib.suppress(OpenError):
                    at = start + 1 if is_quoted and raw[at:][:1] == "'" else end_of(raw, start)
                part = chars[start:at]
                if (values := self._put_in(part)) is not None:
                    if not is_split or (is_quoted and re.search(r"\[\*\]|\$\*", plain(part))):
                        values = joined(values)
                    is_whole = is_quoted or not is_split or plain(part[:2]) == "$'"
                    pieces = values if is_whole else split(values, joins=word is not None)
                    for number, piece in enumerate(pieces):
                        if number and word is not None:
                            done.append(word)
                            word = None
                        if piece or is_quoted:
                            word = (word or []) + piece
                    continue
            if quote:
                is_quoted, part = not is_quoted, []
            elif single is not None and is_quoted:
                at, part = start + 1, part[:1]
            elif single is not None:
                part = part[1:-1]
            elif escaped and (not is_quoted or escaped in '$`"\\'):
                part = part[1:]
            word = (word or []) + part
        items = done if word is None else [*done, word]
        place = chars[0][1] if chars else -1
        return Field(raw, items, place, may_differ=self._n_differing > before)

    def _document(self, fields: Sequence[Field], targets: Sequence[tuple[Token, Field]]) -> None:
        """Keep the here-documents of a command, where they go to a file or a variable."""
        files = [word.text for target, word in targets if target.text in (">", ">|")]
        command = fields[0].raw if fields else ""
        name = files[-1] if files else fields[-1].text if command == "tee" else ""
        path = os.path.normpath(name)
        for target, word in targets:
            if target.document is None:
                continue
            is_literal = word.raw[:1] in ("'", '"', "\\")
            body = target.document if is_literal else self._filled_in(target.document)
            if name and not (self._is_aside and path in self.written):
                above = max(0, target.document[0][1]) if target.document else 0
                self.written[path] = "\n" * self._text.count("\n", 0, above) + plain(body)
            elif command == "read" and not name:
                self._put(fields[-1].text, Value([body]))

    def _filled_in(self, chars: Chars) -> Chars:
        """A here-document with the variables put in that it names."""
        text, last, found = plain(chars), 0, Chars()
        while (one := _IN_DOCUMENTS.search(text, last)) is not None:
            start, end = one.start(), one.end()
            with contextlib.suppress(OpenError):
                end = end_of(text, start)
            part = chars[start:end]
            value = part[1:] if one[0][0] == "\\" else self._field(part, is_split=False).chars
            found += [*chars[last:start], *value]
            last = end
        return [*found, *chars[last:]]

    def _put_in(self, chars: Chars) -> list[Chars] | None:
        """What an expansion stands for; None: only the shell knows."""
        raw = plain(chars)
        if raw.startswith("$'"):
            decoded = chars_of_escapes(chars[2:-1])
            return None if decoded is None else [decoded]
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
        held = self._given(name) if name in "@*#" or name.strip("0").isdigit() else self._get(name)
        if held is None and sign is not None:
            default = self._field(chars[found.start(5) : found.end(5)], is_split=False).chars
            self._n_differing += 1
            if "=" in sign:
                self._put(name, Value([default], may_differ=True))
            return [default]
        if held is None or held.items is None:
            return None
        is_whole = held.is_array and (found[3] or name).strip("[]") in ("@", "*")
        items = held.items if is_whole else held.items[:1]
        self._n_differing += held.may_differ
        self._deciders.append(held.why)
        self._n_put += sum(len(item) + 32 for item in items)
        return items if self._n_put <= _MOST_PUT else None

    def _folder(self, chars: Chars) -> str | None:
        """What commands print that only ask for a folder; None: they are others.

        `pwd`, `dirname "$0"`, `cd "$(dirname "$0")/.." && pwd`.
        """
        if self._depth > _MOST_DEEP:
            return None
        inside = _Reader(self._text, {name: self._get(name) for name in self._names()})
        inside._depth = self._depth + 1
        with contextlib.suppress(OpenError):
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

    def _sets(self, fields: Sequence[Field]) -> bool:
        """Take a line that only sets variables, or asks; whether it is one."""
        names = [one.raw for one in fields]
        touched = touched_by(names)
        self._forget(touched)
        if names[0] == "unset":
            for name in touched:
                self._put(name, None)
        if names[0] == "read":  # what a here-document gives it, is held where that stands
            if len(names) == 4 and names[1] in ("-a", "-ra", "-ar"):
                items = [chars for chars in at_blanks(fields[3].chars) if chars]
                self._put(names[2], Value(items, True, may_differ=fields[3].may_differ))
            return True
        if touched or names[0].startswith("(("):
            return True
        is_declared = names[0] in DECLARES
        if not is_declared and not all(map(ASSIGNS.match, names)):
            return names[0] in (":", "[", "[[")  # ${X:=default} has set where it was put in
        for one in fields[is_declared:]:
            if (found := ASSIGNS.match(one.raw)) is not None:
                self._assign(found[1], one, is_added=bool(found[2]))
            if is_declared:
                self._exported[found[1] if found else one.raw] = None
        return True

    def _assign(self, name: str, given: Field, *, is_added: bool) -> None:
        value = Value(given.items, True) if given.is_array else Value([given.value])
        before = self._get(name) if is_added else None
        if before is not None and before.items is not None and value.items is not None:
            items = [*before.items, *value.items]
            if not before.is_array:
                items = [[char for item in items for char in item]]
            value = before._replace(items=items)
        elif before is not None:
            value = before
        elif not given.is_array and re.search(r"\$\(|`", plain(given.value)):
            value = Value()  # what a program says
        why = next(filter(None, self._deciders), value.why)
        self._put(name, value.differing(given.may_differ)._replace(why=why))

    def _sources(self, fields: Sequence[Field]) -> bool:
        """Read a file that a line sources; whether it does."""
        path = self._path
        if path is None or len(fields) < 2 or fields[0].raw not in ("source", "."):
            return False
        name, commands, outer = fields[1].text, self.commands, self._get("BASH_SOURCE")
        found = _sourced(name, path)
        try:
            if found is None or self._depth >= _MOST_DEEP:
                raise RenderError(f"{name}: is not there", "")
            self.commands, chars = [], unplaced(read_text(found))
            self._put("BASH_SOURCE", Value([unplaced(str(found))]))
            self.sourced.append(found)
            self.read(chars, found)
        except (RenderError, OpenError):
            self._gone.append(f"{name}, which {self._line(fields[0].place)} sources, is not read")
            for each in self._names():
                if (value := self._get(each)) is not None:
                    self._put(each, value.differing(True))
        finally:
            self.commands = commands
            self._put("BASH_SOURCE", outer)
        return found is not None

    def _runs(self, fields: Sequence[Field]) -> None:
        """Take a command, or those in the text that it hands to a shell."""
        n_set = next(at for at, one in enumerate(fields) if not ASSIGNS.match(one.raw))
        rest, variables = fields[n_set:], dict[str, Word]()
        words = tuple(one.word(chars) for one in rest for chars in one.items)
        if not words:
            return
        for name in self._exported if rest[0].text not in _STARTS_NOTHING else ():
            if (held := self._get(name)) is not None and held.items is not None:
                variables[name] = rest[0].word([char for item in held.items for char in item])
        own = {one.raw.partition("=")[0]: one.word(one.value) for one in fields[:n_set]}
        texts = tuple(word.text for word in words)
        if texts[0] == "eval":
            parts = [[*chars, (" ", -1)] for one in rest for chars in one.items][1:]
            may_differ = any(one.may_differ for one in rest)
            self._hands_on(Field("", parts, fields[0].place, may_differ=may_differ), ("eval",))
            return
        if texts[0] == "cd" and len(texts) == 2:
            here = os.path.join(self._field(unplaced("$PWD")).text, texts[1])
            is_known = UNKNOWN.search(here) is None
            self._put("PWD", Value([unplaced(os.path.normpath(here))] if is_known else None))
        names = _VARIABLES.findall(" ".join([*texts, *(one.text for one in own.values())]))
        held_values = [(name, self._get(name)) for name in names]
        unread = [*self._deciders, *(held.why for _, held in held_values if held)]
        may_differ = self._is_handed or any(one.may_differ for one in fields)
        if may_differ or any(held is None for _, held in held_values):
            unread += self._gone
        made = Command(
            words=words,
            start=fields[0].place,
            variables=variables | own,
            within=self._within,
            unread=tuple(dict.fromkeys(filter(None, unread))),
        )
        self.commands.append(made)
        handed = [
            one
            for shell, option, one in zip(rest, rest[1:], rest[2:], strict=False)
            if shell.text.rpartition("/")[2] in _SHELLS and re.fullmatch(r"-\w*c", option.text)
        ]
        if not handed and texts[0] in _ELSEWHERE and " " in texts[-1]:
            handed = [rest[-1]]
        for one in handed:
            self._scopes.append({"@": Value()})
            self._hands_on(one, texts)
            self._scopes.pop()
        self._starts(made)

    def _starts(self, command: Command) -> None:
        """Read a shell file that a command starts, in a shell of its own."""
        texts = [word.text for word in command.words]
        names = [text.rpartition("/")[2] for text in texts]
        at = next((at for at, one in enumerate(texts) if one.endswith(SHELL_SUFFIXES)), None)
        if at is None:
            at = next((at for at, name in enumerate(names[:-1], 1) if name in _SHELLS), 0)
        is_started = any(name in _STARTERS for name in names[:at]) or (
            not at and {*"/."} & {*texts[0]}
        )
        if self._path is None or not is_started or self._depth >= _MOST_DEEP:
            return
        path = _sourced(texts[at], self._path)
        if path is None or path.resolve() in self._files:
            return
        given = {name: word.text for name, word in command.variables.items()}
        given |= {"0": str(path), "BASH_SOURCE": str(path), "PWD": "."}
        held: _Changes = {name: Value([unplaced(one)]) for name, one in given.items()}
        words, own = texts[at + 1 :], self._get("@")
        is_open = bool(own and own.items is None and _ALL_GIVEN & {*words})
        is_open = is_open or any("[@]" in one for one in words)
        if is_open or {*words} - _ALL_GIVEN:
            items = None if is_open else [unplaced(one) for one in words]
            held["@"] = Value(items, True, may_differ=any(map(UNKNOWN.search, words)))
        inside = _Reader(self._text, held, self._files | {path.resolve()})
        inside._file = f"{path}, which {self._line(command.start)} starts,"
        inside._depth = self._depth
        with contextlib.suppress(RenderError, OpenError):
            text = read_text(path)
            if is_shell(text, path) and may_launch(path):
                inside.read([(char, command.start) for char in text], path, tuple(texts))
                self.sourced += [path, *inside.sourced]
                self.commands += inside.commands

    def _hands_on(self, text: Field, within: tuple[str, ...]) -> None:
        """Read a text that a command hands to a shell; one that does not close is left."""
        if self._depth < _MOST_DEEP:
            chars = [(char, at if at >= 0 else text.place) for char, at in text.chars]
            before = self._is_handed, self._text_deciders
            self._is_handed, self._text_deciders = (
                self._is_handed or text.may_differ,
                self._deciders,
            )
            with contextlib.suppress(OpenError):
                self.read(chars, self._path, within)
            self._is_handed, self._text_deciders = before


def _one_of(name: str, before: Value | None, values: Sequence[Value | None], why: str) -> Value:
    """A variable that holds one of some values: it, or what all of them begin with."""
    texts = [None if one is None else one.texts for one in values]
    first, begin = values[0], None if before is None else before.texts
    if first is not None and texts[0] is not None and texts.count(texts[0]) == len(texts):
        return first.differing(any(one.may_differ for one in values if one))
    if before is not None and begin is not None:
        if before.is_array:
            is_added = all(one is not None and one[: len(begin)] == begin for one in texts)
        else:
            blank = "".join(begin)
            is_added = all(
                one and (one == begin or one[0].startswith(f"{blank} ")) for one in texts
            )
        if is_added:
            return _added(name, before, why, gap="" if before.is_array else " ")
    return Value(why=why)


def _added(name: str, before: Value, why: str, *, gap: str = "") -> Value:
    """A value to which only the shell knows what is added."""
    if before.items is None:
        return Value(why=why)
    rest = unplaced(f"{gap}${{{name}[@]}}")
    items = [*before.items, rest]
    if not before.is_array:
        items = [[char for item in items for char in item]]
    return before._replace(items=items, why=why)


def _sourced(name: str, base: Path) -> Path | None:
    """The file that `source NAME` means; None: it is not there.

    A folder that only the shell knows is taken for the script's, or one above it.
    """
    rest = _UNKNOWN_FOLDERS.sub("", name)
    if not rest or UNKNOWN.search(rest):
        return None
    near = (*(folder / rest for folder in base.parents[:_FOLDERS_ABOVE]), Path(rest))
    found = next((one for one in near if os.path.isfile(one)), None)
    return None if found is None or found.resolve() == base.resolve() else found
