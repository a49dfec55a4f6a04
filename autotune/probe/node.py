"""Measures the node that it runs on as its part of a fleet's probe.

`python -m autotune.probe.node ASKED` prints a line of JSON behind `MARK`: what the node's ranks
measured, or why they could not.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from autotune.base.errors import AutotuneError, FleetError
from autotune.devices.hardware import detect_environment
from autotune.fleet.measuring import Meeting
from autotune.probe.run import Measured, ProbeRequest, measure

MARK = "autotune-probe: "
TIMEOUT_S = 360.0
"""Time for the ranks of several nodes, which wait for each other first."""


def asked_of(wanted: ProbeRequest, world: int, meeting: Meeting) -> str:
    """The argument for a node: what its ranks measure, how many they are, and where they meet."""
    fields = dataclasses.asdict(wanted) | {
        "disk": None if wanted.disk is None else str(wanted.disk)
    }
    return json.dumps({"wanted": fields, "world": world, "meeting": dataclasses.asdict(meeting)})


def measured_by(text: str) -> Measured:
    """What a node answered, without the mark.

    Raises:
        FleetError: It could not measure, and says why.
        ValueError: That is no such line.
    """
    data: dict[str, Any] = json.loads(text)
    if "error" in data:
        raise FleetError(data["error"], data.get("hint", ""))
    try:
        return Measured(**data)
    except TypeError as error:
        raise ValueError(f"no figures of a probe: {error}") from error


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    fields = asked["wanted"]
    disk = None if fields["disk"] is None else Path(fields["disk"])
    wanted = ProbeRequest(**{**fields, "precisions": tuple(fields["precisions"]), "disk": disk})
    try:
        measured = measure(
            detect_environment(),
            wanted,
            world=asked["world"],
            meeting=Meeting(**asked["meeting"]),
            timeout_s=TIMEOUT_S,
        )
    except AutotuneError as error:
        return {"error": error.message, "hint": error.hint}
    return dataclasses.asdict(measured)


if __name__ == "__main__":
    print(MARK + json.dumps(_answer(json.loads(sys.argv[1]))), flush=True)
