"""DeepSpeed's knobs: a row each of `knobs.json`, and those of communication after them.

A row has the fields of `DeepSpeedKnob`; functions that it names are those of `situation.py` and
`readers.py`. The evidence in the rows is DeepSpeed 0.19.8.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.base.nested import look_up
from autotune.contract import KnobValue
from autotune.engines.communication.knobs import KNOBS as COMMUNICATION_KNOBS
from autotune.engines.deepspeed.knobs import readers, situation
from autotune.space import knob as shared
from autotune.space.knob import Knob, Knobs
from autotune.space.knob_rows import read_knobs


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


_STAGES = {"nccl.all_gather": (1, 2, 3), "nccl.reduce_scatter": (3,)}
"""Collectives -> the stages that use them: parameters are gathered from stage 1 on; gradients are
all-reduced below stage 3 and reduce-scattered at it (stage_1_and_2.py: allreduce_and_scatter)."""


def _of_communication(knob: Knob) -> DeepSpeedKnob:
    fields = {field.name: getattr(knob, field.name) for field in dataclasses.fields(knob)}
    if stages := _STAGES.get(knob.name):
        fields["when"] = {"zero.stage": stages}
    return DeepSpeedKnob(**{**fields, "group": "communication"})


_FUNCTIONS = (shared, situation, readers)

KNOBS: Mapping[str, DeepSpeedKnob] = {
    **read_knobs(Path(__file__).with_name("knobs.json"), DeepSpeedKnob, *_FUNCTIONS),
    **{name: _of_communication(knob) for name, knob in COMMUNICATION_KNOBS.items()},
}
"""Knobs by name, in an order in which a knob comes after those that it looks at."""


def environment_of(values: Knobs) -> dict[str, str]:
    """Environment variables that a candidate's ranks start with."""
    brought = (KNOBS[name].variables.get(str(value), {}) for name, value in values.items())
    return {variable: text for found in brought for variable, text in found.items()}
