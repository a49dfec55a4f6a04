"""Knobs of NCCL and gloo: variables of the environment, a row each of `knobs.json`.

An engine lists them among its own, and may narrow where they act. Each acts only where somebody
sets it to something else than the library would do by itself: a candidate that leaves all of them
alone is the run that it would be without them.

Facts and sources: NVIDIA/nccl, docs/userguide/source/env.rst (2.30), and the files in the rows.

Variables by which a candidate's communication knobs reach its ranks, and their read-back.

A row of `variables.json` is a knob: the `variable` that it is, and by which name its values are
`spelled`; or NCCL's name of a `collective` (src/init.cc: ncclFuncStr) and the algorithms that stay
enabled for each choice. A variable that has a new name is still read under its old one (2.30).
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base.data import table_beside
from autotune.engines.communication.rules import LOOPBACK
from autotune.engines.releases import is_at_least
from autotune.space.knob import Context, Knob, Knobs
from autotune.space.knob_rows import read_knobs


def _spans_nodes(_: Knobs, context: Context) -> bool:
    """Whether ranks are on several nodes, as far as it is known how many one has."""
    return context.n_devices == 0 or context.world > context.n_devices


def _is_named(values: Knobs, context: Context) -> bool:
    """Whether gloo gets other interfaces than the fleet names."""
    return values.get("gloo.interfaces") != LOOPBACK or _spans_nodes(values, context)


KNOBS: Mapping[str, Knob] = read_knobs(
    Path(__file__).with_name("knobs.json"), Knob, sys.modules[__name__], acts_off_default=True
)
"""In an order in which a knob comes after those that it looks at."""


_ROWS: Mapping[str, Mapping[str, Any]] = table_beside(__file__, "variables.json")
_CTAS_SINCE = "2.17"
_DEVICE_THREADS = 2
"""Threads of gloo for each device (torch: ProcessGroupGloo.cpp)."""


def environment_of(values: Knobs, nccl: str) -> dict[str, str]:
    """Variables that a candidate's ranks start with."""
    chosen = [
        f"{_ROWS[knob]['collective']}:{','.join(names)}"
        for knob, names in _algorithms_of(values).items()
    ]
    found = {"NCCL_ALGO": ";".join(chosen)} if chosen else {}
    for knob, row in _ROWS.items():
        if knob in values and "variable" in row:
            is_new = bool(nccl) and is_at_least(nccl, _CTAS_SINCE)
            variable = row.get("from_2.17", row["variable"]) if is_new else row["variable"]
            found[variable] = row.get("spelled", {}).get(values[knob], str(values[knob]))
    return found


def expected_of(values: Knobs, nccl: str) -> dict[str, Any]:
    """Settings that the libraries must report in the ranks (`autotune.trial.communication`)."""
    variables = environment_of(values, nccl)
    found: dict[str, Any] = {n: text for n, text in variables.items() if n.startswith("NCCL_")}
    found |= {knob: ",".join(names) for knob, names in _algorithms_of(values).items()}
    reported = [knob for knob, row in _ROWS.items() if "is_reported" in row and knob in values]
    found |= {knob: values[knob] for knob in reported}
    if "gloo.interfaces" in values:
        devices = len(str(values["gloo.interfaces"]).split(","))
        found |= {"gloo_devices": devices, "gloo_threads": devices * _DEVICE_THREADS}
    return found


def _algorithms_of(values: Knobs) -> dict[str, list[str]]:
    rows = {knob: row["algorithms"] for knob, row in _ROWS.items() if "algorithms" in row}
    return {knob: rows[knob][values[knob]] for knob in rows if knob in values}
