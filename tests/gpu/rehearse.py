"""The stages of a GPU on one CPU rank, cut off twice: `make gpu-accept GPU=--rehearse`.

The environment is made as on a machine without an index: from wheels, beside those packages alone
that docs/gpu.md lists, which are this environment's here. Two pieces run, and each is killed with
all its processes a random time after its first trial. What had been measured before must be in the
folder of results, and the second piece must go on from it.
"""

import argparse
import contextlib
import csv
import importlib.metadata
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import psutil
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from autotune.contract import RESULT_FILE
from autotune.fleet.node.ports import sweep_segments
from tests.captured import captured
from tests.gpu import offline, wheels
from tests.gpu.piece import FILES, STAGES_FILE, TRIALS_FILE, read_json
from tests.gpu.stages import REPOSITORY

FOLDER = REPOSITORY / "build" / "gpu-rehearsal"
SAVING_S = 3.0
"""Time within which a trial that has ended is in the folder of results."""
_EXTENSIONS = (
    "from autotune.engines.deepspeed.extensions import extensions_folder; "
    "print(extensions_folder('cpu'))"
)


class RehearsalError(Exception):
    """A piece lost what it had measured, or did not go on."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the environment, run two pieces, and see what they left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for all that is made")
    parser.add_argument("--stage", action="append", default=[], help="only this one; repeat it")
    parser.add_argument("--minutes", type=float, default=20.0, help="of a piece that is not cut")
    parser.add_argument(
        "--cut-after",
        type=float,
        nargs=2,
        default=(30.0, 240.0),
        metavar=("FROM_S", "TO_S"),
        help="seconds from the end of a piece's first trial until it is killed",
    )
    parser.add_argument("--seed", type=int, default=None, help="of the time of the cuts")
    options = parser.parse_args(arguments)
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"rehearsal with --seed {seed}", flush=True)
    chance = random.Random(seed)
    folder = options.folder.resolve()
    python = environment(folder)
    results = folder / "results"
    shutil.rmtree(results, ignore_errors=True)
    stages = [word for name in options.stage for word in ("--stage", name)]
    command = [str(python), "-m", "tests.gpu.accept", "--rehearse", "--results", str(results)]
    command += ["--minutes", str(options.minutes), *stages]
    before: dict[str, str] = {}
    try:
        for piece in ("first", "second"):
            after_s = chance.uniform(*options.cut_after)
            measured = cut(command, results, after_s)
            told = kept(results, measured)
            if lost := sorted(set(before) - set(told)):
                raise RehearsalError(f"the {piece} piece lost trials of the one before: {lost}")
            new = len(told) - len(before)
            print(
                f"{piece} piece: {after_s:.0f} s after its first trial, {new} trials more, all of "
                "them kept",
                flush=True,
            )
            if not new and not _all_answered(results):
                raise RehearsalError(f"the {piece} piece measured nothing")
            before = told
    except RehearsalError as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        return 1
    return 0


def environment(folder: Path) -> Path:
    """An environment of wheels and listed packages; returns its interpreter."""
    listed = wheels.packages_of(wheels.PAGE)
    base = Path(sys.base_prefix) / "bin" / Path(sys.executable).resolve().name
    stock = folder / "wheels"
    wheels.fill(stock, base, listed)
    print(wheels.prove(stock, base, listed), flush=True)
    beside = folder / "beside"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    for name in _with_needs(listed):
        _link(name, beside)
    shutil.rmtree(folder / "environment", ignore_errors=True)
    python = offline.make(folder / "environment", stock, beside)
    _take_extensions(python)
    return python


def _with_needs(names: Iterable[str]) -> set[str]:
    """Packages of this environment and all that they need: a machine that has them has that."""
    found: set[str] = set()
    left = [canonicalize_name(name) for name in names]
    while left:
        name = left.pop()
        if name in found:
            continue
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        for requirement in map(Requirement, needs):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(canonicalize_name(requirement.name))
    return found


def _link(name: str, beside: Path) -> None:
    """Show a package of this environment in a folder; one that is not here is not shown."""
    try:
        files = importlib.metadata.distribution(name).files or []
    except importlib.metadata.PackageNotFoundError:
        return
    tops = {file.parts[0]: Path(str(file.locate())) for file in files if file.parts[0] != ".."}
    for top, file in tops.items():
        source = next((p for p in (file, *file.parents) if p.name == top), None)
        if source is not None and source.exists() and not (beside / top).exists():
            (beside / top).symlink_to(source)


def _take_extensions(python: Path) -> None:
    """Copy what is compiled for this environment: it is the same code, and takes minutes."""
    ours, made = (
        Path(
            captured(
                [p, "-c", _EXTENSIONS],
                check=True,
                cwd=REPOSITORY,
                env={**os.environ, "DS_ACCELERATOR": "cpu"},
            ).stdout.split()[-1]
        )
        for p in (sys.executable, str(python))
    )
    if ours.is_dir() and not made.exists():
        shutil.copytree(ours, made)


def cut(command: Sequence[str], results: Path, after_s: float) -> set[str]:
    """Run a piece and kill it with all its processes, some time after its first trial has ended.

    Returns:
        The start times of the trials that had ended long enough before.
    """
    with tempfile.TemporaryDirectory() as scratch:
        variables = {**os.environ, "TMPDIR": scratch, "OMP_NUM_THREADS": "1"}
        process = psutil.Popen(list(command), cwd=REPOSITORY, env=variables)
        began_s, ends_s = time.time(), math.inf
        while process.poll() is None and time.monotonic() < ends_s:
            time.sleep(0.2)
            # Those of the piece before keep their times.
            if ends_s == math.inf and any(
                result["started_at_s"] > began_s for result in _results(Path(scratch))
            ):
                ends_s = time.monotonic() + after_s
        limit_s = time.time() - SAVING_S
        below: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            below = process.children(recursive=True)
            for each in (process, *below):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        process.wait()
        psutil.wait_procs(below, timeout=10)
        sweep_segments()  # a machine that is gone leaves none; this one stays
        return {_started(result) for result in _results(Path(scratch), before_s=limit_s)}


def _results(scratch: Path, *, before_s: float = math.inf) -> Iterator[dict[str, float]]:
    """Results of the studies below a folder that were written before some time.

    Not those of trials that a cut has lost: they have no start, and nothing was measured.
    """
    for folder, _, names in os.walk(scratch):  # which passes over folders that go meanwhile
        file = Path(folder, RESULT_FILE)
        if RESULT_FILE in names and file.parents[1].name == "trials" and "listed" not in folder:
            result = json.loads(file.read_text("utf-8"))
            if result["started_at_s"] and file.stat().st_mtime < before_s:
                yield result


def _started(result: dict[str, float]) -> str:
    return f"{result['started_at_s']:.3f}"


def kept(results: Path, measured: set[str]) -> dict[str, str]:
    """The trials of a folder of results, by start time.

    Raises:
        RehearsalError: One that was measured is missing, or files lie there that do not travel.
    """
    there = {str(file.relative_to(results)) for file in results.rglob("*") if file.is_file()}
    if wrong := sorted(name for name in there - set(FILES) if not name.startswith(".")):
        raise RehearsalError(f"{results} holds {', '.join(wrong)}, which are no files of a piece")
    table = results / TRIALS_FILE
    rows = list(csv.DictReader(table.open(encoding="utf-8"))) if table.is_file() else []
    told = {_seconds(row["started_at"]): row["study"] for row in rows if row["started_at"]}
    if missing := sorted(measured - set(told)):
        raise RehearsalError(f"{len(missing)} trials had ended and are not in {table}: {missing}")
    return told


def _seconds(date: str) -> str:
    return f"{datetime.fromisoformat(date).timestamp():.3f}"


def _all_answered(results: Path) -> bool:
    stages = read_json(results / STAGES_FILE) or []
    return bool(stages) and all(stage["is_answered"] for stage in stages)


if __name__ == "__main__":
    sys.exit(main())
