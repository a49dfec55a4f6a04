"""Plug-ins: what an installed package offers under one of the project's entry-point groups.

Engines, workloads, fleets, dialects, launchers and samplers are all found this way, the shipped
ones too. A plug-in is a class that is made without arguments; its contract is in
`autotune.testing`.
"""

from collections.abc import Callable
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
    kind: Kind, name: str, *, where: str = "", suits: Callable[[Any], bool] = lambda _: True
) -> Any:
    """Make the plug-in of this name.

    For the error, `where` is the flag or key that named it, and `suits` whether one may be named.

    Raises:
        JobError: There is none of that name, or it cannot be loaded.
    """
    offered = _offered(kind)
    if name not in offered:
        known = [one for one in sorted(offered) if suits(load_plugin(kind, one))]
        raise JobError(
            f"{where or kind}: {name!r}: no such {kind}",
            f"{did_you_mean(name, known, most=1)}installed: {', '.join(known) or 'none'}",
        )
    try:
        return offered[name].load()()
    except AutotuneError:
        raise
    except Exception as error:
        raise JobError(
            f"{where or kind}: {name}: {offered[name].value} cannot be loaded: {error}",
            "mend or remove the package that offers it",
        ) from error


@cache
def _offered(kind: Kind) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"autotune.{kind}s")}
