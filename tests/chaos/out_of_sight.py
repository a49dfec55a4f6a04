"""What a trial or a coordinator has out of sight: children, temporary files."""

import functools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from autotune.contract import SCRATCH_ENV, Outcome, Start
from tests.chaos.arena import Ground
from tests.chaos.faults import LITTER, Fault, must
from tests.chaos.invariants import command_of
from tests.searches import Search
from tests.trials import TESTS, wait_until

_STARTED = (
    ("the model is built", "autotune.job.model_probe"),
    ("its agent starts", "autotune.fleet.node.agent"),
    ("a template imports", "autotune.trial.warm"),
    ("extensions are looked at", "autotune.engines.deepspeed.extensions"),
)
"""When the coordinator is killed, and the child that runs then."""
_WAIT_S = 120.0


def faults() -> Iterator[Fault]:
    """All of them."""
    for start in Start:
        for action in ("litter", "litterandkill"):
            yield Fault(
                name=f"temporary files: {action} in forward, {start}",
                inject=functools.partial(_litters, f"{action}_in_forward", start),
                in_short=(action, start) == ("litterandkill", Start.WARM),
            )
    for when, module in _STARTED:
        yield Fault(
            name=f"children left: the coordinator is killed while {when}",
            inject=functools.partial(_killed_while, module),
            in_short=module == "autotune.job.model_probe",
            rounds=2,
        )


def _litters(factory: str, start: Start, ground: Ground) -> None:
    litter = Path(_told_by(factory, start, ground))
    must(not litter.exists(), f"{litter} is left")
    must(not litter.parent.exists(), f"{litter.parent} is left")
    ground.arena.check()


def _told_by(factory: str, start: Start, ground: Ground) -> str:
    """What a model says that it leaves, once its trial has ended as it should."""
    result = ground.arena.run(factory, start)
    outcomes = {Outcome.CRASH, Outcome.LAUNCH} if "kill" in factory else {Outcome.OK}
    must(result.outcome in outcomes, f"{result.outcome}: {result.evidence}")
    return (ground.arena.study.trial_folder(result.number) / LITTER).read_text()


def _killed_while(module: str, ground: Ground) -> None:
    is_alone = module == "autotune.job.model_probe"
    coordinator = _asking() if is_alone else Search(ground.folder()).start("--trials", "1")
    root = psutil.Process(coordinator.pid)
    started: dict[int, psutil.Process] = {}
    scratches: set[Path] = set()

    def runs() -> bool:
        for child in root.children(recursive=True):
            started[child.pid] = child
            scratches.update(_scratch_of(child))
        commands = [command_of(child) for child in started.values()]
        # A keeper has the command among its arguments, before it starts it.
        return any(_is_run_of(module, command) for command in commands) and bool(scratches)

    try:
        wait_until(runs, f"{module} runs", _WAIT_S)
    finally:
        coordinator.send_signal(signal.SIGKILL)
        coordinator.communicate()

    def left() -> list[str]:
        return [
            " ".join(command_of(child))[:80] for child in started.values() if child.is_running()
        ]

    try:
        wait_until(lambda: not left(), "children end with it", 30.0)
        wait_until(lambda: not any(path.exists() for path in scratches), "files go", 30.0)
    except AssertionError as error:
        must(False, f"{error}: {left()} {[path for path in scratches if path.exists()]}")
    must(scratches, "no child had a folder for temporary files")


def _is_run_of(module: str, command: list[str]) -> bool:
    return ["-m", module] in (command[1:3], command[2:4])


def _asking() -> subprocess.Popen[str]:
    """A process that asks for a model to be built."""
    source = {"factory": "tests.chaos.models:nothing_in_first", "path": [str(TESTS.parent)]}
    told = {"about": "", "doing": "", "if_slow": "", "if_dead": "", "timeout_s": _WAIT_S}
    asked = f"ask('autotune.job.model_probe', {source!r}, **{told!r})"
    return subprocess.Popen(
        [sys.executable, "-c", f"from autotune.base.child_process import ask; {asked}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _scratch_of(process: psutil.Process) -> list[Path]:
    try:
        named = process.environ().get(SCRATCH_ENV)
    except (psutil.Error, OSError):
        return []
    return [Path(named)] if named else []
