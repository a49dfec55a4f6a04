"""Measures the node that it runs on as its part of a fleet's probe.

`python -m autotune.probe.node PART` answers what the node's ranks measured; PART is JSON.
"""

import json
import sys
from dataclasses import dataclass

from autotune.contract import from_json
from autotune.devices.hardware import detect_environment
from autotune.fleet.measuring import Meeting
from autotune.fleet.node.answers import answer
from autotune.probe.run import Measured, ProbeRequest, measure

TIMEOUT_S = 360.0
"""Time for the ranks of several nodes, which wait for each other first."""


@dataclass(frozen=True, kw_only=True)
class ProbePart:
    """What the ranks of one node measure, how many they are, and where they meet the others."""

    wanted: ProbeRequest
    world: int
    meeting: Meeting


def measure_part(part: ProbePart) -> Measured:
    """Run the ranks of this node; errors are those of `measure`."""
    environment = detect_environment()
    return measure(
        environment, part.wanted, world=part.world, meeting=part.meeting, timeout_s=TIMEOUT_S
    )


if __name__ == "__main__":
    answer(lambda: measure_part(from_json(ProbePart, json.loads(sys.argv[1]))))
