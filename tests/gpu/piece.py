"""What a piece of time on a GPU leaves: eight files in one folder, whole after every trial.

A machine that is lent may be gone at any moment, and one folder is all that outlives it. So each
file is written aside and moved, whenever a trial has ended. The next piece reads them and goes on.
"""

import contextlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from autotune.contract import RESULT_FILE
from autotune.devices.hardware import visible_gpus
from autotune.record.table import load_table
from tests.gpu.stages import LISTED

STAGES_FILE = "stages.json"
TRIALS_FILE = "trials.csv"
ANSWERS_FILE = "answers.json"
MACHINE_FILE = "machine.json"
TERMINAL_FILE = "terminal.txt"
BEST_FILE = "best.tar.gz"
RECORD_FILE = "record.tar.gz"
FILES = (
    *(STAGES_FILE, TRIALS_FILE, ANSWERS_FILE, MACHINE_FILE),
    *(TERMINAL_FILE, BEST_FILE, RECORD_FILE, LISTED),
)
"""All files of a piece: a lent machine gives eight back, none deeper than two folders."""


class PieceError(Exception):
    """A folder of results that cannot be used; says which file, and what to do."""


_LARGEST_LOG_BYTES = 256 * 1024
_NO_RECORD = ("inductor", "triton", "out", "checkpoint")
"""Folders where stages work that no later piece needs."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What came of a stage."""

    name: str
    answers: str
    command: str
    code: int
    seconds: float
    is_answered: bool
    was_cut: bool = False
    """Whether the time was over before it ended."""


