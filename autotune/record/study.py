"""The record: one folder per study, one per trial in it; everything else is derived from it.

`Study` is every path that a study touches and the only code that reads or writes the trials.
"""

import contextlib
import errno
import fcntl
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from autotune.base.errors import JobError, StudyError
from autotune.base.files import writing
from autotune.base.flags import flag
from autotune.base.private import PreparedError, open_lock, refuse_prepared
from autotune.base.secrecy import scrubbed, scrubbed_document
from autotune.base.text import texts_on_one_line
from autotune.contract import (
    CONFIG_DIR,
    COORDINATOR_ENDED,
    RANKS_DIR,
    RESULT_FILE,
    SCHEMA_VERSION,
    SPEC_FILE,
    SPEC_SCHEMA_VERSION,
    ContractError,
    NotAFileError,
    Outcome,
    Role,
    TrialResult,
    TrialSpec,
    check_result,
    read_bounded,
    read_json,
    read_text,
    to_dict,
    write_json,
)
from autotune.record.facts import Facts
from autotune.space.candidate import candidate_of, layout_of
from autotune.space.knob import Catalogue, knobs_of

DEFAULT_RESULTS = Path("results")
"""Folder of all studies, where nobody names another."""
LOCK_FILE = "lock"
"""File of a study that its coordinator holds; it names the process."""
_ASIDE = re.compile(r"\..+\.\w+\.\w{8}")
"""Such as `.result.json.k2v9_0ab`: see `write_json` and `write_whole`."""
_NUMBER = re.compile("[0-9]{4}|[1-9][0-9]{4,8}")
"""Name of a trial's folder: `0007`, but not `7`, `00007` or `0007x`."""
_LOCK_BYTES = 64
_CONFIG_BYTES = 4 * 2**20
"""Largest configuration file of a trial that is read back."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One trial of the record; one is equal to itself alone."""

    folder: Path
    spec: TrialSpec
    result: TrialResult | None
    """None: it was in flight when the coordinator ended, or its result is unreadable."""
    problem: str = ""
    """Why the result is unreadable; empty where there is none yet."""

    @property
    def number(self) -> int:
        return self.spec.identity.number

    @property
    def candidate_hash(self) -> str:
        return self.spec.identity.candidate_hash

    @property
    def role(self) -> Role:
        return self.spec.identity.role

    @property
    def is_reduced(self) -> bool:
        """Whether it ran less than the job asks for: no figure of it is a candidate's."""
        return self.spec.identity.fidelity is not None

    @property
    def measured(self) -> TrialResult | None:
        """Its result with a step time; None: it failed, or has not ended."""
        result = self.result
        return result if result is not None and result.outcome.is_measured else None


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A trial folder that says nothing: its spec is missing or damaged."""

    folder: Path
    problem: str


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """All that the trial folders of a study say, in the order of their numbers."""

    trials: tuple[Trial, ...]
    unreadable: tuple[Unreadable, ...]


class Study:
    """The folder `results/<study>/`."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name
        self.folder = root / name
        self.trials_folder = self.folder / "trials"
        self.job_file = self.folder / "job.yaml"
        """The job as it was last searched."""
        self.table_file = self.folder / "table.parquet"
        """The table; `.csv` stands beside it."""
        self.page_file = self.folder / "report.html"
        """The report as a page, kept up while a search runs."""
        self.best_folder = self.folder / "best"
        """The exported best configuration."""
        self.state_file = self.folder / "study.json"
        """Facts of the study that no trial holds: environment, why the search stopped."""
        self.recalled_file = self.folder / "recalled.json"
        """The lessons of other studies as they were when the search began."""
        self._lock: int | None = None

    def trial_folder(self, number: int) -> Path:
        return self.trials_folder / f"{number:04d}"

    def lock(self) -> None:
        """Take the study for this process until it ends.

        Raises:
            StudyError: Another coordinator holds it, another user prepared it, or the folder
                cannot be written.
        """
        with _writing(self.folder):
            try:
                for folder in (self.root, self.folder, self.trials_folder):
                    refuse_prepared(folder)
                self.trials_folder.mkdir(parents=True, exist_ok=True)
                lock = open_lock(self.folder / LOCK_FILE, 0o666)  # others may ask who searches
            except PreparedError as error:
                hint = f"remove it, or name a folder that is yours with {flag('results')}"
                raise StudyError(str(error.strerror), hint) from error
        try:
            with _writing(self.folder):
                self._hold(lock)
        except StudyError:
            os.close(lock)
            raise
        self._lock = lock

    def _hold(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StudyError.of(
                "record.held", folder=self.folder, holder=self.holder() or "unknown"
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)

    def holder(self) -> int | None:
        """The process that took the study last, as its lock says; None where that is damaged."""
        try:
            text = read_text(self.folder / LOCK_FILE, _LOCK_BYTES).strip()
        except OSError:
            return None
        return int(text) if re.fullmatch("[0-9]{1,10}", text) else None

    @property
    def is_running(self) -> bool:
        """Whether the process that wrote the lock still holds the study.

        Trying the lock could take it from a search that starts at this moment; so the holder is
        looked up. Another process of the same number does not have the file open; the times of
        both would not tell, once somebody has set the clock.
        """
        number = self.holder()
        if number is None:
            return False
        lock = self.folder / LOCK_FILE
        try:
            held = [file.path for file in psutil.Process(number).open_files()]
            return any(lock.samefile(path) for path in held if Path(path).name == LOCK_FILE)
        except psutil.AccessDenied:
            return True  # another user's: all there is to know is that it runs
        except (OSError, OverflowError, ValueError, psutil.Error):
            return False

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def sweep(self) -> None:
        """Remove what a killed coordinator or its ranks were writing; the caller has the lock.

        Files are written aside and moved: a file that still has its first name is of no use.
        """
        for pattern in (".*", "trials/*/.*", f"trials/*/{RANKS_DIR}/.*"):
            for path in self.folder.glob(pattern):
                if _ASIDE.fullmatch(path.name) and path.is_file():
                    with contextlib.suppress(OSError):
                        path.unlink()

    def set_aside(self) -> Path | None:
        """Rename the folder to a free name beside it; returns that, None if there was nothing.

        Call it before `lock`: the lock stands in the folder and would move away with it.

        Raises:
            StudyError: Another coordinator holds the study, or the folder cannot be renamed.
        """
        if not self.folder.exists():
            return None
        self.lock()
        number = 1
        while os.path.lexists(aside := self.root / f"{self.name}.old-{number}"):
            number += 1
        try:
            with _writing(self.folder):
                self.folder.rename(aside)
        finally:
            self.unlock()
        return aside

    def read(self) -> Recorded:
        """Read every trial folder.

        Raises:
            StudyError: The folder cannot be read, or it holds a record of another schema.
        """
        found = [_read_trial(self.trial_folder(n)) for n in self._numbers()]
        return Recorded(
            trials=tuple(one for one in found if isinstance(one, Trial)),
            unreadable=tuple(one for one in found if isinstance(one, Unreadable)),
        )

    def trials(self) -> tuple[Trial, ...]:
        """The trials that `read` finds.

        Raises:
            StudyError: As `read`.
        """
        return self.read().trials

    def next_number(self, after: int | None = None) -> int:
        """The first number after all that a folder has, readable or not.

        Args:
            after: The last number that a folder has, where it is known; else they are listed.

        Raises:
            StudyError: The folder cannot be read.
        """
        numbers = self._numbers() if after is None else [after]
        number = numbers[-1] + 1 if numbers else 0
        while os.path.lexists(self.trial_folder(number)):
            number += 1
        return number

    def write_spec(self, spec: TrialSpec, files: dict[str, str]) -> Path:
        """Make a trial's folder with its spec and configuration files.

        Args:
            spec: The trial.
            files: Path below the trial's `config/` -> text.

        Raises:
            StudyError: The disk is full or the folder cannot be written.
        """
        folder = self.trial_folder(spec.identity.number)
        with _writing(folder):
            # The folder above was made with the study's lock: one that is gone was moved away, and
            # what goes on in its place would be a second study.
            folder.mkdir()
            (folder / CONFIG_DIR).mkdir()
            for name, text in files.items():
                clean = scrubbed_document(name, text)
                (folder / CONFIG_DIR / name).write_text(clean, encoding="utf-8")
            write_spec_file(folder, spec)
        return folder

    def read_files(self, trial: Trial) -> dict[str, str]:
        """A trial's configuration files, as `write_spec` got them; none that is unreadable."""
        files = {}
        folder = trial.folder / CONFIG_DIR
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder)):
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    files[name] = read_bounded(folder / name, _CONFIG_BYTES).decode("utf-8")
        return files

    def write_result(self, folder: Path, result: TrialResult) -> None:
        """Write a trial's result, whole or not at all; a damaged one is kept beside it.

        Raises:
            StudyError: The disk is full or the folder cannot be written.
        """
        path = folder / RESULT_FILE
        with _writing(folder):
            if os.path.lexists(path):
                path.replace(folder / f"{RESULT_FILE}.damaged")
            write_json(path, scrubbed(to_dict(result)))

    def take_result(self, folder: Path, spec: TrialSpec, result: TrialResult) -> TrialResult:
        """Write what a fleet says of a trial; returns what the record makes of it.

        Figures that cannot be are damage, as they are where they are read.

        Raises:
            StudyError: The disk is full or the folder cannot be written.
        """
        self.write_result(folder, result)
        try:
            _check(result, spec)
        except ContractError as error:
            lost = Trial(folder=folder, spec=spec, result=None, problem=str(error))
            result = lost_result(lost)
            self.write_result(folder, result)
        return result

    def read_state(self) -> dict[str, Any]:
        """Facts of the study; empty where there are none or they are unreadable."""
        try:
            return read_json(self.state_file)
        except ContractError:
            return {}

    def facts(self) -> Facts:
        return Facts.of(self.read_state())

    def checked_facts(self) -> Facts:
        """The same, of a study that says what was searched.

        Raises:
            StudyError: `study.json` is missing or damaged.
        """
        facts = self.facts()
        if facts.context is None:
            raise StudyError.of("record.study_unread", study=self)
        return facts

    def update_state(self, **facts: Any) -> None:
        """Write some facts of the study anew, beside the others; raises as `write_state`."""
        self.write_state({**self.read_state(), **facts})

    def write_state(self, state: dict[str, Any]) -> None:
        """Write the facts of the study.

        Raises:
            StudyError: The disk is full or the folder cannot be written.
        """
        with _writing(self.folder):
            write_json(self.state_file, scrubbed(state))

    def _numbers(self) -> list[int]:
        try:
            return sorted(map(int, filter(_NUMBER.fullmatch, os.listdir(self.trials_folder))))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StudyError.of(
                "record.trials_unread", trials_folder=self.trials_folder, error=error
            ) from error


