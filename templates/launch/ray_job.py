"""Start `launch.sh` on as many nodes of a Ray cluster as the configuration takes.

`ray_job.json` says on how many, and with what each of them starts. One actor a node holds that
node's devices and starts the ranks: actors of one device each would confuse DeepSpeed, which asks
for a node's ranks by its host name.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

HERE = Path(__file__).resolve().parent


@ray.remote(num_cpus=0, max_restarts=0)
class Node:
    """A node of the run."""

    def address(self) -> str:
        """Where the other nodes reach it."""
        return str(ray.util.get_node_ip_address())

    def free_port(self) -> int:
        """A port that nobody uses there just now."""
        with socket.socket() as asked:
            asked.bind(("", 0))
            return int(asked.getsockname()[1])

    def train(self, command: list[str], variables: dict[str, str]) -> int:
        """Run the ranks of this node to their end; returns the exit code."""
        return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


def main() -> None:
    """Hold the nodes, all or none, and train."""
    asked: dict[str, Any] = json.loads((HERE / "ray_job.json").read_text(encoding="utf-8"))
    ray.init(address="auto")
    group = placement_group([asked["bundle"]] * asked["nodes"], strategy="STRICT_SPREAD")
    ray.get(group.ready())
    nodes = [
        Node.options(
            num_cpus=asked["bundle"].get("CPU", 0),
            num_gpus=asked["bundle"].get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            ),
        ).remote()
        for index in range(asked["nodes"])
    ]
    address, port = ray.get([nodes[0].address.remote(), nodes[0].free_port.remote()])
    variables = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    variables.setdefault("PYTHON", os.environ.get("PYTHON", sys.executable))
    shell, script = asked["command"]
    command = [shell, str(HERE / script), *sys.argv[1:]]
    codes = ray.get([node.train.remote(command, variables) for node in nodes])
    sys.exit(max(codes, key=abs))


if __name__ == "__main__":
    main()
