"""A shell file: its simple commands as words, each with its place in the text.

It is read and not run, command by command. Known are quotes, line continuations, here-documents,
assignments, arrays, `+=`, `${X:-default}`, sums, tests of words and numbers, texts for another
shell (`bash -c`, `eval`), files that are sourced or started, and folders (`$PWD`,
`$(dirname "$0")`). All else stays as it is written, and the commands say why.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

from autotune.base.errors import JobError, RenderError
from autotune.base.flags import flag
from autotune.base.text import line_of, named
from autotune.base.user_text import read_text
from autotune.engines.launches import slurm
from autotune.engines.launches.files import DATA_SUFFIXES, SHELL_SUFFIXES, is_shell
from autotune.engines.launches.jobs import commands_of_job
from autotune.engines.launches.shell_syntax import (
    LOOPS,
    PIPES,
    OpenError,
    Token,
    assigned,
    elements,
    end_of,
    loop_of,
    tokens_of,
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
_UNKNOWN_FOLDERS = re.compile(r".*[$`][^/]*/")
_JOINTS = ("&&", "||")
_AROUND_ONE = (*_JOINTS, "!", "function")
"""What ends with the one command behind it."""
_PARTS = {
    **dict.fromkeys(("then", "elif", "else"), ("if",)),
    **dict.fromkeys((";;", ";&", ";;&"), ("case",)),
}
"""What begins another part of a block -> the keywords of such blocks."""
_ENDS = {"fi": ("if",), "esac": ("case",), "done": LOOPS, "}": ("{",), ")": ("(",)}
"""What ends a block -> the keywords that begin it."""
_SHELLS = ("bash", "sh", "zsh", "ksh", "dash")
_TEXT_OPTION = re.compile(r"-\w*c")
_VALUED_OPTION = re.compile(r"[-+]\w*[oO]|--(?:rcfile|init-file)")
"""An option of a shell that takes the next word."""
_STARTERS = ("exec", "nohup", "sbatch", "srun", "env", "time")
"""Commands that start a file which is a shell's by its name or its first line."""
_SUBMITTERS = ("kubectl", "sky", "sed", "envsubst")
"""Commands that hand on a job in YAML."""
_ALL_GIVEN = {"$@", "$*"}
_ELSEWHERE = ("ssh", "pdsh", "clush", "tmux", "screen")
"""Commands whose last word is a text for a shell: of another machine, or another terminal."""
_READ_COMMANDS = (*_SHELLS, "ssh", "sbatch")
"""Commands that read others from a here-document, unless a file or a text is theirs."""
_OF_PYTHON = ("bin/activate", "conda.sh")
"""Files that choose a Python, and set nothing that a launch is given."""
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
    variables: Mapping[str, Word] = field(default_factory=dict)
    """Those of its environment that the file sets: the value and where it is written."""
    within: tuple[str, ...] = ()
    """The commands that hand it to a shell as a text; empty: it stands in the file itself."""
    unread: tuple[str, ...] = ()
    """Why words of it are not known, or may be others: lines that decide, files not read."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What its file asks Slurm for."""

    @property
    def line(self) -> int:
        """The line of the file on which it begins."""
        return line_of(self.text, max(0, self.start))

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
    """Files that it sources, and whose variables it has from there on, or starts."""
    written: Mapping[str, str]
    """Path, as `os.path.normpath` has it -> the text that a here-document writes there. It stands
    on the lines that it has in the file."""

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
        reader.read(list(zip(text, range(len(text)), strict=True)), path if follows else None)
    except OpenError as error:
        raise JobError(f"{path}:{line_of(text, error.at)}: {error}", "close it") from error
    return ShellText(
        commands=tuple(reader.commands),
        sourced=tuple(dict.fromkeys(reader.sourced)),
        written=reader.written,
    )


class _Branch(NamedTuple):
    """What is gone through under a condition."""

    runs: bool | None
    """None: only the shell knows."""
    may_differ: bool
    """Whether values that may be others decide that."""
    changes: _Changes