def write_spec_file(folder: Path, spec: TrialSpec) -> None:
    """Write a trial's `spec.json`; one that holds words of the user's is the user's alone.

    Raises:
        OSError: The disk is full or the folder cannot be written.
    """
    data, workload = scrubbed(to_dict(spec)), spec.workload
    # Ranks start by these words: they stay as they were typed.
    data["workload"] |= {"command": workload.command, "arguments": workload.arguments}
    is_private = bool(workload.command or workload.arguments)
    write_json(folder / SPEC_FILE, data, is_private=is_private)


def flags_of(folder: Path) -> str:
    """The flags by which a command finds the study of a folder."""
    flags = f"--study {shlex.quote(folder.name)}"
    if folder.parent == DEFAULT_RESULTS:
        return flags
    return f"{flags} --results {shlex.quote(str(folder.parent))}"


def results(trials: Iterable[Trial]) -> list[TrialResult]:
    """The results that there are."""
    return [trial.result for trial in trials if trial.result is not None]


def lost_result(trial: Trial) -> TrialResult:
    """The result of a trial that was in flight when its coordinator ended."""
    evidence = trial.problem or COORDINATOR_ENDED
    return TrialResult.of(
        trial.spec.identity, Outcome.LOST, evidence=evidence, evidence_source="record"
    )


