"""Broken files for every reader: `python -m tests.chaos.fuzz --inputs 10500`.

A reader answers a broken file with what its docstring says (an `AutotuneError`, a `ContractError`,
or the news that it is damaged), in bounded time and memory. Anything else is a failure: its seed
and the smallest input that still fails are printed, and the exit code is 1.
"""

import argparse
import contextlib
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from autotune.base.errors import AutotuneError
from autotune.contract import ContractError
from tests.chaos.mutations import NO_FILES
from tests.chaos.readers import Reader, make_readers

MAX_SECONDS = 10.0
"""Limit of processor time for one input, so that a busy machine changes nothing."""
MAX_GROWTH_BYTES = 2 * 2**30
"""Largest growth of the process, over all inputs."""
_SPOILT = 0.03
"""Share of inputs that are no file of text at all."""
_SHRINKS = 40


class TookTooLongError(BaseException):
    """No answer within `MAX_SECONDS`; no reader may take it for damage."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An input that a reader did not answer as it should."""

    reader: str
    seed: str
    said: str
    text: bytes | None
    """The smallest that fails; None: it was no file of text."""


def main(arguments: Sequence[str]) -> int:
    """Fuzz; 1 if a reader failed."""
    parser = argparse.ArgumentParser(description="Broken files for every reader")
    parser.add_argument("--inputs", type=int, default=10_000, help="of all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", help="only this one")
    parser.add_argument("--only", type=int, help="only the input of this number")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="autotune-fuzz-") as folder:
        readers = [r for r in make_readers(Path(folder)) if options.reader in (None, r.name)]
        _limit_memory()
        numbers = range(-(-options.inputs // len(readers)))
        if options.only is not None:
            numbers = range(options.only, options.only + 1)
        failures: list[Failure] = []
        print(f"{'reader':21}  inputs  refused  failed  seconds")
        for reader in readers:
            started = time.monotonic()
            found, n_refused = fuzz(reader, numbers, options.seed)
            failures += found
            spent_s = time.monotonic() - started
            figures = f"{len(numbers):6}  {n_refused:7}  {len(found):6}  {spent_s:7.1f}"
            print(f"{reader.name:21}  {figures}", flush=True)
            for failure in found:
                print(f"  --seed {failure.seed}: {failure.said}")
                print(f"  smallest input: {_shown(failure.text)}", flush=True)
    total = len(numbers) * len(readers)
    print(f"{total} inputs, {len(failures)} failed, {time.monotonic() - began:.0f} s")
    return 1 if failures or not total else 0


def fuzz(reader: Reader, numbers: Sequence[int], seed: int) -> tuple[list[Failure], int]:
    """Give a reader broken files.

    Args:
        reader: Who reads.
        numbers: Of the inputs; each is drawn from the seed and its number.
        seed: The seed of all.

    Returns:
        The failures, and how many inputs were refused as they should be.
    """
    failures, n_refused = [], 0
    for number in numbers:
        draw = random.Random(f"{seed} {reader.name} {number}")
        if draw.random() < _SPOILT:
            text = None
            refused, said = spoilt(reader, draw.choice(list(NO_FILES)))
        else:
            text = reader.mutate(draw)
            refused, said = _read(reader, text)
        n_refused += refused
        if said:
            smallest = None if text is None else _shrunk(reader, text, said)
            name = f"{seed} --reader {reader.name} --only {number}"
            failures.append(Failure(reader=reader.name, seed=name, said=said, text=smallest))
    return failures, n_refused


def spoilt(reader: Reader, kind: str) -> tuple[bool, str]:
    """Give a reader what is no file of text: whether it was refused, and what went wrong."""
    _clear(reader.path)
    NO_FILES[kind](reader.path)
    try:
        refused, said = _answer(reader)
    finally:
        _clear(reader.path)
    return refused, said and f"{reader.name}: {kind}: {said}"


def _read(reader: Reader, text: bytes) -> tuple[bool, str]:
    _clear(reader.path)
    reader.path.write_bytes(text)
    return _answer(reader)


def _answer(reader: Reader) -> tuple[bool, str]:
    """Whether the file was refused, and what went wrong (empty: nothing)."""
    try:
        with _in_time():
            reader.read(reader.path)
    except (AutotuneError, ContractError) as error:
        str(error).encode("utf-8", "replace")  # it can be printed
        return True, ""
    except (Exception, TookTooLongError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno} in {last.name}"
        return False, f"{type(error).__name__} at {where}: {str(error)[:200]}"
    return False, ""


def _shrunk(reader: Reader, text: bytes, said: str) -> bytes:
    """The same failure from less text, by leaving out ever smaller parts."""
    kind = said.partition(":")[0]
    size, tries = len(text) // 2, 0
    while size and tries < _SHRINKS:
        at = 0
        while at < len(text) and tries < _SHRINKS:
            shorter = text[:at] + text[at + size :]
            tries += 1
            if _read(reader, shorter)[1].partition(":")[0] == kind:
                text = shorter
            else:
                at += size
        size //= 2
    return text


def _shown(text: bytes | None) -> str:
    if text is None:
        return "no file of text"
    return repr(text) if len(text) <= 600 else f"{text[:300]!r} ... ({len(text)} bytes)"


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def end(_signal: int, _frame: FrameType | None) -> None:
        raise TookTooLongError(f"no answer after {MAX_SECONDS:.0f} s")

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, MAX_SECONDS),
        (
            signal.SIGALRM,
            signal.ITIMER_REAL,
            20 * MAX_SECONDS,
        ),  # who waits takes no processor time
    )
    before = [signal.signal(number, end) for number, _, _ in timers]
    for _, timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def _limit_memory() -> None:
    """So that what would fill the machine fails here."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + MAX_GROWTH_BYTES, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
