"""The protocol of a driver: what an engine does inside the ranks of a trial.

A driver is a module, found by its engine's name (entry points of the group `autotune.drivers`). It
is loaded outside the ranks as well, so it imports the engine only inside its functions.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from autotune.contract import TrialSpec


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
