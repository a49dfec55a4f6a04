"""What a user says of a fleet beside its nodes: `--fleet-option KEY=VALUE`."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from autotune.base.errors import JobError
from autotune.base.flags import flag, switch
from autotune.base.names import did_you_mean
from autotune.base.units import parse_seconds

EACH_KIND = "each"
"""Option `kind` where every kind is searched, one after the other."""


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """Options of a fleet; all but the first are about other machines."""

    exclusive: bool = False
    """Whether no two trials share a PCIe switch or a network card."""

    python: str = ""
    """Interpreter on the nodes; empty: the path of this one, or else `python3`."""
    interface: str = ""
    """Network interface by which the nodes reach one another; empty: it is found."""
    forward: tuple[str, ...] = ()
    """Environment variables of this machine that trials get besides those that change speed."""
    kind: str = ""
    """Words of the device's name: only nodes that have it are taken; after `=` they are the whole
    name; `each`: a search of each kind; empty: all nodes, which must be alike."""
    ssh: str = "ssh"
    """Command that logs in, with its own options, such as `ssh -F FILE`."""
    wait: str = ""
    """Longest time to wait for nodes that were asked for, such as `10m`; empty: any for Slurm's,
    ten minutes for Ray's."""
    slots: str = ""
    """Nodes of a Ray cluster and the slots to take on each, such as `2x8`; empty: all."""

    @property
    def is_of_each_kind(self) -> bool:
        return self.kind == EACH_KIND

    def wait_s(self, default_s: float) -> float:
        """The longest time to wait for nodes.

        Raises:
            JobError: It is no time.
        """
        if not self.wait:
            return default_s
        return parse_seconds(self.wait, where=f"{flag('fleet_option')} wait")

    def takes(self, device_name: str) -> bool:
        name, kind = device_name.casefold(), self.kind.casefold()
        return name == kind[1:] if kind.startswith("=") else kind in name

    def refuse(self, fleet: str) -> None:
        """Refuse any, for a fleet that takes none.

        Raises:
            JobError: One was given.
        """
        if self != NO_OPTIONS:
            raise JobError.of("fleet.takes_no_options", fleet=fleet, exclusive=switch("exclusive"))


NO_OPTIONS = FleetOptions()


def options_of(texts: Sequence[str], *, exclusive: bool = False) -> FleetOptions:
    """Options as they were typed: `python=/opt/venv/bin/python`, `forward=HF_HOME,WANDB_MODE`.

    Raises:
        JobError: One has no value, or there is none of that name.
    """
    names = [field.name for field in fields(FleetOptions) if field.name != "exclusive"]
    values: dict[str, object] = {"exclusive": exclusive}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value or name not in names:
            guess = "" if name in names else did_you_mean(name, names, most=1)
            why = "no value" if name in names else f"no option {name!r}"
            hint = f"{guess}write KEY=VALUE with one of {', '.join(names)}"
            raise JobError(f"{flag('fleet_option')} {text}: {why}", hint)
        values[name] = tuple(filter(None, value.split(","))) if name == "forward" else value
    return FleetOptions(**values)  # type: ignore[arg-type]  # each value has its field's type
