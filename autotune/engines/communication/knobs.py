"""Knobs of NCCL and gloo: variables of the environment, a row each of `knobs.json`.

An engine lists them among its own, and may narrow where they act. Each acts only where somebody
sets it to something else than the library would do by itself: a candidate that leaves all of them
alone is the run that it would be without them.

Facts and sources: NVIDIA/nccl, docs/userguide/source/env.rst (2.30), and the files in the rows.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from autotune.engines.communication.base import LOOPBACK
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