def _check(result: TrialResult, spec: TrialSpec) -> None:
    """Check that a result is that trial's, and that its figures agree.

    Raises:
        ContractError: It is not, or they do not.
    """
    identity = spec.identity
    if (result.number, result.candidate_hash) != (identity.number, identity.candidate_hash):
        raise ContractError(f"its result is that of trial {result.number}")
    check_result(result, spec)


def _read_trial(folder: Path) -> Trial | Unreadable:
    try:
        spec = TrialSpec.from_dict(_read_known(folder / SPEC_FILE, SPEC_SCHEMA_VERSION))
        if f"{spec.identity.number:04d}" != folder.name:
            raise ContractError(f"its spec is that of trial {spec.identity.number}")
        knobs = _knobs_of(spec)
        for name, value in spec.identity.knobs.items():
            if name in knobs and not knobs[name].is_of_type(value):
                raise ContractError(f"its spec says {name}={value!r}: of another type")
        _check_candidate(spec)
    except ContractError as error:
        return Unreadable(folder=folder, problem=str(error))
    if not os.path.lexists(folder / RESULT_FILE):
        return Trial(folder=folder, spec=spec, result=None)
    try:
        data = _read_known(folder / RESULT_FILE, SCHEMA_VERSION)
        # Others wrote its texts: what is shown of them is safe.
        result = TrialResult.from_dict(texts_on_one_line(scrubbed(data)))
        _check(result, spec)
    except ContractError as error:
        return Trial(folder=folder, spec=spec, result=None, problem=str(error))
    return Trial(folder=folder, spec=spec, result=result)


