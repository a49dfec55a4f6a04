"""What a fault is: a name, and how it is injected."""

from collections.abc import Callable
from dataclasses import dataclass

Inject = Callable[..., None]

HANGING = "hanging"
"""A rank leaves this file in its trial's folder right before it hangs."""
LITTER = "litter"
"""A rank leaves the path of its temporary file in this file of its trial's folder."""
LOG_BYTES = 2**30
"""Size of the log that is too long to read."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault."""

    name: str
    """`SUBJECT: DETAIL`."""
    inject: Inject
    """Called with the ground. Returns once all that must hold held, and asserts it."""
    in_short: bool = False
    """Whether the short form injects it."""
    rounds: int = 1
    """Injections of it in a full run."""
    needs: Callable[[], str] = str
    """Why it cannot be injected on this machine; empty: it can."""

    @property
    def subject(self) -> str:
        """What kind of fault it is."""
        return self.name.partition(":")[0]


def must(holds: object, what: str) -> None:
    """See that something holds, whatever Python makes of its assertions."""
    if not holds:
        raise AssertionError(what)