@dataclass(kw_only=True)
class _Frame:
    """A compound command, a function, or a command behind a joint, which has begun."""

    keyword: str
    place: int
    """Where it begins."""
    why: str
    """Why only the shell knows what it leaves, where its condition is not known."""
    truth: _Truth
    """Truth of the command before a joint; whether a branch of an `if` has run."""
    is_piped: bool
    """Whether it reads from a pipe, so that it is in a shell of its own."""
    ended: list[_Branch] = field(default_factory=list)
    open: tuple[bool | None, bool] | None = None
    """Whether the branch runs whose changes lie in the topmost scope, and may do otherwise."""
    mode: tuple[bool, bool] = (False, False)
    """The reader's, outside of that branch."""
    is_all: bool = False
    """Whether one of its branches runs in any case."""
    is_pattern: bool = False
    """Whether a pattern of a `case` comes next."""
    n_certain: int = 0
    """The reader's, outside of a function."""
    reads_options: bool = False
    """Whether it is a loop over the options of the file, which is read as started without one."""


@dataclass(kw_only=True)
class _Text:
    """A text that is read: a file, or what a command hands to a shell."""

    tokens: Sequence[Token]
    path: Path | None
    """The file that it is, or that holds it; None: none that it sources is read."""
    within: tuple[str, ...]
    """The commands that hand it on."""
    doubts: Sequence[str]
    """Why the text may be another, where a command hands it on."""
    at: int = 0
    frames: list[_Frame] = field(default_factory=list)
    truth: _Truth = _OPEN
    """Truth of the last command."""
    place: int = -1
    """Where that begins."""
    is_piped: bool = False
    """Whether a pipe leads to the next command."""

    def ahead(self, further: int = 0) -> str:
        """The token that comes, as it is written; empty: none does."""
        at = self.at + further
        return self.tokens[at].text if at < len(self.tokens) else ""


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
        self._file = ""
        """The file that is read in a shell of its own, in words; empty: it is the text."""
        around = {**slurm.variables_of(options), **variables}
        held = {"PWD": ".", "0": str(path), "BASH_SOURCE": str(path), **around}
        self._scopes: list[_Changes] = [
            {name: Value([unplaced(text)]) for name, text in held.items()}
        ]
        """Variables, and what each open branch has changed of them."""
        self._exported = dict.fromkeys(around)
        self._n_certain = 0
        """Scopes, from the first on, whose values may be others where a function is called."""
        self.commands: list[Command] = []
        self.sourced: list[Path] = []
        self.written: dict[str, str] = {}
        self._gone: list[str] = []
        """Files that it sources and that are not read, in words."""
        self._here = _Text(tokens=(), path=None, within=(), doubts=())
        self._doubts: list[str] = []
        """Why values that are put into the command may be others; empty: as of `Value.why`."""
        self._is_skipped = False
        """Whether what stands here never runs."""
        self._is_aside = False
        """Whether it runs only if values are others."""
        self._depth = self._n_put = 0

    def read(
        self,
        chars: Chars,
        path: Path | None,
        within: tuple[str, ...] = (),
        doubts: Sequence[str] = (),
    ) -> None:
        """Take all commands of a text; the arguments are those of `_Text`.

        Raises:
            OpenError: Something in it does not close.
        """
        here = _Text(tokens=tokens_of(chars), path=path, within=within, doubts=doubts)
        before, self._here, self._depth = (self._here, self._doubts), here, self._depth + 1
        while here.at < len(here.tokens):
            self._take()
        open_ = next((one for one in here.frames if one.keyword not in _AROUND_ONE), None)
        while here.frames:
            self._close()
        (self._here, self._doubts), self._depth = before, self._depth - 1
        if open_ is not None:
            raise OpenError(open_.keyword, open_.place)

    def _take(self) -> None:
        """Take the next token, or the simple command that it begins."""
        here = self._here
        token = here.tokens[here.at]
        text, frame = token.text, here.frames[-1] if here.frames else None
        if frame is not None and frame.is_pattern and text != "esac":
            here.at += 1
            if text == ")":
                frame.is_pattern = False
                self._choose(frame, _OPEN)
        elif token.kind in ("word", "redirection"):
            self._command()
        elif text in (*_ENDS, *_PARTS):
            here.at += 1
            if (frame := self._innermost(_ENDS.get(text) or _PARTS[text])) is None:
                return
            if text in _ENDS:
                self._words()  # where it reads and writes
                return self._finish(self._close())
            self._end(frame)
            frame.is_all = frame.is_all or text == "else"
            frame.is_pattern = frame.keyword == "case"
            if text in ("then", "else"):
                self._choose(frame, here.truth if text == "then" else _Truth(True))
        elif token.kind == "keyword" or text in (*_JOINTS, "("):
            self._open()
        else:
            here.at, here.is_piped = here.at + 1, here.is_piped or text in PIPES

    def _innermost(self, keywords: Sequence[str]) -> _Frame | None:
        """The innermost block of some kind, those in it ended; None: there is none to end."""
        frames = self._here.frames
        if all(frame.keyword not in keywords for frame in frames):
            return None
        while frames[-1].keyword not in keywords:
            self._close()
        return frames[-1]

    def _open(self) -> None:
        """Begin a block, at its keyword or at the name of a function."""
        here, begun = self._here, self._here.at
        keyword = here.tokens[begun].text
        here.at += 1
        if keyword in ("time", "do"):
            return
        is_joint, place = keyword in _JOINTS, here.place
        if not is_joint:
            place = here.tokens[begun].chars[0][1]
        if here.tokens[begun].kind == "word" or keyword == "function":
            here.at += keyword == "function"
            here.at += 2 * (here.ahead() == "(")
            keyword = "function"
        frame = _Frame(
            keyword=keyword,
            place=place,
            why=f"{self._line(place)} decides by `{keyword}`",
            truth=here.truth if is_joint else _Truth(False),
            is_piped=here.is_piped,
        )
        here.is_piped = False
        here.frames.append(frame)
        if is_joint:
            holds = frame.truth.holds
            runs = None if holds is None else holds is (keyword == "&&")
            self._begin(frame, runs, frame.truth.may_differ)
        elif keyword in LOOPS:
            self._begin_loop(frame, list(loop_of(here.tokens, begun)))
            if keyword in ("for", "select"):
                self._words()
        elif keyword == "function":
            frame.n_certain, self._n_certain = self._n_certain, len(self._scopes)
            self._begin(frame, True, given={"@": Value()})
        elif keyword == "case":
            self._words()
            frame.is_pattern = True
        elif keyword in ("{", "("):
            self._begin(frame, True)

    def _begin(
        self,
        frame: _Frame,
        runs: bool | None,
        may_differ: bool = False,
        given: _Changes | None = None,
    ) -> None:
        """Begin a branch: what it changes is kept apart, from some changes on."""
        frame.open, frame.mode = (runs, may_differ), (self._is_skipped, self._is_aside)
        self._is_skipped = self._is_skipped or (runs is False and not may_differ)
        self._is_aside = self._is_aside or runs is False
        self._scopes.append({} if given is None else given)

    def _end(self, frame: _Frame) -> None:
        """End the branch of a block, if one is open."""
        if frame.open is not None:
            frame.ended.append(_Branch(*frame.open, self._scopes.pop()))
            self._is_skipped, self._is_aside = frame.mode
            frame.open = None

    def _choose(self, frame: _Frame, truth: _Truth) -> None:
        """Begin a branch of an `if` or a `case` by what its condition says."""
        has_run, may_differ = frame.truth
        runs = None if has_run is None else truth.holds
        runs = False if has_run or truth.holds is False else runs
        self._begin(frame, runs, may_differ if has_run else truth.may_differ)
        frame.truth = _Truth(runs if has_run is False else has_run, may_differ or truth.may_differ)

    def _begin_loop(self, frame: _Frame, commands: Sequence[list[str]]) -> None:
        """Begin a loop: what it sets is not known where it begins."""
        given = _Changes()
        for name, is_added in assigned(commands):
            before = given.get(name, self._get(name))
            given[name] = Value(why=frame.why)
            if is_added and before is not None:
                given[name] = _added(name, before, frame.why)
        is_started = bool(self._file and self._scopes[0].get("@"))
        reads = any(words[0] in OPTION_READERS for words in commands)
        frame.reads_options = reads and not is_started and not self._n_certain
        self._begin(frame, None, given=given)

    def _close(self) -> _Truth:
        """End the innermost block: what it leaves, and what came of it."""
        here = self._here
        frame, truth = here.frames.pop(), here.truth
        self._end(frame)
        keyword, why, branches = frame.keyword, frame.why, frame.ended
        if keyword == "function":
            self._n_certain = frame.n_certain
        if keyword == "(" or frame.is_piped or here.ahead() in PIPES:  # in a shell of its own
            return _OPEN
        if keyword == "!":
            return truth if truth.holds is None else truth._replace(holds=not truth.holds)
        if keyword == "function":
            changes = {name: v for name, v in branches[0].changes.items() if name != "@"}
            # Whether it is called is not followed: a variable with another value may keep it.
            others = {n: v for n, v in changes.items() if self._get(n) not in (None, v)}
            given = {name: v for name, v in changes.items() if name not in others}
            self._merge([_Branch(True, True, given)], why)
            branches = [_Branch(None, True, others)]
        if frame.reads_options:
            for name in branches[0].changes.keys() - {"@"}:
                value = self._get(name) or Value()
                self._put(name, value._replace(why=value.why or why))
            return _OPEN
        self._merge(branches, why, is_all=frame.is_all)
        if keyword in _JOINTS:
            before, runs = frame.truth, branches[0].runs
            holds = truth.holds if runs else before.holds if runs is False else None
            return _Truth(holds, before.may_differ or truth.may_differ)
        return truth if keyword == "{" else _OPEN

    def _finish(self, truth: _Truth) -> None:
        """Note what came of a command, and end what was about it alone."""
        here = self._here
        here.truth = truth
        while here.frames and here.frames[-1].keyword in _AROUND_ONE:
            if here.ahead() in PIPES:
                return
            here.truth = self._close()

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

    def _words(self) -> tuple[list[Chars], list[Token]]:
        """Take the words and the redirections that come."""
        here, words, targets = self._here, list[Chars](), list[Token]()
        while here.at < len(here.tokens):
            token = here.tokens[here.at]
            if token.kind == "word":
                words.append(token.chars)
            elif token.kind == "redirection":
                targets.append(token)
            else:
                break
            here.at += 1
        return words, targets

    def _command(self) -> None:
        """Take a simple command, or begin a function at its name."""
        here = self._here
        token = here.tokens[here.at]
        if token.kind == "word" and [here.ahead(1), here.ahead(2)] == ["(", ")"]:
            return self._open()
        here.place = token.chars[0][1] if token.chars else -1
        words, targets = self._words()
        is_apart, truth = here.is_piped or here.ahead() in PIPES, _OPEN
        here.is_piped = False
        if not self._is_skipped:
            self._scopes += [{}] * is_apart
            truth = self._simple(words, targets)
            del self._scopes[len(self._scopes) - is_apart :]
        return self._finish(truth)

    def _get(self, name: str) -> Value | None:
        for number in range(len(self._scopes) - 1, -1, -1):
            if name in self._scopes[number]:
                value = self._scopes[number][name]
                return value and value.differing(number < self._n_certain)
        return None

    def _put(self, name: str, value: Value | None) -> None:
        """Let a variable hold a value; None: it is not set."""
        self._scopes[-1][name] = value

    def _given(self, name: str) -> Value | None:
        """What `$1`, `$#` or `$@` is; a file that nobody is seen to start has no words."""
        words = self._get("@")
        if name == "#" and words is None:
            return Value([unplaced("0")], why="")
        if words is None or words.items is None or name in "@*":
            return words
        sure = [one for one in words.items if plain(one) not in _ALL_GIVEN]
        sure = [unplaced(str(len(sure)))] if name == "#" else sure[int(name) - 1 :][:1]
        return Value(sure, why=words.why) if sure else None

    def _line(self, place: int) -> str:
        if self._file or place < 0:
            return self._file or "a file that it sources"
        return f"line {line_of(self._text, place)}"

    def _simple(self, words: Sequence[Chars], targets: Sequence[Token]) -> _Truth:
        """Take a simple command: what it sets, sources, asks or starts."""
        self._doubts = [*self._here.doubts]
        fields = [self._element(word) for word in words]
        files = [(one, self._field(one.chars, is_split=False)) for one in targets]
        if fields and not self._sets(fields) and not self._sources(fields):
            self._runs(fields)
        self._document(fields, files)
        if len(fields) > 1 and fields[0].raw in ("[", "[["):
            return _Truth(truth_of(fields), any(one.may_differ for one in fields))
        return _TRUTHS.get(fields[0].raw, _OPEN) if fields else _OPEN

    def _element(self, chars: Chars) -> Field:
        """A word of a command, or an assignment with it."""
        raw, before = plain(chars), len(self._doubts)
        if raw.startswith("(("):
            return Field(raw, [chars], chars[0][1])
        if (inside := elements(chars)) is None:
            return self._field(chars, is_split=not ASSIGNS.match(raw))
        items = [item for one in inside for item in self._field(one).items]
        return Field(raw, items, chars[0][1], True, len(self._doubts) > before)

    def _field(self, chars: Chars, *, is_split: bool = True, is_document: bool = False) -> Field:
        """A word without its quotes, or a here-document, with the variables of the file."""
        raw, at, is_quoted, before = plain(chars), 0, is_document, len(self._doubts)
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
                    is_whole = is_quoted or not is_split
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
            word = (word or []) + part
        items = done if word is None else [*done, word]
        place = chars[0][1] if chars else -1
        return Field(raw, items, place, may_differ=len(self._doubts) > before)

    def _document(self, fields: Sequence[Field], targets: Sequence[tuple[Token, Field]]) -> None:
        """Keep the here-documents of a command, where they go to a file or a variable."""
        files = [word.text for target, word in targets if target.text in (">", ">|")]
        command = fields[0].raw if fields else ""
        name = files[-1] if files else fields[-1].text if command == "tee" else ""
        path = os.path.normpath(name)
        for target, word in targets:
            if target.document is None:
                continue
            body = target.document
            if word.raw[:1] not in ("'", '"', "\\"):
                body = self._field(body, is_split=False, is_document=True).chars
            if name and not (self._is_aside and path in self.written):
                above = max(0, target.document[0][1]) if target.document else 0
                self.written[path] = "\n" * (line_of(self._text, above) - 1) + plain(body)
            elif command == "read" and not name:
                self._put(fields[-1].text, Value([body]))
            elif not name and _reads_commands(texts := [one.text for one in fields]):
                self._hands_on(Field("", [body], word.place), texts)

    def _put_in(self, chars: Chars) -> list[Chars] | None:
        """What an expansion stands for; None: only the shell knows."""
        raw = plain(chars)
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
            self._doubts.append("")
            if "=" in sign:
                self._put(name, Value([default], why=""))
            return [default]
        if held is None or held.items is None:
            return None
        is_whole = held.is_array and (found[3] or name).strip("[]") in ("@", "*")
        items = held.items if is_whole else held.items[:1]
        self._doubts += [] if held.why is None else [held.why]
        self._n_put += sum(len(item) + 32 for item in items)
        return items if self._n_put <= _MOST_PUT else None

    def _commands_of(self, chars: Chars, path: Path | None) -> list[Command]:
        """The commands of a text that are none of the file's own."""
        before, self.commands = self.commands, []
        try:
            self.read(chars, path)
        finally:
            found, self.commands = self.commands, before
        return found

    def _folder(self, chars: Chars) -> str | None:
        """What commands print that only ask for a folder; None: they are others.

        `pwd`, `dirname "$0"`, `cd "$(dirname "$0")/.." && pwd`.
        """
        commands: list[Command] = []
        self._scopes.append({})
        with contextlib.suppress(OpenError):
            commands = self._commands_of(chars, None) if self._depth <= _MOST_DEEP else []
        self._scopes.pop()
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
        touched = touched_by(names)
        self._forget(touched)
        if names[0] == "unset":
            for name in touched:
                self._put(name, None)
        if names[0] == "read":  # what a here-document gives it, is held where that stands
            if len(names) == 4 and names[1] in ("-a", "-ra", "-ar"):
                items = [chars for chars in at_blanks(fields[3].chars) if chars]
                self._put(names[2], Value(items, True).differing(fields[3].may_differ))
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
        value = value._replace(why=next(filter(None, self._doubts), value.why))
        self._put(name, value.differing(given.may_differ))

    def _sources(self, fields: Sequence[Field]) -> bool:
        """Read a file that a line sources; whether it does."""
        path = self._here.path
        if path is None or len(fields) < 2 or fields[0].raw not in ("source", "."):
            return False
        name, outer = fields[1].text, self._get("BASH_SOURCE")
        if name.endswith(_OF_PYTHON):
            return True
        found = _sourced(name, path)
        try:
            if found is None or self._depth >= _MOST_DEEP:
                raise RenderError(f"{name}: is not there", "")
            chars = unplaced(read_text(found))
            self._put("BASH_SOURCE", Value([unplaced(str(found))]))
            self.sourced.append(found)
            self._commands_of(chars, found)
        except (RenderError, OpenError):
            self._gone.append(f"{name}, which {self._line(fields[0].place)} sources, is not read")
            for each in dict.fromkeys(name for scope in self._scopes for name in scope):
                if (value := self._get(each)) is not None:
                    self._put(each, value.differing(True))
        finally:
            self._put("BASH_SOURCE", outer)
        return found is not None

    def _runs(self, fields: Sequence[Field]) -> None:
        """Take a command, or those in the text that it hands to a shell."""
        here = self._here
        n_set = next(at for at, one in enumerate(fields) if not ASSIGNS.match(one.raw))
        rest, variables = fields[n_set:], dict[str, Word]()
        items = [one._replace(items=[chars]) for one in rest for chars in one.items]
        words = tuple(one.word(one.chars) for one in items)
        if not words:
            return
        texts = tuple(word.text for word in words)
        for name in self._exported if texts[0] not in _STARTS_NOTHING else ():
            if (held := self._get(name)) is not None and held.items is not None:
                variables[name] = items[0].word([char for item in held.items for char in item])
        own = {one.raw.partition("=")[0]: one.word(one.value) for one in fields[:n_set]}
        if texts[0] == "eval":
            parts = [[*one.chars, (" ", -1)] for one in items[1:]]
            self._follow(Field("", parts, fields[0].place), ("eval",))
            return
        if texts[0] == "cd" and len(texts) == 2:
            folder = os.path.join(self._field(unplaced("$PWD")).text, texts[1])
            is_known = UNKNOWN.search(folder) is None
            self._put("PWD", Value([unplaced(os.path.normpath(folder))] if is_known else None))
        names = _VARIABLES.findall(" ".join([*texts, *(one.text for one in own.values())]))
        held_values = [(name, self._get(name)) for name in names]
        unread = [*self._doubts, *(held.why for _, held in held_values if held)]
        if self._doubts or any(held is None for _, held in held_values):
            unread += self._gone
        command = Command(
            words=words,
            start=fields[0].place,
            text=self._text,
            variables=variables | own,
            within=here.within,
            unread=tuple(dict.fromkeys(filter(None, unread))),
            options=self._options,
        )
        self.commands.append(command)
        for at, is_text in _started_by(texts):
            if is_text:
                self._hands_on(items[at], texts)
            elif self._starts(command, at):
                return

    def _starts(self, command: Command, at: int) -> bool:
        """Read a shell file that a command starts, in a shell of its own; whether it is one."""
        texts, here = [word.text for word in command.words], self._here
        if here.path is None or self._depth >= _MOST_DEEP:
            return False
        text = self.written.get(os.path.normpath(texts[at]), "")
        path = here.path.parent / texts[at] if text else _sourced(texts[at], here.path)
        if path is None or path.resolve() in self._files or path.suffix == ".py":
            return False
        with contextlib.suppress(RenderError):
            text = text or read_text(path)
        if path.suffix in DATA_SUFFIXES:
            text = commands_of_job(text, path)
        elif not is_shell(text, path) and {*map(_name, texts[:at])}.isdisjoint(_SHELLS):
            text = ""
        words, own = texts[at + 1 :], self._get("@")
        is_open = bool(own and own.items is None and _ALL_GIVEN & {*words})
        is_open = is_open or any("[@]" in one for one in words)
        variables = {name: word.text for name, word in command.variables.items()}
        options = slurm.step_of(texts[:at], {**self._options, **slurm.options_of(text)})
        inside = _Reader(self._text, path, variables, options, self._files)
        if is_open or {*words} - _ALL_GIVEN:
            items = None if is_open else [unplaced(one) for one in words]
            inside._put("@", Value(items, True).differing(any(map(UNKNOWN.search, words))))
        inside._file = f"{path}, which {self._line(command.start)} starts,"
        inside._depth = self._depth
        with contextlib.suppress(OpenError):
            within = (*here.within, *texts)
            inside.read([(char, command.start) for char in text], path, within)
            self.sourced += [path, *inside.sourced] if text else ()
            ends = (one.words[-len(words) :] for one in inside.commands if words)
            if any([word.text for word in end] == words for end in ends):
                self.commands.remove(command)  # it starts the words that it is given
            self.commands += inside.commands
            return bool(text)
        return False

    def _hands_on(self, text: Field, words: Sequence[str]) -> None:
        """Read a text that a command of some words hands to a shell of its own."""
        if words[0] == "sbatch" and text.text.startswith("--wrap="):
            text = text._replace(items=[text.value])
        self._scopes.append({"@": Value()})
        self._follow(text, words)
        self._scopes.pop()

    def _follow(self, text: Field, words: Sequence[str]) -> None:
        """Read a text that a command makes a shell read; one that does not close is left."""
        if self._depth < _MOST_DEEP:
            chars = [(char, at if at >= 0 else text.place) for char, at in text.chars]
            within = (*self._here.within, *words)
            with contextlib.suppress(OpenError):
                self.read(chars, self._here.path, within, tuple(self._doubts))


def _name(text: str) -> str:
    return text.rpartition("/")[2]


def _reads_commands(texts: Sequence[str]) -> bool:
    """Whether a command takes what it reads for commands: `srun bash`, `ssh HOST`, `sbatch`."""
    behind = [*dropwhile(lambda text: _name(text) not in _READ_COMMANDS, texts)]
    own = behind[1:] if behind and _name(behind[0]) in _SHELLS else ()
    is_file = any(text.endswith(SHELL_SUFFIXES) for text in behind)
    return bool(behind) and not is_file and all(text.startswith(("-", "+")) for text in own)


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
    elif names[0] == "sbatch" and any(text.startswith("--wrap") for text in texts):
        at = next(at for at, text in enumerate(texts) if text.startswith("--wrap"))
        yield at + (texts[at] == "--wrap"), True
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
    first, begin = values[0], None if before is None else before.texts
    if first is not None and texts[0] is not None and texts.count(texts[0]) == len(texts):
        return first.differing(any(one.why is not None for one in values if one))
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