def _check_candidate(spec: TrialSpec) -> None:
    """Check that a spec's candidate is the one that it names, and its layout that candidate's.

    Raises:
        ContractError: It is another: its figures would be taken for those of a third.
    """
    identity, layout = spec.identity, spec.layout
    if "micro_batch" not in identity.knobs:
        raise ContractError("its spec names no micro_batch")
    candidate = candidate_of(spec)
    if candidate.hash != identity.candidate_hash:
        raise ContractError(
            f"its spec names candidate {identity.candidate_hash}, its knobs are {candidate.hash}"
        )
    if layout_of(candidate, layout.accelerator) != layout:
        raise ContractError(f"its spec says {layout}: another than its knobs'")


def _knobs_of(spec: TrialSpec) -> Catalogue:
    """The knobs of the engine that ran a trial; none of one that is no longer installed."""
    try:
        return knobs_of(spec.engine.name)
    except JobError:
        return {}


def _read_known(path: Path, known: int) -> dict[str, Any]:
    try:
        data = read_json(path)
    except ContractError as error:
        reason = error.__cause__
        # What is no file, or far too large, is damage; the rest may be read by another user.
        is_damage = isinstance(reason, NotAFileError) or (
            isinstance(reason, OSError) and reason.errno == errno.EFBIG
        )
        if path.exists() and isinstance(reason, OSError) and not is_damage:
            raise StudyError.of("record.record_unread", path=path, reason=reason) from error
        raise
    version = data.get("schema_version")
    # Taken for damage, such a result would be declared lost and its trial run again.
    if type(version) is int and version != known:
        raise StudyError.of("record.other_schema", path=path, version=version, known=known)
    return data


def _writing(folder: Path) -> contextlib.AbstractContextManager[None]:
    hint = "mend the permissions, then run the same command again: it resumes"
    return writing(folder, hint=hint)
