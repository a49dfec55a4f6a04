"""The protocol of a driver: what an engine does inside the ranks of a trial.

A driver is a module, found by its engine's name (entry points of the group `autotune.drivers`). It
is loaded outside the ranks as well, so it imports the engine only inside its functions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autotune.contract import OwnLog, RankReport, TrialSpec
from autotune.trial.guest.hooks import around

if TYPE_CHECKING:  # it imports torch
    from autotune.trial.engines.torch_collectives import Collectives


class LiveEngine(ABC):
    """A live engine as the stopwatch, the diagnostic pass and a soak see it.

    It is made before anything watches the engine, so that a pass can do without what does.
    """

    step_method = "step"
    """Name of the engine's method that makes optimizer steps."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    @property
    @abstractmethod
    def device(self) -> str:
        """Name of this rank's device, such as `cpu` or `cuda:0`."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done its work."""

    @abstractmethod
    def on_losses(self, note: Callable[[Any, bool], None]) -> None:
        """Hand on each loss of a step, and whether it is a share of the step's, not a mean."""

    def on_steps(self, call: Callable[[], None]) -> None:
        """Call something after every optimizer step, by the engine's methods as they are now."""

        def watched(step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            ends_step = self.ends_step()
            outcome = step(*args, **kwargs)
            if ends_step:
                call()
            return outcome

        self.around(self.step_method, watched)

    def around(self, method: str, wrapper: Callable[..., Any]) -> None:
        """Put a wrapper in the place of one of the engine's methods; see `guest.hooks.around`."""
        setattr(self.engine, method, around(getattr(self.engine, method), wrapper))

    def ends_step(self) -> bool:
        """True if the call of `step_method` at hand ends an optimizer step."""
        return True

    @abstractmethod
    def was_applied(self) -> bool:
        """True if the last optimizer step changed the weights."""

    @abstractmethod
    def watch(self, in_range: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put ranges around the parts of a step, in place of what watched the engine.

        Args:
            in_range: Makes a method one that is a range of the profiler; its first argument is the
                range's name (see `autotune.trial.timeline`).
        """

    def own_log(self, report: RankReport) -> OwnLog | None:
        """What the engine's own log says of the measured steps of a report; None: nothing."""
        return None

    @abstractmethod
    def collective_log(self) -> "Collectives":
        """What listens to the collectives of a step."""

    @abstractmethod
    def save(self, folder: str, tag: str, steps: int) -> None:
        """Write a checkpoint after so many steps; every rank calls it."""

    @abstractmethod
    def load(self, folder: str, tag: str) -> tuple[str | None, dict[str, Any]]:
        """Read a checkpoint; returns its path (None: there is none) and what it says of itself."""


class Driver(Protocol):
    """What the wrapper calls, in this order; `SEGMENTS` may stand beside it.

    `SEGMENTS` is how the names begin of the files in /dev/shm that CPU ranks leave behind, with
    `{user}` and `{address}`; without it they leave none.
    """

    def load_code(self, accelerator: str) -> None:
        """Load what every rank on `cpu` or `cuda` uses; a second call costs nothing."""

    def load_model_code(self, model: dict[str, Any]) -> None:
        """Import what every trial of a model does; only a warm template calls it."""

    def read_config(self, spec: TrialSpec, folder: Path) -> dict[str, Any]:
        """Read the candidate's configuration from the trial's folder."""

    def join_ranks(self) -> None:
        """Make the process group, and wait until it carries something."""

    def on_initialize(
        self, config: dict[str, Any], before: Callable[[], None], after: Callable[[Any], None]
    ) -> None:
        """Make the training script's own call that builds the engine use the configuration.

        `before` is called when the script initializes its engine, `after` with that engine.
        """

    def live(self, engine: Any) -> LiveEngine:
        """A live engine as others see it, before anything watches it."""

    def steps(self, spec: TrialSpec, config: dict[str, Any]) -> Iterator[Any]:
        """Train the built-in workload for ever, an optimizer step at a time."""

    def read_back(self, engine: Any, expected: Mapping[str, Any]) -> dict[str, Any]:
        """Read the settings that a live engine trains with, by the names that are expected."""


CALLS = tuple(name for name in vars(Driver) if not name.startswith("_"))
"""Names of the functions that every driver has."""


def driver_of(engine: str) -> Driver:
    """The module that drives an engine in its ranks.

    Raises:
        RuntimeError: No installed package offers one.
    """
    for found in entry_points(group="autotune.drivers", name=engine):
        driver: Driver = found.load()
        return driver
    raise RuntimeError(f"no installed package drives {engine} in its ranks")


def differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> list[str]:
    """One sentence for each thing that was asked and does not run so."""
    return [
        f"{name}: asked {asked}, the engine "
        + (f"runs {actual[name]}" if name in actual else "has no such thing at its stage")
        for name, asked in sorted(expected.items())
        if name not in actual or actual[name] != asked
    ]
