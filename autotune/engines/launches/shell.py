"""A shell file: its simple commands as words, each with its place in the text.

It is read and not run, command by command. Known are quotes, line continuations, here-documents,
assignments, arrays, `+=`, `${X:-default}`, sums, tests of words and numbers, `case`, `for` over
known words, functions and their calls, texts for another shell (`bash -c`, `eval`), files that are
sourced or started, and folders (`$PWD`, `$(dirname "$0")`). All else stays as it is written, and
the commands say why.
"""

import contextlib
import os
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, dropwhile, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from autotune.base.errors import JobError, RenderError
from autotune.base.flags import flag
from autotune.base.nested import Unknown
from autotune.base.text import line_of, named
from autotune.base.user_text import read_text
from autotune.engines.launches import PROGRAMS, slurm
from autotune.engines.launches.files import DATA_SUFFIXES, SHELL_SUFFIXES, is_shell, text_near
from autotune.engines.launches.jobs import commands_of_job
from autotune.engines.launches.shell_syntax import (
    LOOPS,
    MOST_NESTED,
    Block,
    Choice,
    Line,
    Node,
    OpenError,
    Simple,
    Token,
    alone,
    elements,
    end_of,
    lines_of,
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
_VARIABLES = re.compile(rf"\$\{{?({NAME})")
_OF_SLURM = "SLURM_"
_NO_CHOICE = re.compile(rf"{_OF_SLURM}|\w+ \S*\$\{{?\w+\}}?[/:]\S*$")
"""A variable and the word that has it: a path or an address, each of which starts the same."""
_UNKNOWN_FOLDERS = re.compile(r".*[$`][^/]*/")
_NO_SHAPE = re.compile(r"[$`]|\[[\^:]")
"""What is not known, or `fnmatch` takes for something else."""
_SIGNS = re.compile(r"[*?[]")
_QUOTED = re.compile(r"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_PREFIXED = re.compile(r"(?:command|builtin) [^-]")
_SHELLS = ("bash", "sh", "zsh", "ksh", "dash")
_TEXT_OPTION = re.compile(r"-\w*c")
_VALUED_OPTION = re.compile(r"[-+]\w*[oO]|--(?:rcfile|init-file)")
"""An option of a shell that takes the next word."""
_STARTERS = ("exec", "nohup", "sbatch", "srun", "env", "time")
"""Commands that start a file which is a shell's by its name or its first line."""
_SUBMITTERS = ("kubectl", "sky", "sed", "envsubst")
"""Commands that hand on a job in YAML."""
_ALL_GIVEN = {"$@", "$*"}
_COPIERS = ("cp", "mv", "tee")
"""Commands that write the last file that they are given."""
_QUICK = frozenset(("", *DECLARES, *PROGRAMS["ends_at_once"]))
"""Commands that end at once; behind all others those in the background may have ended, too."""
_ELSEWHERE = ("ssh", "pdsh", "clush", "tmux", "screen")
"""Commands whose last word is a text for a shell: of another machine, or another terminal."""
_READ_COMMANDS = (*_SHELLS, "ssh", "sbatch")
"""Commands that read others from a here-document, unless a file or a text is theirs."""
_OF_PYTHON = ("bin/activate", "conda.sh")
"""Files that choose a Python, and set nothing that a launch is given."""
_FOLDER_FLAGS = ("--", "-P", "-L", "-f", "-e")
"""Flags of `cd`, `pwd` and their like after which a folder is the same one."""
_FOLDERS_ABOVE = 3
"""Folders, with the script's, in which a file is looked for whose own only the shell knows."""
_MOST_DEEP = 6
"""Texts that read one another and functions that call one another, at most."""
_MOST_AGAIN = 2**18
"""Characters that are gone through once more, at most: calls of functions, rounds of loops, files
that are sourced or started, what variables put in."""
_ASKED_FOR = ("NPROC_PER_NODE", "NNODES", "FORCE_TORCHRUN")
"""Variables without which a program starts other ranks; a file that is not read may set them."""
_ELEMENT = re.compile(r"\[[^]]*\]\+?=")
"""An element of an array, with its number or name."""
_DECLARED_ODD = re.compile(r"-\w*[Ailnu]")
"""An option by which a variable is not the text that it is given."""
_FLAGS = re.compile(r"([-+])(\w+)(?: (\w+))?")
_BY_PROGRAM = re.compile(r"\$\(|`|\$\{[^}]*\s")
"""What only the shell knows, and may hold blanks."""
_QUOTED_DEFAULT = [re.compile(rf"\$\{{\w+:?[-=].*{end}") for end in (r"['\"].*\s", "'")]
"""A default whose quotes keep words together; a quote in quotes is a sign like others."""
_HOME = re.compile(rf"(?:{NAME}\+?=)?~(?=/|\Z)")
_PATTERN = re.compile(r"(?:\A|\s)[^\s=]*?(?:[*?]|\[[^]\s]+])")
"""Signs for which the shell puts in names of files; hardly any begins like a flag with its `=`."""
_BRACES = re.compile(r"\{\S*(?:,|\.\.)\S*\}")
_LEFT_OPEN = -2
"""Place of a `$` that a shell puts something in for which is not known; none does so again."""
_OF_TASKS = re.compile(r"\$\{?SLURM_(?:NODEID|PROCID)\}?|(\$\(hostname[^)]*\)|\$\{?HOSTNAME\}?)")
"""Numbers of a node and a task, and a node's name, which each task of srun has its own."""
_COMMENT_END = re.compile(r"(?:^|[ \t])#.*\\\s*$")

_Changes = dict[str, Value | None]
"""Variable -> what it holds; None: it is not set."""


class _Truth(NamedTuple):
    holds: bool | None
    """None: only the shell knows."""
    may_differ: bool = False
    """Whether values that may be others decide that."""


_OPEN = _Truth(None)
_OF_LOOPS = ("break", "continue")
_TRUTHS = {"true": _Truth(True), ":": _Truth(True), "false": _Truth(False)}
"""Commands that say it by their names."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A simple command."""

    words: tuple[Word, ...]
    start: int
    """Where its first word, or the first variable before it, begins."""
    text: str = field(repr=False)
    """The file."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Those of its environment that the file sets."""
    within: tuple[str, ...] = ()
    """The commands that hand it to a shell as a text; empty: it stands in the file itself."""
    unread: tuple[str, ...] = ()
    """Why words of it are not known, or may be others: lines that decide, files not read."""
    gone: tuple[str, ...] = ()
    """Files before it that are not read, in words."""
    defaults: Mapping[int, str] = field(default_factory=dict)
    """Number of a word -> the default of a variable in it, in words."""
    assumed: tuple[str, ...] = ()
    """Defaults before it of words that its file is started with."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What its file asks Slurm for."""
    path: Path = Path()
    """The file, or one that it sources or starts."""
    placed: Path = Path()
    """The file; of another one's command `start` is where that is sourced or started."""
    written: Mapping[str, str | Unknown] = field(default_factory=dict)
    """As of `ShellText.written`."""
    beside: tuple["Command", ...] = ()
    """Those in the background that cannot have ended before it starts."""
    blank_in: str = ""
    """Where it ends in a backslash and a blank, which is a word of its own; empty: nowhere."""

    @property
    def around(self) -> dict[str, Any]:
        """What `ranks_of` takes beside its words."""
        return {
            "within": self.within,
            "variables": self.variables,
            "options": self.options,
            "defaults": self.defaults,
            "text_of": self._text_of,
            "beside": [
                ([word.text for word in one.words], one.within, one.variables)
                for one in self.beside
            ],
        }

    def _text_of(self, name: str) -> str:
        """The text of a file that it names; empty: it is not there."""
        held = self.written.get(os.path.normpath(name)) or text_near(name, self.path.parent)
        return held if isinstance(held, str) else ""

    @property
    def line(self) -> int:
        return line_of(self.text, max(0, self.start))

    @property
    def unread_because(self) -> str:
        """Why not all of it is known, in one line with the way out; empty: all is."""
        why = named(self.unread, "; ", most=3)
        return f"{why}: say the launch with {flag('launch')}" if why else ""

    @property
    def unnamed_because(self) -> str:
        """Why a file that it names is not known, likewise."""
        unread = tuple(dict.fromkeys((*self.unread, *self.gone)))
        return replace(self, unread=unread).unread_because

    @property
    def fix_of_lost(self) -> str:
        if self.path != self.placed:
            return f"end the line above it in {self.path} with a backslash"
        if _COMMENT_END.search(self.text.split("\n")[self.line - 2]):
            return f"take the comment out of line {self.line - 1}: it ends the command"
        return f"end line {self.line - 1} with a backslash"

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
    """Files that it sources, and whose variables it has from there on, or starts."""
    written: Mapping[str, str | Unknown]
    """Path, as `os.path.normpath` has it -> the text that a here-document writes there. It stands
    on the lines that it has in the file. `Unknown`: a program writes it."""

    def lost_below(self, command: Command) -> Command | None:
        """The command behind another one if it begins with a flag: that one has lost its end."""
        below = self.commands[self.commands.index(command) + 1 :][:1]
        return next((one for one in below if one.words[0].text.startswith("--")), None)


def read_shell(text: str, path: Path, *, follows: bool = False) -> ShellText:
    """Read a shell file.

    Args:
        text: The file.
        path: Its name, for errors.
        follows: Whether files that it sources or starts are read, too.

    Raises:
        JobError: A quote, a bracket or a block in it does not close.
    """
    reader = _Reader(text, path, {}, slurm.options_of(text))
    try:
        reader.read_file(list(zip(text, range(len(text)), strict=True)), path if follows else None)
    except OpenError as error:
        raise JobError(f"{path}:{line_of(text, error.at)}: {error}", "close it") from error
    commands: dict[tuple[object, ...], Command] = {}
    for one in reader.commands:  # a function that is called twice has them twice
        if one.beside or (one.start, one.words) not in commands:
            commands[one.start, one.words] = one
    return ShellText(
        commands=tuple(commands.values()),
        sourced=tuple(dict.fromkeys(reader.sourced)),
        written=reader.written,
    )


@dataclass(kw_only=True)
class _Branch:
    runs: bool | None
    """None: only the shell knows."""
    may_differ: bool
    """Whether values that may be others decide that."""
    changes: _Changes
    ends: bool = False
    """Whether it ends the file."""
    truth: _Truth = _OPEN


class _End(Exception):
    """A `return`, `exit`, `break` or `continue` that runs."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name)
        self.name, self.why = name, why


@dataclass(frozen=True, kw_only=True)
class _Text:
    """A text that is read: a file, a function, or what a command hands to a shell."""

    lines: Sequence[Line]
    path: Path | None
    """The file that it is, or that holds it; None: none that it sources is read."""
    within: tuple[str, ...]
    """The commands that hand it on."""
    doubts: Sequence[str] = ()
    """Why the text may be another, where a command hands it on."""
    is_function: bool = False
    is_part: bool = False
    """Whether its ends are those of the text around it, as for `eval`."""


class _Reader:
    """Goes through commands, and holds the variables as they are where each stands."""

    def __init__(
        self,
        text: str,
        path: Path,
        variables: Mapping[str, str],
        options: Mapping[str, str],
        files: Set[Path] = frozenset(),
    ) -> None:
        self._text = text
        self._options = options
        self._files = files | {path.resolve()}
        """The file that is read, and those that start it."""
        self._placed = path
        """The file whose text that is."""
        self._file = ""
        """The file that is read in a shell of its own, in words; empty: it is the text."""
        around = {**slurm.variables_of(options), **variables}
        held = {"PWD": ".", "0": str(path), "BASH_SOURCE": str(path), **around}
        self._variables: ChainMap[str, Value | None] = ChainMap(
            {
                name: Value(None if text == f"${name}" else [unplaced(text)])
                for name, text in held.items()
            }
        )
        """What they hold, and what each open branch has changed of them."""
        self._exported = set(around)
        self._functions: dict[str, _Text] = {}
        self._called: set[str] = set()
        """Functions that a command calls."""
        self._flags: set[str] = set()
        """Those that `set` has switched on: `a` exports all, `e` ends at a fault."""
        self._n_asked = 0
        """Conditions around, in which a fault ends nothing."""
        self._locals: set[str] = set()
        """Variables of the function that is gone through alone."""
        self.commands: list[Command] = []
        self._beside: tuple[Command, ...] = ()
        """As of `Command.beside`."""
        self.sourced: list[Path] = []
        self.written: dict[str, str | Unknown] = {}
        self._may_be_written: dict[str, str] = {}
        """Path -> why only the shell knows whether the file is what is written there."""
        self._is_branch = False
        """Whether only the shell knows if it runs."""
        self._place = 0
        """Where the last simple command begins that stands in the text itself."""
        self._last = -1
        """Where the last simple command begins."""
        self._gone: list[str] = []
        """Files that it sources and that are not read, in words."""
        self._here = _Text(lines=(), path=None, within=())
        self._doubts: list[str] = []
        """Why values that are put into the command may be others; empty: as of `Value.why`."""
        self._ends: list[_End] = []
        """Those of the function or the loop here of which only the shell knows if they run."""
        self._is_rehearsed = False
        """Whether a loop is gone through to see what it changes."""
        self._n_loops = 0
        self._n_options_read = 0
        self._assumed: dict[str, None] = {}
        """Defaults that stand for words which the file is started with, in words."""
        self._defaults: dict[int, str] = {}
        """Place in the text -> the default of a variable that stands there, in words."""
        self._depth = self._n_nested = 0
        self._n_left = len(text) + _MOST_AGAIN
        """Characters that may still be gone through."""

    def read_file(self, chars: Chars, path: Path | None, within: tuple[str, ...] = ()) -> None:
        """Take all commands of a file, and those of functions that it does not call itself."""
        with self._shell():
            self.read(chars, path, within)
            self._beside = ()
            for name, function in reversed([*self._functions.items()]):
                if name not in self._called and function.path == path:
                    given = {**self._doubted(), "@": Value()}
                    self._branch(None, partial(self._run, function), given)

    def read(self, chars: Chars, path: Path | None, within: tuple[str, ...] = ()) -> None:
        """Take all commands of a text; the arguments are those of `_Text`."""
        is_inner = self._depth > 0
        text = _Text(lines=lines_of(chars), path=path, within=within, is_function=is_inner)
        self._run(text)

    def _run(self, text: _Text) -> _Truth:
        """Take a text up to where it returns."""
        before = self._here, self._doubts, self._is_rehearsed, self._n_loops, self._ends
        self._here = text
        if not text.is_part:
            self._n_loops, self._ends = 0, []
        self._depth += 1
        try:
            self._list(text.lines)
        except _End as end:
            if end.name != "return" or text.is_part:
                raise
        finally:
            self._here, self._doubts, self._is_rehearsed, self._n_loops, self._ends = before
            self._depth -= 1
        return _OPEN

    def _list(self, lines: Sequence[Line]) -> _Truth:
        if self._n_nested > MOST_NESTED:  # with those of the functions that call this one
            self._lose(f"{self._line(self._last)} stands before a block that is nested too deep")
            return _OPEN
        self._n_nested += 1
        try:
            return self._in_turn([partial(self._and_or, line) for line in lines])
        finally:
            self._n_nested -= 1

    def _in_turn(self, steps: Sequence[Callable[[], _Truth]], *, is_rest: bool = False) -> _Truth:
        """Take lines or rounds; those behind an end that may have run are a branch."""
        truth, n_ends = _OPEN, len(self._ends)
        for number, step in enumerate(steps):
            if len(self._ends) > n_ends and not is_rest:
                why = self._ends[n_ends].why
                rest = partial(self._in_turn, steps[number:], is_rest=True)
                self._merge([self._branch(None, rest)], why)
                return _OPEN
            truth = step()
        return truth

    def _and_or(self, line: Line) -> _Truth:
        truth, is_alone = _Truth(True), len(line) == 1
        self._n_asked += not is_alone
        for joint, is_negated, parts in line:
            runs = None if truth.holds is None else truth.holds is (joint == "&&")
            why = f"{self._line(self._last)} decides by `{joint}`"
            take = partial(self._pipeline, parts)
            branch = self._branch(runs, take, may_differ=truth.may_differ)
            self._merge([branch], why)
            holds = truth.holds if runs is False else None
            if runs and branch.truth.holds is not None:
                holds = branch.truth.holds is not is_negated
            truth = _Truth(holds, truth.may_differ or branch.truth.may_differ)
        self._n_asked -= not is_alone
        is_fault = truth == (False, False) and is_alone and not line[0][1]
        if is_fault and "e" in self._flags and not self._n_asked:
            raise _End("exit", "")
        return truth

    def _pipeline(self, parts: Sequence[Node]) -> _Truth:
        truths = [*map(self._command, parts)]
        return truths[0] if len(truths) == 1 else _OPEN

    def _command(self, node: Node) -> _Truth:
        """Take a simple command, a block, or the definition of a function."""
        if isinstance(node, Simple):
            return self._simple_command(node)
        if isinstance(node, Choice):
            self._choice(node)
        elif node.name == "{":
            return self._list(node.lines)
        elif node.name in ("(", "&"):
            n_commands, beside = len(self.commands), self._beside
            with self._shell():
                self._list(node.lines)
            if node.name == "&":
                self._beside = (*beside, *self.commands[n_commands:])
        elif node.name in LOOPS:
            n_ends, self._n_loops = len(self._ends), self._n_loops + 1
            try:
                self._loop(node)
            except _End as end:
                if end.name not in _OF_LOOPS:
                    raise
            finally:
                self._n_loops -= 1
                self._ends[n_ends:] = [e for e in self._ends[n_ends:] if e.name not in _OF_LOOPS]
        else:
            name, lines = plain(node.words[0]), node.lines
            before = self._functions.get(name)
            if len(self._variables.maps) > 2 and before and before.lines != lines:
                asked = [alone(Simple([], [], -1))]
                either = [(asked, (), before.lines), ((), (), lines)]
                lines = [alone(Choice("function", node.place, [], either))]
            self._functions[name] = replace(self._here, lines=lines, is_function=True)
        return _OPEN

    def _choice(self, choice: Choice) -> None:
        branches, is_all, may_differ = list[_Branch](), False, False
        has_run: bool | None = False
        for condition, patterns, lines in choice.branches:
            if choice.name == "case":
                truth = self._matching([choice.word, *patterns]) if choice.word else _OPEN
                is_all = is_all or [*map(plain, patterns)] == ["*"]
            else:
                asks, is_sure = partial(self._list, condition), True if has_run is False else None
                self._n_asked += 1
                asked = self._branch(is_sure, asks, may_differ=may_differ)
                self._n_asked -= 1
                self._merge([asked], self._why(choice))
                truth, is_all = asked.truth if condition else _Truth(True), not condition
            runs = None if has_run is None else truth.holds
            runs = False if has_run or truth.holds is False else runs
            decides = may_differ if has_run else truth.may_differ
            take = partial(self._list, lines)
            branches.append(self._branch(runs, take, may_differ=decides))
            has_run = runs if has_run is False else has_run
            may_differ = may_differ or truth.may_differ
            if has_run and not may_differ:
                break
        self._merge(branches, self._why(choice), is_all=is_all)

    def _matching(self, words: Sequence[Chars]) -> _Truth:
        """Whether the word of a `case` is of the patterns behind it."""
        self._doubts = [*self._here.doubts]
        fields = [self._field(chars, is_split=False) for chars in words]
        text, *shapes = (one.text for one in fields)
        unquoted = [_SIGNS.findall(_QUOTED.sub("", one.raw)) for one in fields[1:]]
        is_quoted = unquoted != [*map(_SIGNS.findall, shapes)]
        if is_quoted or any(map(_NO_SHAPE.search, (text, *shapes))):
            return _OPEN
        may_differ = any(one.may_differ for one in fields)
        return _Truth(any(fnmatchcase(text, shape) for shape in shapes), may_differ)

    def _loop(self, loop: Block) -> None:
        """Take a loop: but in one over known words, what it changes is not known in it."""
        why, n_read, words = self._why(loop), self._n_options_read, self._variables.get("@")
        n_commands, given = len(self.commands), _Changes()
        if rounds := [] if self._is_rehearsed else self._rounds(loop):
            self._in_turn([partial(self._round, loop, held) for held in rounds])
            return None
        take = partial(self._list, loop.lines)
        for name in _counted_by(loop.words):
            given[name] = Value(why=why)
        for _ in () if self._is_rehearsed else range(2):  # what changes may decide what else does
            self._is_rehearsed = True
            rehearsed = self._branch(None, take, dict(given))
            self._is_rehearsed = False
            del self.commands[n_commands:]
            for name, value in rehearsed.changes.items():
                before = self._variables.get(name)
                given[name] = _one_of(name, before, [value, before], why)
        branch = self._branch(None, take, given)
        if self._n_options_read == n_read or words is not None:
            return self._merge([branch], why)
        for name in branch.changes.keys() - {"@"}:  # it is read as started without options
            value = self._variables.get(name) or Value()
            self._put(name, value._replace(why=value.why or why))
        return None

    def _rounds(self, loop: Block) -> list[Value]:
        """What the variable of a loop over some words is in each round; empty: that is open."""
        self._doubts = [*self._here.doubts]
        items = [item for one in loop.words[2:] for item in self._field(one).items]
        is_open = any(re.search(r"[$`*?[{]", plain(item)) for item in items)
        return [] if is_open else [Value([item]).differing(bool(self._doubts)) for item in items]

    def _round(self, loop: Block, held: Value) -> _Truth:
        n_ends, name = len(self._ends), plain(loop.words[0])
        if self._n_left <= 0:
            self._lose(f"{self._line(loop.place)} has a loop that is not followed in all rounds")
            self._put(name, Value())
            return _OPEN
        self._put(name, held)
        try:
            self._list(loop.lines)
        except _End as end:
            if end.name != "continue":
                raise
        self._ends[n_ends:] = [e for e in self._ends[n_ends:] if e.name != "continue"]
        return _OPEN

    @contextlib.contextmanager
    def _scope(self, given: _Changes | None = None) -> Iterator[_Changes]:
        outer, changes = self._variables, {} if given is None else given
        self._variables = outer.new_child(changes)
        try:
            yield changes
        finally:
            self._variables = outer

    @contextlib.contextmanager
    def _shell(self, given: _Changes | None = None) -> Iterator[None]:
        """A shell of its own: what it changes and where it ends are its own."""
        exported, self._exported = self._exported, {*self._exported}
        try:
            with self._scope(given), contextlib.suppress(_End):
                yield
        finally:
            self._exported = exported

    @contextlib.contextmanager
    def _lent(
        self, assigned: Mapping[str, Value], words: _Changes | None = None
    ) -> Iterator[None]:
        """Let commands have variables of their own, and the `words` that a function is given."""
        exported, outer = self._exported, self._locals
        self._exported, self._locals = exported | assigned.keys(), {*(words or outer), *assigned}
        try:
            with self._scope({**(words or {}), **assigned}) as changes:
                yield
        finally:
            inner = assigned.keys() if words is None else self._locals
            self._locals = outer
            self._exported -= inner - exported
            for name in changes.keys() - inner:
                self._put(name, changes[name])

    def _branch(
        self,
        runs: bool | None,
        take: Callable[[], _Truth],
        given: _Changes | None = None,
        *,
        may_differ: bool = False,
    ) -> _Branch:
        """Take what runs under a condition; where that is certain, its changes are none apart."""
        if runs is not None and not may_differ:
            truth = take() if runs else _OPEN
            return _Branch(runs=runs, may_differ=False, changes={}, truth=truth)
        is_branch, beside = self._is_branch, self._beside
        self._is_branch = is_branch or runs is not True
        with self._scope(given) as changes:
            branch = _Branch(runs=runs, may_differ=may_differ, changes=changes)
            try:
                branch.truth = take()
            except _End as end:
                branch.ends = end.name == "exit" or not (self._here.is_function or self._n_loops)
                self._ends += [end] * (runs is not False and not branch.ends)
        self._is_branch = is_branch
        self._beside = beside if self._beside[: len(beside)] == beside else ()
        return branch

    def _merge(self, branches: Iterable[_Branch], why: str, *, is_all: bool = False) -> None:
        """Let variables hold what is left by branches of which one runs, or unless `is_all` none.

        Of one that runs only if values are others stays that what it changes may differ.
        """
        going_on = [branch for branch in branches if not branch.ends]
        may_differ = any(branch.may_differ for branch in going_on)
        n_open = sum(branch.runs is None for branch in going_on)
        changed: dict[str, list[tuple[bool | None, Value | None]]] = {}
        for branch in going_on:
            for name, value in branch.changes.items():
                changed.setdefault(name, []).append((branch.runs, value))
        for name, values in changed.items():
            before = self._variables.get(name)
            held = next((value for runs, value in values if runs), before)
            if n_open:
                open_ = [value for runs, value in values if runs is None]
                is_kept = not is_all or len(open_) < n_open
                held = _one_of(name, before, [*open_, *([before] if is_kept else ())], why)
            self._put(name, held and held.differing(may_differ))

    def _simple_command(self, command: Simple) -> _Truth:
        """Take a simple command: what it sets, sources, asks or starts."""
        here = self._here
        self._last = command.place
        self._place = command.place if command.place >= 0 else self._place
        self._doubts = [*here.doubts]
        documents = [one.document for one in command.targets if one.document]
        self._n_left -= sum(map(len, (*command.words, *documents)))
        fields = list[Field]()
        sets = [*takewhile(lambda word: ASSIGNS.match(plain(word)), command.words)]
        with self._scope() if sets[1:] else contextlib.nullcontext():
            for word in sets:  # `A=1 B=$A`
                fields.append(self._element(word))
                if sets[1:]:
                    self._sets(fields[-1:])
        fields += map(self._element, command.words[len(sets) :])
        if fields and fields[0].raw == "read":
            fields += [self._element(one.chars) for one in command.targets if one.text == "<<<"]
        files = [(one, self._field(one.chars, is_split=False)) for one in command.targets]
        n_set = next((n for n, one in enumerate(fields) if not ASSIGNS.match(one.raw)), 0)
        if _PREFIXED.match(" ".join(one.raw for one in fields[n_set : n_set + 2])):
            del fields[n_set]
        name = fields[n_set].raw if fields else ""
        if name in ("return", "exit") or (self._n_loops and name in _OF_LOOPS):
            if name in _OF_LOOPS and len(fields) > n_set + 1:
                self._lose(f"{self._line(command.place)} leaves several loops")
            raise _End(name, f"{self._line(command.place)} decides by `{name}`")
        assigned = {one.raw.partition("=")[0]: Value([one.value]) for one in fields[:n_set]}
        is_lent = assigned and name in ("eval", "source", ".")
        with self._lent(assigned) if is_lent else contextlib.nullcontext():
            if fields and not self._sets(fields) and not self._sources(fields[n_set:]):
                self._runs(fields)
        is_quick = name in _QUICK or name in self._functions
        if not is_quick and not ASSIGNS.match(name):
            self._beside = ()
        if name == "exec" and len(fields) > n_set + 1:
            raise _End("exit", "")
        self._document(fields, files)
        if len(fields) > 1 and name in ("[", "[["):
            return _Truth(truth_of(fields), any(one.may_differ for one in fields))
        return _TRUTHS.get(name, _OPEN)

    def _lose(self, line: str) -> None:
        """Let all variables differ, for what a line says, and what goes on in the background."""
        self._beside = ()
        if line not in self._gone or self._n_left > 0:
            self._variables.update(self._doubted())
        self._gone += [line] * (line not in self._gone)

    def _doubted(self) -> _Changes:
        """All variables but Slurm's, with values that may be others."""
        self._n_left -= len(self._variables)
        held = [one for one in self._variables.items() if not one[0].startswith(_OF_SLURM)]
        return {name: value.differing(True) for name, value in held if value is not None}

    def _put(self, name: str, value: Value | None) -> None:
        """Let a variable hold a value; None: it is not set."""
        self._variables[name] = value
        if "a" in self._flags and re.fullmatch(NAME, name):
            self._exported.add(name)

    def _given(self, name: str) -> Value | None:
        """What `$1`, `$#` or `$@` is; a file that nobody is seen to start has no words."""
        words = self._variables.get("@")
        if name == "#" and words is None:
            return Value([unplaced("0")], why="")
        if words is None or words.items is None or name in "@*":
            return words
        sure = [one for one in words.items if plain(one) not in _ALL_GIVEN]
        if name == "#" and any(at == _LEFT_OPEN for one in sure for _, at in one):
            return Value()
        sure = [unplaced(str(len(sure)))] if name == "#" else sure[int(name) - 1 :][:1]
        return Value(sure, why=words.why) if sure else None

    def _line(self, place: int) -> str:
        if self._file or place < 0:
            return self._file or "a file that it sources"
        return f"line {line_of(self._text, place)}"

    def _why(self, block: Choice | Block) -> str:
        """Why only the shell knows what a block leaves."""
        return f"{self._line(block.place)} decides by `{block.name}`"

    def _element(self, chars: Chars) -> Field:
        """A word of a command, or an assignment with it."""
        raw, before = plain(chars), len(self._doubts)
        if (inside := elements(chars)) is None:
            return self._field(chars, is_split=not ASSIGNS.match(raw))
        inside_fields = [self._field(one) for one in inside]
        self._doubts += [one.pattern for one in inside_fields if one.pattern]
        items = [item for one in inside_fields for item in one.items]
        return Field(raw, items, chars[0][1], True, len(self._doubts) > before)

    def _field(self, chars: Chars, *, is_split: bool = True, is_document: bool = False) -> Field:
        """A word without its quotes, or a here-document, with the variables of the file."""
        raw, at, is_quoted, before = plain(chars), 0, is_document, len(self._doubts)
        done: list[Chars] = []
        word: Chars | None = None
        is_gone, bare, bare_literal = False, "", ""
        is_open = is_split and self._variables.get("IFS") is not None
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
                is_listed = is_quoted and re.search(r"\[\*\]|\$\*", plain(part)) is not None
                values = None if part[0][1] == _LEFT_OPEN else self._put_in(part)
                by_program = any(_BY_PROGRAM.search(plain(value)) for value in values or ())
                if is_split and not is_quoted and by_program:
                    values = None  # a blank in it splits no word
                if _QUOTED_DEFAULT[is_quoted].match(plain(part)):
                    values = None
                if values is not None and not (is_open and (is_listed or not is_quoted)):
                    if not is_split or is_listed:
                        values = joined(values)
                    is_whole = is_quoted or not is_split
                    whole = "" if is_whole else " ".join(map(plain, values))
                    bare += "" if UNKNOWN.search(whole) else whole
                    is_gone = is_gone or not values  # "$@" of no words is none
                    pieces = values if is_whole else split(values, joins=word is not None)
                    for number, piece in enumerate(pieces):
                        if number and word is not None:
                            done.append(word)
                            word = None
                        if piece or is_quoted:
                            word = (word or []) + piece
                    continue
            if quote and not is_document:
                is_quoted, part = not is_quoted, []
            elif single is not None and is_quoted:
                at, part = start + 1, part[:1]
            elif single is not None:
                part = part[1:-1]
            elif escaped and (not is_quoted or escaped in ("$`\\" if is_document else '$`"\\')):
                part = part[1:]
            elif expands:
                part = [(part[0][0], _LEFT_OPEN), *part[1:]]
            elif not is_quoted:
                bare, bare_literal = bare + plain(part), bare_literal + plain(part)
                if start == 0 and (home := _HOME.match(bare)):
                    part = [*part[: home.end() - 1], *unplaced("$HOME"), *part[home.end() :]]
            word = (word or []) + part
        items = done if word is None or (is_gone and not word) else [*done, word]
        place, pattern = chars[0][1] if chars else -1, ""
        if is_split and (_PATTERN.search(bare) or _BRACES.search(bare_literal)):
            pattern = f"{self._line(place)} has `{raw}`, for which the shell puts in other words"
        return Field(raw, items, place, may_differ=len(self._doubts) > before, pattern=pattern)

    def _document(self, fields: Sequence[Field], targets: Sequence[tuple[Token, Field]]) -> None:
        """Keep the here-documents of a command, where they go to a file or a variable."""
        files = [word.text for target, word in targets if target.text in (">", ">|")]
        command = fields[0].raw if fields else ""
        name = files[-1] if files else fields[-1].text if command == "tee" else ""
        path = os.path.normpath(name)
        signs = (">>",) if any(target.document for target, _ in targets) else (">>", ">", ">|")
        by_program = [word for target, word in targets if target.text in signs]
        if command == "sed" and any(one.raw.startswith(("-i", "--in-place")) for one in fields):
            by_program += fields[1:]
        elif command in _COPIERS and ">" in signs:
            by_program += fields[-1:]
        for word in by_program:
            file = os.path.normpath(word.text)
            self.written[file] = Unknown(f"{self._line(word.place)} writes {file} by `{command}`")
        for target, word in targets:
            if target.document is None:
                continue
            body = target.document
            if word.raw[:1] not in ("'", '"', "\\"):
                body = self._field(body, is_split=False, is_document=True).chars
                if any(_name(one.text) == "srun" for one in fields):
                    body = _of_batch(body)
            if name:
                self._may_be_written.pop(path, None)
                if self._is_branch:
                    self._may_be_written[path] = f"{self._line(word.place)} may not write {path}"
                above = max(0, target.document[0][1]) if target.document else 0
                held = "\n" * (line_of(self._text, above) - 1) + plain(body)
                self.written[path] = self.written.get(path, held) if self._is_branch else held
            elif command == "read" and not name and any(re.match(r"-\w*d", f.raw) for f in fields):
                self._put(fields[-1].text, Value([body]))
            elif not name and _reads_commands(texts := [one.text for one in fields]):
                self._follow(Field("", [body], word.place), texts, {})

    def _put_in(self, chars: Chars) -> list[Chars] | None:
        """What an expansion stands for; None: only the shell knows."""
        raw = plain(chars)
        if raw.startswith("$(("):
            self._forget(touched_by([raw[1:]]))
            names = re.sub(rf"(?<![\w${{])({NAME})\b", r"${\1}", raw[3:-2])
            inside = self._field(unplaced(names), is_split=False)
            number = sum_of(inside.text)
            place = next((at for _, at in inside.chars if at in self._defaults), -1)
            return None if number is None else [[(char, place) for char in str(number)]]
        if raw.startswith(("`", "$(")):
            folder = self._folder(chars[1 if raw[0] == "`" else 2 : -1])
            return None if folder is None else [unplaced(folder)]
        if (found := _NAMED.fullmatch(raw)) is None:
            return None
        name, sign = found[1] or found[2], found[4]
        is_word = name in "@*#" or name.strip("0").isdigit()
        held = self._given(name) if is_word else self._variables.get(name)
        is_empty = held is not None and held.items is not None and not any(held.items)
        if sign is not None and (held is None or (":" in sign and is_empty)):
            default = self._field(chars[found.start(5) : found.end(5)], is_split=False).chars
            why, named = "" if held is None else held.why, f"${name}" if name.isdigit() else name
            if name.isdigit() and held is None:
                self._assumed[f"{named} is then {plain(default) or 'empty'}"] = None
            for at in () if self._file else (at for _, at in default if at >= 0):
                line = f"the default in line {line_of(self._text, at)}"
                self._defaults.setdefault(at, f"{named}={plain(default)}, {line}")
            self._doubts += [] if why is None else [why]
            if "=" in sign:
                self._put(name, Value([default], why=why))
            return [default]
        if held is None or held.items is None:
            return None
        is_whole = held.is_array and (found[3] or name).strip("[]") in ("@", "*")
        items = held.items if is_whole else held.items[:1]
        self._doubts += [] if held.why is None else [held.why]
        self._n_left -= sum(map(len, items))
        return items if self._n_left > 0 else None

    def _folder(self, chars: Chars) -> str | None:
        """What commands print that only ask for a folder; None: they are others.

        `pwd`, `dirname "$0"`, `cd "$(dirname "$0")/.." && pwd`.
        """
        before, self.commands = self.commands, []
        functions, self._functions = self._functions, {}
        with self._shell(), contextlib.suppress(OpenError):
            self.read(chars, None)
        commands, self.commands, self._functions = self.commands, before, functions
        here, printed = ".", None
        for command in commands:
            texts = [one.text for one in command.words if one.text not in _FOLDER_FLAGS]
            name, rest = "".join(texts[:1]), texts[1:]
            if any(map(UNKNOWN.search, rest)) or len(rest) != (name != "pwd"):
                return None
            if name == "cd":
                here = os.path.join(here, rest[0])
            elif name == "pwd":
                printed = here
            elif name in ("dirname", "realpath", "readlink"):
                if name == "dirname" and _name(os.path.normpath(rest[0])) in (".", ".."):
                    return None  # the folder above one that only the shell names
                printed = rest[0] if name != "dirname" else os.path.dirname(rest[0]) or "."
            else:
                return None
        return None if printed is None else os.path.normpath(printed)

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._put(name, Value())

    def _sets(self, fields: Sequence[Field]) -> bool:
        """Take a line that only sets variables, or asks; whether it is one."""
        names = [one.raw for one in fields]
        texts = [one.raw if one.is_array else one.text for one in fields]
        touched = touched_by(texts)
        self._forget(touched)
        if names[0] == "unset":
            for name in {*touched}.intersection(texts):
                self._put(name, None)
        if names[0] == "set" and (flags := _FLAGS.match(" ".join(names[1:]))):
            change = self._flags.update if flags[1] == "-" else self._flags.difference_update
            change({"allexport": "a", "errexit": "e"}.get(flags[3], flags[2]))
        if names[0] in OPTION_READERS:
            self._n_options_read += 1
        if names[0] == "shift" and (words := self._variables.get("@")) is not None:
            n = names[1] if len(names) > 1 else "1"
            items = words.items
            left = None if items is None or not n.isdecimal() else items[int(n) :]
            left = items if items is not None and n.isdecimal() and int(n) > len(items) else left
            self._put("@", words._replace(items=left))
        if names[0] == "read" and len(names) == 4 and names[1] in ("-a", "-ra", "-ar"):
            parts = [*split([fields[3].chars], joins=False)]
            self._put(names[2], Value(parts, True).differing(fields[3].may_differ))
        if touched or names[0] in ("shift", "read") or names[0].startswith("(("):
            return True
        is_declared = names[0] in DECLARES
        if not is_declared and not all(map(ASSIGNS.match, names)):
            return names[0] in (":", "[", "[[")  # ${X:=default} has set where it was put in
        is_inside = names[0] == "local" or (
            "@" in self._locals and names[0] in ("declare", "typeset")
        )
        is_local = is_inside and not any(re.match(r"-\w*g", one) for one in names)
        for one, text in [*zip(fields, texts, strict=True)][is_declared:]:
            if is_declared and UNKNOWN.search(text.partition("=")[0]):
                self._lose(f"{self._line(one.place)} sets variables of unknown names")
            if (found := ASSIGNS.match(text)) is not None:
                self._assign(found[1], one, is_added=bool(found[2]))
            if is_declared:
                name = found[1] if found else text
                if is_local and not found and name not in self._locals:
                    self._put(name, None)
                if is_local:
                    self._locals.add(name)
                if names[0] == "export" or any(re.match(r"-\w*x", one) for one in names):
                    self._exported.add(name)
                if any(map(_DECLARED_ODD.match, names)):
                    self._put(name, Value(is_array=True))  # open from now on
        return True

    def _assign(self, name: str, given: Field, *, is_added: bool) -> None:
        value = Value(given.items, True) if given.is_array else Value([given.value])
        before = self._variables.get(name) if is_added else None
        if before is not None and before.items is not None and value.items is not None:
            items = [*before.items, *value.items]
            if not (before.is_array or value.is_array):
                items = [[char for item in items for char in item]]
            value = before._replace(items=items, is_array=before.is_array or value.is_array)
        elif before is not None:
            value = before
        elif not given.is_array and _BY_PROGRAM.search(plain(given.value)):
            value = Value()  # what a program says
        held, starts = self._variables.get(name), [plain(one) for one in value.items or ()]
        if held and held.is_array and not given.is_array:
            value = Value(is_array=True)  # it is the first element
        if value.is_array and any(map(_ELEMENT.match, starts)):
            value = Value()
        value = value._replace(why=next(filter(None, self._doubts), value.why))
        self._put(name, value.differing(given.may_differ))

    def _sources(self, fields: Sequence[Field]) -> bool:
        """Read a file that a line sources; whether it does."""
        path = self._here.path
        if path is None or len(fields) < 2 or fields[0].raw not in ("source", "."):
            return False
        name, outer = fields[1].text, self._variables.get("BASH_SOURCE")
        if name.endswith(_OF_PYTHON):
            return True
        found = self._found(name, path)
        try:
            if found is None or self._depth >= _MOST_DEEP:
                raise RenderError(f"{name}: is not there", "")
            chars = unplaced(read_text(found))
            if found in self.sourced and self._n_left <= 0:
                raise RenderError(f"{name}: is read too often", "")
            self._put("BASH_SOURCE", Value([unplaced(str(found))]))
            self.sourced.append(found)
            self.read(chars, found)
        except (RenderError, OpenError):
            self._lose(f"{name}, which {self._line(fields[0].place)} sources, is not read")
        finally:
            self._put("BASH_SOURCE", outer)
        return found is not None

    def _runs(self, fields: Sequence[Field]) -> None:
        """Take a command, or those in the text that it hands to a shell."""
        here = self._here
        n_set = next(at for at, one in enumerate(fields) if not ASSIGNS.match(one.raw))
        rest = fields[n_set:]
        items = [one._replace(items=[chars]) for one in rest for chars in one.items]
        if any(_name(one.text) == "srun" for one in items):
            items = [one._replace(items=[_of_batch(one.chars)]) for one in items]
        words = tuple(one.word(one.chars) for one in items)
        if not words:
            return
        texts = tuple(word.text for word in words)
        before = [*fields[:n_set], *(_set_by_env(rest[1:]) if texts[0] == "env" else ())]
        assigned = {one.text.partition("=")[0]: plain(one.value) for one in before}
        if texts[0] == "eval":
            parts = [[*one.chars, (" ", -1)] for one in items[1:]]
            self._follow(Field("", parts, fields[0].place), ("eval",), {})
            return
        if texts[0] == "cd" and len(texts) == 2:
            is_whole = os.path.isabs(texts[1])  # wherever one stood
            folder = texts[1] if is_whole else f"{self._field(unplaced('$PWD')).text}/{texts[1]}"
            is_known = UNKNOWN.search(folder) is None
            self._put("PWD", Value([unplaced(os.path.normpath(folder))] if is_known else None))
        patterns = [one.pattern for one in rest]
        at, every = self._defaults, (*texts, *assigned.values())
        names = [(name, word) for word in every for name in _VARIABLES.findall(word)]
        held_values = [(f"{name} {word}", self._variables.get(name)) for name, word in names]
        unread = [*self._doubts, *patterns, *(held.why for _, held in held_values if held)]
        open_ = [one for one, held in held_values if held is None and not _NO_CHOICE.match(one)]
        if self._doubts or open_:
            unread += self._gone
        if self._may_be_written:
            unread += [self._may_be_written.get(os.path.normpath(one), "") for one in texts]
        blank_in = ""
        if rest[-1].raw[:1] == "\\" and texts[-1].isspace():
            blank_in = str(here.path) if self._file else self._line(rest[-1].place)
        command = Command(
            words=words,
            start=fields[0].place if fields[0].place >= 0 else self._place,
            text=self._text,
            variables={**self._around(), **assigned} if assigned else self._around(),
            within=here.within,
            unread=tuple(dict.fromkeys(filter(None, unread))),
            gone=tuple(self._gone),
            defaults={n: at[one.end] for n, one in enumerate(words) if one.end in at},
            assumed=tuple(self._assumed),
            options=self._options,
            path=here.path or self._placed,
            placed=self._placed,
            written=self.written,
            beside=self._beside,
            blank_in=blank_in,
        )
        self.commands.append(command)
        if any(patterns):  # whom it starts gets other words
            items.append(Field("", [unplaced("${*[@]}")], -1))
        sets = {one.text.partition("=")[0]: Value([one.value]) for one in before}
        if texts[0] in self._functions:
            return self._calls(command, [item for one in items[1:] for item in one.items], sets)
        for first, is_text in _started_by(texts):
            if is_text:
                self._follow(items[first], texts, sets)
            elif self._starts(command, [item for one in items for item in one.items], first):
                return

    def _around(self) -> dict[str, str]:
        """What exported variables hold; `$NAME`: only the shell knows."""
        held = {name: self._variables.get(name) for name in self._exported}
        return {name: f"${name}" for name in _ASKED_FOR if self._gone} | {
            name: f"${name}" if value.items is None else plain([*chain(*value.items)])
            for name, value in held.items()
            if value is not None
        }

    def _starts(self, command: Command, items: list[Chars], at: int) -> bool:
        """Read a shell file that a command starts, in a shell of its own; whether it is one."""
        texts, here = [word.text for word in command.words], self._here
        if here.path is None or self._depth >= _MOST_DEEP:
            return False
        held = self.written.get(os.path.normpath(texts[at]))
        text = held if isinstance(held, str) else ""
        path = here.path.parent / texts[at] if text else self._found(texts[at], here.path)
        if path is None or path.resolve() in self._files or path.suffix == ".py":
            return False
        with contextlib.suppress(RenderError):
            text = text or read_text(path)
        if path.suffix in DATA_SUFFIXES:
            text = commands_of_job(text, path)
        elif not is_shell(text, path) and {*map(_name, texts[:at])}.isdisjoint(_SHELLS):
            text = ""
        if self._n_left <= 0:
            self._gone.append(f"{path}, which line {command.line} starts, is not read")
            return False
        options = slurm.step_of(texts[:at], {**self._options, **slurm.options_of(text)})
        inside = _Reader(self._text, path, command.variables, options, self._files)
        if given := items[at + 1 :]:
            inside._variables.update(self._handed(given))
        inside._file = f"{path}, which line {command.line} starts,"
        inside._placed, inside._place = self._placed, command.start
        inside._depth, inside._n_left = self._depth, self._n_left
        inside._n_nested = self._n_nested
        with contextlib.suppress(OpenError):
            within = (*here.within, *texts)
            inside.read_file([(char, command.start) for char in text], path, within)
            self._n_left = inside._n_left
            self.sourced += [path, *inside.sourced] if text else ()
            self._started(texts[at + 1 :], inside.commands)
            return bool(text)
        return False

    def _found(self, name: str, base: Path) -> Path | None:
        return _sourced(os.path.join(self._field(unplaced("$PWD")).text, name), base)

    def _calls(self, command: Command, given: list[Chars], assigned: Mapping[str, Value]) -> None:
        """Go through the function that a command calls with some words and its own variables."""
        name, n_commands = command.words[0].text, len(self.commands)
        function = self._functions[name]
        if self._depth >= _MOST_DEEP or self._n_left <= 0:
            self._lose(f"`{name}` is a function that is not followed in all its calls")
            return
        self._called.add(name)
        try:
            with self._lent(assigned, {"@": self._variables.get("@"), **self._handed(given)}):
                self._run(function)
        finally:
            ran = self.commands[n_commands:]
            del self.commands[n_commands:]
            self._started([word.text for word in command.words[1:]], ran)

    def _handed(self, given: list[Chars]) -> _Changes:
        """What `$@` is where words are handed on; nothing: what it is here."""
        words, handed = [*map(plain, given)], self._variables.get("@")
        is_open = handed is not None and handed.items is None and not _ALL_GIVEN.isdisjoint(words)
        if is_open or any("[@]" in one for one in words):
            return {"@": Value()}
        if words and _ALL_GIVEN.issuperset(words):
            return {}
        return {"@": Value(given, True).differing(any(map(UNKNOWN.search, words)))}

    def _started(self, given: Sequence[str], commands: Sequence[Command]) -> None:
        """Take what the last command starts, in its place if that uses what it is given."""
        inner = {word.text for one in commands for word in one.words}
        if not inner.isdisjoint(given):
            self.commands.pop()
        self.commands += commands

    def _follow(self, text: Field, words: Sequence[str], assigned: Mapping[str, Value]) -> None:
        """Read a text that a command makes a shell read; one that does not close is left."""
        if self._depth >= _MOST_DEEP:
            return
        chars = [(char, text.place if at == -1 else at) for char, at in text.chars]
        within = (*self._here.within, *words)
        is_part = words == ("eval",)
        here = replace(self._here, within=within, doubts=tuple(self._doubts), is_part=is_part)
        here = replace(here, is_function=is_part and here.is_function)
        unexported = self._variables.keys() - self._exported - {"PWD"}
        inside: _Changes = {**dict.fromkeys(["@", *unexported], Value()), **assigned}
        shell = contextlib.nullcontext() if is_part else self._shell(inside)
        with contextlib.suppress(OpenError), shell:
            if assigned and not is_part:
                self._exported |= assigned.keys()
            self._run(replace(here, lines=lines_of(chars)))


def _counted_by(words: Sequence[Chars]) -> Sequence[str]:
    """Variables of a loop of some words: `N in ...`, `((N=0; N<8; N++))`."""
    first = plain(words[0]) if words else ""
    return touched_by([first]) if first.startswith("((") else [first]


def _set_by_env(fields: Sequence[Field]) -> Sequence[Field]:
    """The variables that `env` sets, of the words behind it."""
    named = takewhile(lambda one: one.text[:1] == "-" or ASSIGNS.match(one.text), fields)
    return [one for one in named if one.text[:1] != "-"]


def _of_batch(chars: Chars) -> Chars:
    """A word of srun's: its batch file puts in its own numbers, which are 0, and its own name."""
    for found in reversed([*_OF_TASKS.finditer(plain(chars))]):
        if chars[found.start()][1] == _LEFT_OPEN:
            value = unplaced("$SLURM_LAUNCH_NODE_IPADDR" if found[1] else "0")
            chars = [*chars[: found.start()], *value, *chars[found.end() :]]
    return chars


def _name(text: str) -> str:
    return text.rpartition("/")[2]


def _reads_commands(texts: Sequence[str]) -> bool:
    """Whether a command takes what it reads for commands: `srun bash`, `ssh HOST`, `sbatch`."""
    behind = [*dropwhile(lambda text: _name(text) not in _READ_COMMANDS, texts)]
    options = behind[1:] if behind and _name(behind[0]) in _SHELLS else ()
    is_file = any(text.endswith(SHELL_SUFFIXES) for text in behind)
    return bool(behind) and not is_file and all(text.startswith(("-", "+")) for text in options)


def _started_by(texts: Sequence[str]) -> Iterator[tuple[int, bool]]:
    """Places of words that may be a shell file which a command starts, or texts for a shell."""
    names = [*map(_name, texts)]
    files = list[int]()
    for at in (at + 1 for at, name in enumerate(names) if name in _SHELLS):
        while texts[at : at + 1] and texts[at][:1] in ("-", "+"):
            if _TEXT_OPTION.fullmatch(texts[at]):
                yield from [(at + 1, True)] * (at + 1 < len(texts))
                break
            at += 1 + (_VALUED_OPTION.fullmatch(texts[at]) is not None)
        else:
            files.append(at)
    if any(name in _SHELLS for name in names):
        yield from ((at, False) for at in files[:1] if at < len(texts))
    elif names[0] in _ELSEWHERE and " " in texts[-1]:
        yield len(texts) - 1, True
    else:
        begun = next((at for at, name in enumerate(names) if name in _STARTERS), len(texts))
        for at, text in enumerate(texts):
            is_file = text.endswith(SHELL_SUFFIXES) or text.startswith(("./", "../"))
            is_job = names[0] in _SUBMITTERS and text.endswith(DATA_SUFFIXES)
            if is_job or (is_file and (at == 0 or at > begun)):
                yield at, False


def _one_of(name: str, before: Value | None, values: Sequence[Value | None], why: str) -> Value:
    """A variable that holds one of some values: it, or what all of them begin with."""
    texts = [None if one is None else one.texts for one in values]
    is_array = any(one.is_array for one in values if one)
    first, begin = values[0], None if before is None else before.texts
    if first is not None and texts[0] is not None and texts.count(texts[0]) == len(texts):
        return first.differing(any(one.why is not None for one in values if one))
    if before is None or before.items is None or begin is None:
        return Value(None, is_array, why)
    rest = [*before.items, unplaced(f"${{{name}[@]}}")]
    if before.is_array:
        is_added = all(one is not None and one[: len(begin)] == begin for one in texts)
    else:
        blank, rest = f"{''.join(begin)} ", joined(rest)
        is_added = all(one and (one == begin or one[0].startswith(blank)) for one in texts)
    return before._replace(items=rest, why=why) if is_added else Value(None, is_array, why)


def _sourced(name: str, base: Path) -> Path | None:
    """The file that `source NAME` means; None: it is not there.

    A folder that only the shell knows, or that is not here, is taken for the script's, or one
    above it.
    """
    rest = _UNKNOWN_FOLDERS.sub("", name)
    if rest.startswith("/") and not os.path.isdir(os.path.dirname(rest)):  # as in a container
        rest = _name(rest)
    if not rest or UNKNOWN.search(rest):
        return None
    near = (*(folder / rest for folder in base.parents[:_FOLDERS_ABOVE]), Path(rest))
    found = next((one for one in near if os.path.isfile(one)), None)
    return None if found is None or found.resolve() == base.resolve() else found
