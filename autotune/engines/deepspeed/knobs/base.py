"""A knob of DeepSpeed: where it stands in a ds_config.json, and what the live engine calls it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.base.nested import look_up
from autotune.contract import KnobValue
from autotune.space.knob import Knob


@dataclass(frozen=True, kw_only=True)
class DeepSpeedKnob(Knob):
    """A knob, with what rendering and reading back need to know of it."""

    key: str = ""
    """The dotted key that it governs; empty: the training script or the start of the ranks brings
    it into force."""
    more_keys: tuple[str, ...] = ()
    """Keys that it governs besides that one."""
    by_template: bool = False
    """Whether the template has lines of its own for it; else its value is written to `key` as it
    is."""
    reader: Callable[[Mapping[str, Any]], Any] | None = None
    """Finds its value in a whole ds_config (None: that chooses none); by default it is the value
    of `key`. With a reader it is always written by the template's own lines."""
    switch: tuple[KnobValue | None, ...] = ()
    """In place of a reader: its values where a switch among its keys is on, and where one is off
    and none is on."""
    in_script: str = ""
    """What a user's script does for it, where no key says it."""
    variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Value -> variables of the environment that bring it into force; others need none."""
    read_back: str = ""
    """The name under which the live engine says the value wherever `when` holds: an attribute of
    ZeRO's optimizer, or a name of `autotune.trial.readback`. Empty: `expected.py` works out what
    is read back, if anything is."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that it governs, dotted."""
        return (self.key, *self.more_keys) if self.key else ()

    @property
    def is_plain(self) -> bool:
        """Whether its value is written to its key as it is."""
        return bool(self.key) and not (self.by_template or self.reader or self.switch)

    def read(self, config: Mapping[str, Any], *, where: str = "") -> KnobValue | None:
        """The value that a whole ds_config chooses; None where it says nothing.

        `where` names the file for the error; what was rendered has none, and is taken as it is.

        Raises:
            JobError: The value is not one of the knob's.
        """
        value: KnobValue | None = self._found(config)
        if value is None or not where:
            return value
        return self.check(value, where=f"{where}: {self.key}")

    def _found(self, config: Mapping[str, Any]) -> Any:
        if self.reader is not None:
            return self.reader(config)
        if not self.switch:
            return look_up(config, self.key)
        found = [look_up(config, key) for key in self.keys]
        states = zip((True, False), self.switch, strict=True)
        return next((value for state, value in states if any(v is state for v in found)), None)
