"""Measures the node that it runs on as its part of a fleet's probe.

`python -m autotune.probe.node ASKED` gets the nodes' secret as the first line of its input, and
prints a line of JSON behind `MARK`; node 0's holds what all ranks measured.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from autotune.base.errors import AutotuneError, FleetError
from autotune.devices.hardware import detect_environment
from autotune.probe.nodes import nodes_of
from autotune.probe.run import Told, measure
from autotune.probe.token import TOKEN_ENV

MARK = "autotune-probe: "
_WAIT_S = 60.0
"""Time for the other nodes to come: all are started at the same time."""


def told_by(text: str) -> Told | None:
    """What a node has said, without the mark.

    Raises:
        FleetError: It could not measure, and says why.
        ValueError: That is no such line.
    """
    data: dict[str, Any] = json.loads(text)
    if "error" in data:
        raise FleetError(data["error"], data.get("hint", ""))
    try:
        return None if data["told"] is None else Told(**data["told"])
    except (TypeError, KeyError) as error:
        raise ValueError(f"no figures of a probe: {error}") from error


def _part(asked: dict[str, Any], token: str) -> Told | None:
    nodes = None
    if asked["count"] > 1:
        os.environ[TOKEN_ENV] = token
        nodes = nodes_of(asked["count"], asked["rank"], asked["master"])
        assert nodes is not None, "there are several"
        nodes = dataclasses.replace(nodes, wait_s=_WAIT_S)
    return measure(
        detect_environment(),
        world=asked["world"],
        nodes=nodes,
        disk=None if asked["disk"] is None else Path(asked["disk"]),
        is_quick=asked["quick"],
        only_pairs=asked["only_pairs"],
    )


def main(text: str) -> None:
    """Measure, and say what came of it."""
    token = sys.stdin.readline().strip()
    said: dict[str, Any]
    try:
        told = _part(json.loads(text), token)
        said = {"told": None if told is None else dataclasses.asdict(told)}
    except AutotuneError as error:
        said = {"error": error.message, "hint": error.hint}
    print(MARK + json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
