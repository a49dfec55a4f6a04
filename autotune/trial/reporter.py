"""One rank's report: kept while the trial runs, written at every change of phase."""

import faulthandler
import os
import signal
import time
import traceback
from pathlib import Path

from autotune.contract import (
    RANKS_DIR,
    STACKS_FILE,
    Outcome,
    Phase,
    RankReport,
    to_dict,
    write_json,
)
from autotune.trial.faults import evidence_of, outcome_of
from autotune.trial.variables import SUBMITTED_ENV


def begin_rank(folder: Path, rank: int) -> "Reporter":
    """The reporter of this process, which is a rank: it also writes its stacks on SIGUSR1."""
    stacks = (folder / RANKS_DIR / STACKS_FILE.format(rank=rank)).open("wb")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    return Reporter(folder, rank, float(os.environ[SUBMITTED_ENV]))


class Reporter:
    """Writes `ranks/NN.json` of one rank."""

    def __init__(self, folder: Path, rank: int, submitted_at_s: float) -> None:
        self.report = RankReport(rank=rank, pid=os.getpid(), phase=Phase.SPAWN)
        self._path = folder / RANKS_DIR / f"{rank:02d}.json"
        # A container may have a clock of its own: no phase begins in the future.
        self._submitted_at_s = min(submitted_at_s, time.monotonic())
        self._phase_began_s = self._submitted_at_s

    def enter(self, phase: Phase) -> None:
        """End the current phase and begin another; entering the current one again does nothing."""
        if phase is self.report.phase:
            return
        self._close_phase()
        self.report.phase = phase
        self.write()

    def fail(self, error: BaseException, outcome: Outcome | None = None) -> None:
        self.report.outcome = outcome or outcome_of(error, self.report.phase)
        self.report.evidence = evidence_of(error)
        self.report.traceback = "".join(traceback.format_exception(error))[-8000:]
        self.finish()

    def finish(self) -> None:
        self._close_phase()
        self.write()

    def write(self) -> None:
        self.report.ended_at_s = time.monotonic() - self._submitted_at_s
        write_json(self._path, to_dict(self.report))

    def _close_phase(self) -> None:
        now = time.monotonic()
        phases = self.report.phases_s
        phases[self.report.phase] = phases.get(self.report.phase, 0.0) + now - self._phase_began_s
        self._phase_began_s = now
