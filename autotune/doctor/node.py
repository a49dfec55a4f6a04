"""Looks at the node that it runs on: `python -m autotune.doctor.node`, a line of JSON."""

import dataclasses
import json
from typing import Any

from autotune.doctor.diagnosis import Device, Machine
from autotune.doctor.machine import inspect_machine

MARK = "autotune-machine: "


def machine_of(text: str) -> Machine:
    """What a node has said, without the mark.

    Raises:
        ValueError: That is no such line.
    """
    data: dict[str, Any] = json.loads(text)
    try:
        data["devices"] = tuple(Device(**device) for device in data["devices"])
        return Machine(**data)
    except (TypeError, KeyError) as error:
        raise ValueError(f"no description of a machine: {error}") from error


if __name__ == "__main__":
    print(MARK + json.dumps(dataclasses.asdict(inspect_machine())), flush=True)
