"""All that one GPU can answer, in pieces of minutes: `python -m tests.gpu.accept`.

Stages run in order of worth. After every trial the folder of results holds all that was measured
(`tests/gpu/piece.py`), so a machine that is taken away loses nothing but the trial that ran. The
same command again goes on from that folder. A stage that does not fit into the time that is left
is not begun, and one that exceeds it is interrupted as by Ctrl-C, twice if it takes long. Ctrl-C
and SIGTERM end the piece so as well. The exit code is 1 if a stage failed, 2 if nothing can run,
3 if stages are left to do, 130 after Ctrl-C, else 0. `--rehearse` does the same on one CPU rank,
with small jobs.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from autotune.base.guarded_process import scratch_folder
from autotune.base.keeper import end_with_parent
from tests.gpu.piece import Ended, Piece, PieceError
from tests.gpu.stages import GPU, REHEARSAL, REPOSITORY, Stage, stages_of

RESULTS = REPOSITORY / "build" / "gpu-accept"
GRACE_S = 15.0
"""Time that an interrupted stage gets to write down what it has."""
_LOOK_S = 0.5
_INTERRUPTED = 130


class Stop:
    """Whether somebody asked this process to end, by Ctrl-C or SIGTERM."""

    asked = False

    def listen(self) -> None:
        """Note the first signal; a second one ends this process at once."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    def _hear(self, number: int, _: object) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left to do, within the time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder that is kept")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all stages together")
    parser.add_argument("--stage", action="append", help="only this one; may be repeated")
    parser.add_argument(
        "--rehearse", action="store_true", help="small jobs on one CPU rank, in place of a GPU"
    )
    parser.add_argument("--list", action="store_true", help="show the stages, and run none")
    options = parser.parse_args(arguments)
    stages = stages_of(REHEARSAL if options.rehearse else GPU)
    known = [stage.name for stage in stages]
    if unknown := sorted(set(options.stage or ()) - set(known)):
        parser.error(f"--stage {unknown[0]}: there are {', '.join(known)}")
    if options.list:
        for stage in stages:
            print(f"{stage.name}: {stage.answers}; at least {stage.least_s:.0f} s")
            print(f"    cut off, it leaves {stage.leaves}")
        return 0
    chosen = [stage for stage in stages if not options.stage or stage.name in options.stage]
    variables = {"DS_ACCELERATOR": "cpu"} if options.rehearse else {}
    if not options.rehearse and not _has_gpu():
        print(
            "gpu-accept needs a CUDA device and a torch built for it; without one: "
            "make gpu-accept GPU=--rehearse",
            file=sys.stderr,
        )
        return 2
    stop = Stop()
    stop.listen()
    try:
        return run(chosen, options.results.resolve(), options.minutes * 60, variables, stop)
    except PieceError as error:
        print(f"gpu-accept: {error}", file=sys.stderr)
        return 2


def _has_gpu() -> bool:
    import torch  # takes seconds

    return torch.cuda.is_available()


def run(
    stages: Sequence[Stage],
    results: Path,
    limit_s: float,
    variables: dict[str, str] | None = None,
    stop: Stop | None = None,
) -> int:
    """Run stages in turn; those that are answered are passed over.

    Raises:
        PieceError: The folder of results cannot be used.
    """
    ends_s = time.monotonic() + limit_s
    stop = stop or Stop()
    left, failed = [], []
    with scratch_folder() as folder:
        piece = Piece.open(results, folder)
        if (other := piece.other_device()) is not None:
            print(
                f"{results} holds what {other} measured, and this is another device: name another "
                "folder by --results",
                file=sys.stderr,
            )
            return 2
        for stage in stages:
            before = piece.stages.get(stage.name)
            if before is not None and before.is_answered:
                print(f"{stage.name}: answered already", flush=True)
                continue
            left_s = ends_s - time.monotonic()
            if left_s < stage.least_s:
                print(f"{stage.name}: left for later, {max(0.0, left_s):.0f} s are too few")
                left.append(stage.name)
                continue
            print(f"{stage.name}: {stage.answers} ...", flush=True)
            ended = _run(stage, piece, left_s, variables or {}, stop)
            if ended.was_cut:
                left.append(stage.name)
                print(f"{stage.name}: cut off; it leaves {stage.leaves}", flush=True)
            elif ended.is_answered:
                print(f"{stage.name}: answered after {ended.seconds:.0f} s", flush=True)
            else:
                failed.append(stage.name)
                print(f"{stage.name}: FAILED with exit code {ended.code}", flush=True)
                print("\n".join(_log(piece.work).splitlines()[-15:]), flush=True)
            if stop.asked:
                print("interrupted: the same command again goes on", flush=True)
                return _INTERRUPTED
    if failed:
        return 1
    return 3 if left else 0


def _run(
    stage: Stage, piece: Piece, left_s: float, variables: dict[str, str], stop: Stop
) -> Ended:
    arguments = [word.replace("{work}", str(piece.work)) for word in stage.command]
    began_s = time.monotonic()
    out, log = piece.work / "stage.out", piece.work / "stage.log"
    with out.open("wb") as stdout, log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            # Where this process is killed, the stage would hold the device beside the next one.
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
        code, was_cut = _wait(process, piece, began_s + left_s, stop)
    ended = Ended(
        name=stage.name,
        answers=stage.answers,
        command=" ".join(["python", *stage.command]).replace(f"{REPOSITORY}/", ""),
        code=code,
        seconds=round(time.monotonic() - began_s, 1),
        is_answered=not was_cut and code in stage.answering_codes,
        was_cut=was_cut,
    )
    piece.end(ended, out.read_text("utf-8", "replace"), _log(piece.work))
    return ended


def _wait(
    process: subprocess.Popen[bytes], piece: Piece, ends_s: float, stop: Stop
) -> tuple[int, bool]:
    """Save what trials leave until the process has ended; one that takes too long is ended.

    Returns:
        Its exit code, and whether it was ended.
    """
    while process.poll() is None and not stop.asked and time.monotonic() < ends_s - GRACE_S:
        time.sleep(_LOOK_S)
        piece.save_if_changed()
    if (code := process.poll()) is not None:
        return code, False
    # At the first a search lets its trials end, at the second it ends at once; either reports.
    for share in (1 / 3, 2 / 3):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=share * GRACE_S), True
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait(), True


def _log(work: Path) -> str:
    return (work / "stage.log").read_text(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    sys.exit(main())
