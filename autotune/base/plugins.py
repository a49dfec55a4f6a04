"""Plug-ins: what an installed package offers under one of the project's entry-point groups.

Engines, workloads, fleets, dialects, launchers and samplers are all found this way, the shipped
ones too. A plug-in is a class that is made without arguments; its contract is in
`autotune.testing`.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from autotune.base.errors import AutotuneError, JobError
from autotune.base.names import did_you_mean

Kind = Literal["engine", "workload", "fleet", "dialect", "launcher", "sampler"]


def plugin_names(kind: Kind) -> list[str]:
    """Names of all plug-ins of a kind that are installed, in alphabetical order."""
    return sorted(_offered(kind))


def load_plugin(
    kind: Kind, name: str, *, where: str = "", suits: Callable[[Any], bool] | None = None
) -> Any:
    """Make the plug-in of this name.

    Args:
        kind: What it is.
        name: Its entry point's.
        where: The flag or key that named it, for the error.
        suits: Whether a plug-in is one that the error may suggest; None: all are.

    Raises:
        JobError: There is none of that name, or it cannot be loaded.
    """
    offered = _offered(kind)
    if name not in offered:
        known = sorted(offered) if suits is None else suiting_names(kind, suits)
        hint = f"{did_you_mean(name, known, most=1)}installed are {', '.join(known) or 'none'}"
        raise JobError(f"{where or kind}: {name!r}: no such {kind}", hint)
    try:
        return offered[name].load()()
    except AutotuneError:
        raise
    except Exception as error:
        problem = f"{where or kind}: {name}: {offered[name].value} cannot be loaded: {error}"
        raise JobError(problem, "mend or remove the package that offers it") from error


def suiting_names(kind: Kind, suits: Callable[[Any], bool]) -> list[str]:
    """Names of the plug-ins that suit; one that cannot be loaded does not."""
    found = []
    for name in plugin_names(kind):
        with suppress(AutotuneError):
            if suits(load_plugin(kind, name)):
                found.append(name)
    return found


@cache
def _offered(kind: Kind) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"autotune.{kind}s")}
