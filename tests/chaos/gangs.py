"""Trials on the nodes of some fleet under which something happens, and what must hold after it."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.contract import Outcome, Start, TrialResult
from autotune.fleet import gang_fleet
from autotune.fleet.gang_fleet import GangFleet, GangTrial
from autotune.fleet.transports.base import Transport
from autotune.record.study import Study
from tests.chaos.faults import HANGING, must
from tests.chaos.invariants import Digests, check_record
from tests.trials import TESTS, ds_config, files, spec, wait_until

ENDS_S = 180.0
"""Time for a trial to end once something happened to a node; only a busy machine takes as long."""
_LEASE_S = 6.0
"""Time without a word after which a node is given up; a minute outside of tests."""


def new_records(folder: Path) -> Path:
    """A folder below another one for the studies of one more fault."""
    records = folder / f"records-{sum(1 for _ in folder.glob('records-*')) + 1}"
    records.mkdir()
    return records


class Gangs:
    """A study, and a fleet whose trials take all ranks of all nodes."""

    def __init__(self, transport: Transport, records: Path, *, world: int, seen: Path) -> None:
        """Take the nodes; whoever hears nothing for `_LEASE_S` gives up.

        Args:
            transport: Reaches them.
            records: Folder of the study.
            world: Ranks of a trial.
            seen: Folder below which the nodes' copies of a trial's folder are.
        """
        self._stack = contextlib.ExitStack()
        patched = {"LEASE_S": _LEASE_S, "_ALIVE_S": _LEASE_S / 6, "_OTHERS_WAIT_S": 2.0}
        for name, value in patched.items():
            self._stack.callback(setattr, gang_fleet, name, getattr(gang_fleet, name))
            setattr(gang_fleet, name, value)
        self.study = Study(records, "nodes")
        self.study.lock()
        self._stack.callback(self.study.unlock)
        self.fleet = GangFleet(transport, world=world)
        self._stack.callback(self.fleet.close)
        self._world, self._seen = world, seen
        self._digests: Digests = {}

    def close(self) -> None:
        """End all of it."""
        self._stack.close()

    def submit(self, factory: str, start: Start = Start.COLD) -> GangTrial:
        """Start a trial of `models:FACTORY` on all nodes."""
        model = {
            "factory": f"tests.chaos.models:{factory}",
            "vocab": 64,
            "path": [str(TESTS.parent)],
        }
        number, world = self.study.next_number(), self._world
        wide: dict[str, Any] = {"world": world, "dp": world, "global_batch": 2 * world}
        trial = spec(number, model=model, start=start, **wide)
        return self.fleet.submit(trial, self.study.write_spec(trial, files(ds_config())))

    def hang(self, place: str) -> GangTrial:
        """A trial whose last rank hangs at a place by now; the others are there or wait for it."""
        trial = self.submit(f"hang_in_{place}")
        pattern = f"**/trials/**/{trial.folder.name}/{HANGING}"

        def hangs() -> bool:
            must(trial.poll() is None, f"it ended before: {trial.poll()}")
            with contextlib.suppress(FileNotFoundError):  # a folder went while it was looked at
                return any(self._seen.glob(pattern))
            return False

        wait_until(hangs, f"a rank hangs in {place}")
        return trial

    def ends(self, trial: GangTrial) -> TrialResult:
        """Its result, in the record by then."""
        deadline_s = time.monotonic() + ENDS_S
        while (result := trial.poll()) is None:
            must(time.monotonic() < deadline_s, "the trial does not end")
            time.sleep(0.02)
        self.study.write_result(trial.folder, result)
        return result

    def ends_by_the_platform(self, trial: GangTrial) -> TrialResult:
        """Its result, which blames the platform and says why."""
        result = self.ends(trial)
        must(result.outcome.is_platform_fault, f"not the platform's: {result.outcome}")
        must(result.evidence, "no evidence")
        return result

    def trains(self) -> TrialResult:
        """The result of a sound trial, started the faster way; the record is whole after it."""
        sound = self.ends(self.submit("nothing_in_first", Start.WARM))
        must(sound.outcome is Outcome.OK, f"the next trial: {sound.outcome} {sound.evidence}")
        self._digests = check_record(self.study, self._digests)
        return sound

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Listen to the nodes until something holds."""
        deadline_s = time.monotonic() + ENDS_S
        while not holds():
            must(time.monotonic() < deadline_s, what)
            self.fleet.hear()
            time.sleep(0.05)
