"""Where faults of trials are injected: a study of its own and this machine's fleet."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from autotune.contract import Outcome, Start, TrialResult
from autotune.fleet.gang_fleet import GangTrial
from autotune.fleet.transports.local import local_fleet
from autotune.record.study import Study
from tests.chaos.faults import HANGING, must
from tests.chaos.invariants import Digests, check_nothing_is_left, check_record
from tests.trials import CPU, TESTS, changed, ds_config, files, spec, wait_until

_BLOCKED_S = 1.0
"""Time for the other ranks to enter the collective that the victim never joins."""
_TRIAL_S = 180.0
"""Time of a trial that ends by itself; only a machine that stands still takes as long."""


class Closes(Protocol):
    """Something that ends when it is told to."""

    def close(self) -> None:
        """End."""


class Arena:
    """One study, one fleet of two CPU ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.study = Study(folder / "results", "chaos")
        self.study.lock()
        self.fleet = local_fleet(CPU, world=2)
        self._digests: Digests = {}
        self._ports: set[int] = set()

    def close(self) -> None:
        """End all, and see that all has ended."""
        self.fleet.close()
        self.study.unlock()

    def submit(self, factory: str, start: Start, **changes: Any) -> GangTrial:
        """Start a trial of `models:FACTORY`."""
        model = {
            "factory": f"tests.chaos.models:{factory}",
            "vocab": 64,
            "path": [str(TESTS.parent)],
        }
        config = changes.pop("config", None) or ds_config()
        number = self.study.next_number()
        trial = spec(number, model=model, start=start, timeout_s=_TRIAL_S)
        trial = changed(trial, **changes)
        handle = self.fleet.submit(trial, self.study.write_spec(trial, files(config)))
        wait_until(lambda: handle.poll() is not None or handle.port, "its node starts it")
        self._ports.add(handle.port or 0)
        return handle

    def finish(self, handle: GangTrial) -> TrialResult:
        """Wait for a trial and record it; one that hangs has its time up there and then."""
        while (result := handle.poll()) is None:
            if (handle.folder / HANGING).exists():
                time.sleep(_BLOCKED_S)
                handle.spec = changed(handle.spec, timeout_s=0.0)
            time.sleep(0.02)
        self.study.write_result(handle.folder, result)
        return result

    def run(self, factory: str, start: Start, **changes: Any) -> TrialResult:
        """`submit` and `finish`."""
        return self.finish(self.submit(factory, start, **changes))

    def check(self) -> None:
        """Nothing is left over, the record is whole, and the same gang trains a sound trial."""
        check_nothing_is_left(self.study, self._ports)
        sound = self.run("nothing_in_first", Start.WARM)
        must(sound.outcome is Outcome.OK, f"the next trial: {sound.outcome} {sound.evidence}")
        self._digests = check_record(self.study, self._digests)


class Ground:
    """Where faults are injected: an arena that they share, and folders of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._n_folders = 0
        self._arena: Arena | None = None
        self._shared: dict[str, Any] = {}
        self.begun: Path | None = None
        """A folder with a search that has a few trials in its record, to be copied."""
        self.n_cuts = 0
        """How often a result was cut short: each time elsewhere."""

    @property
    def arena(self) -> Arena:
        """The shared one; opened when it is first asked for."""
        if self._arena is None:
            self._arena = Arena(self.folder())
        return self._arena

    def shared(self, name: str, make: Callable[[Path], Closes]) -> Any:
        """What several faults share, by its name; made when it is first asked for."""
        if name not in self._shared:
            self._shared[name] = make(self.folder())
        return self._shared[name]

    def forget(self, name: str) -> None:
        """Share no more what has ended; the next fault finds a new one."""
        self._shared.pop(name, None)

    def folder(self) -> Path:
        """A new one."""
        self._n_folders += 1
        folder = self._folder / str(self._n_folders)
        folder.mkdir(parents=True)
        return folder

    def close(self) -> None:
        """End the arena and what is shared; the next fault finds new ones."""
        while self._shared:
            self._shared.popitem()[1].close()
        if self._arena is not None:
            self._arena.close()
            self._arena = None