@dataclass
class Piece:
    """The folder of results, and the folder where stages work meanwhile."""

    results: Path
    work: Path
    stages: dict[str, Ended] = field(default_factory=dict)
    _saved: frozenset[tuple[str, float]] = frozenset()

    @classmethod
    def open(cls, results: Path, work: Path) -> "Piece":
        """Read back what earlier pieces left in the folder of results.

        Raises:
            PieceError: A file of it is damaged, or it cannot be made.
        """
        piece = cls(results, work)
        try:
            results.mkdir(parents=True, exist_ok=True)
            with _damage(results / STAGES_FILE):
                ended = [Ended(**entry) for entry in read_json(results / STAGES_FILE) or ()]
            for name in (ANSWERS_FILE, MACHINE_FILE):
                read_json(results / name)
            read_table(results / LISTED)
            with _damage(results / RECORD_FILE):
                if (record := results / RECORD_FILE).is_file():
                    with tarfile.open(record) as archive:
                        archive.extractall(work, filter="data")
            for name in (LISTED, TERMINAL_FILE, ANSWERS_FILE, MACHINE_FILE):
                if (kept := results / name).is_file():
                    (work / name).write_bytes(kept.read_bytes())
        except PieceError as error:
            raise PieceError(f"{error}: keep that folder, and name another by --results") from None
        except OSError as error:
            raise PieceError(f"--results {results}: {error.strerror}") from error
        piece.stages = {stage.name: stage for stage in ended}
        return piece

    def other_device(self) -> str | None:
        """The device that earlier pieces measured, where this machine has another; else None."""
        found = read_json(self.work / MACHINE_FILE) or {}
        names = [device["name"] for device in found.get("machine", {}).get("devices", [])]
        here = [gpu.name for gpu in visible_gpus()]
        return names[0] if names and here and names[0] not in here else None

    def end(self, stage: Ended, stdout: str, stderr: str) -> None:
        """Keep what a stage printed, and save."""
        self.stages[stage.name] = stage
        how = "cut off" if stage.was_cut else f"exit code {stage.code}"
        heading = f"== {stage.name}: {stage.command} ({how}, {stage.seconds:.0f} s)"
        with (self.work / TERMINAL_FILE).open("a", encoding="utf-8") as terminal:
            terminal.write(f"{heading}\n{stderr}{_without_json(stdout)}\n")
        answers = self.answers()
        if (answer := _json_of(stdout)) is not None:
            answers[stage.name] = answer
        (self.work / ANSWERS_FILE).write_text(json.dumps(answers, indent=1) + "\n", "utf-8")
        if stage.name == "machine" and answer is not None:
            (self.work / MACHINE_FILE).write_text(json.dumps(answer, indent=1) + "\n", "utf-8")
        self.save()

    def answers(self) -> dict[str, Any]:
        """JSON of each stage that printed some."""
        found: dict[str, Any] = read_json(self.work / ANSWERS_FILE) or {}
        return found

    def save_if_changed(self) -> None:
        """Save where a trial has ended since; looked at every second."""
        if self._ended_trials() != self._saved:
            self.save()

    def save(self) -> None:
        """Write all files of the folder of results."""
        self._saved = self._ended_trials()
        self._write(STAGES_FILE, _json(list(map(asdict, self.stages.values()))))
        if tables := list(self.tables()):
            csv = pd.concat(tables, ignore_index=True).to_csv(index=False, float_format="%.8g")
            self._write(TRIALS_FILE, csv.encode())
        for name in (LISTED, TERMINAL_FILE, ANSWERS_FILE, MACHINE_FILE):
            if (made := self.work / name).is_file():
                self._write(name, made.read_bytes())
        self._write(RECORD_FILE, _archive(self.work, self._record_files()))
        bests = (file for folder in self.work.glob("*/best") for file in folder.rglob("*"))
        self._write(BEST_FILE, _archive(self.work, bests))

    def tables(self) -> Iterator[pd.DataFrame]:
        """A table for each study, but the columns that none of its trials has."""
        for study in sorted(self.work.glob("*/trials")):
            table = load_table(study.parent)
            yield table.dropna(axis="columns", how="all")

    def _ended_trials(self) -> frozenset[tuple[str, float]]:
        found = [*self.work.rglob(RESULT_FILE), *self.work.glob(LISTED)]
        return frozenset((str(file), file.stat().st_mtime) for file in found)

    def _record_files(self) -> Iterator[Path]:
        for folder in self.work.iterdir():
            if not folder.is_dir() or folder.name in _NO_RECORD:
                continue
            for file in folder.rglob("*"):
                is_large = file.suffix == ".log" and file.stat().st_size > _LARGEST_LOG_BYTES
                if not is_large and not set(file.relative_to(folder).parts) & {
                    "best",
                    *_NO_RECORD,
                }:
                    yield file

    def _write(self, name: str, content: bytes) -> None:
        aside = self.results / f".{name}.new"
        aside.write_bytes(content)
        os.replace(aside, self.results / name)


def read_json(path: Path) -> Any:
    """What a file of a piece holds; None where there is no such file.

    Raises:
        PieceError: It is damaged.
    """
    with _damage(path):
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def read_table(path: Path) -> pd.DataFrame | None:
    """What a table of a piece holds; None where there is no such file.

    Raises:
        PieceError: It is damaged.
    """
    with _damage(path):
        return pd.read_csv(path) if path.is_file() else None


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, EOFError, tarfile.TarError, zlib.error) as error:
        raise PieceError(f"{path} is damaged ({str(error).partition(':')[0]})") from error


def _archive(root: Path, files: Iterable[Path]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=3) as archive:
        for file in sorted(files):
            _tolerant(archive.add)(file, arcname=str(file.relative_to(root)), recursive=False)
    return target.getvalue()


def _tolerant(add: Callable[..., None]) -> Callable[..., None]:
    """A file that a running stage has removed meanwhile is passed over."""

    def added(*args: Any, **kwargs: Any) -> None:
        try:
            add(*args, **kwargs)
        except FileNotFoundError:
            return

    return added


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _json_of(stdout: str) -> Any:
    """The JSON that a command printed last, or as its whole output; None: none."""
    lines = stdout.strip().splitlines()
    for text in (stdout, lines[-1] if lines else ""):
        try:
            return json.loads(text)
        except ValueError:
            continue
    return None


def _without_json(stdout: str) -> str:
    return "" if _json_of(stdout) is not None else stdout
