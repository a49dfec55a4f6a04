"""What the reality test of Megatron trains, as a record of two CPU ranks.

python -m tests.record_megatron_knobs > results/recorded/knobs-cpu-2-megatron.json
"""

import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from platform import python_version

from autotune.devices.hardware import detect_environment
from autotune.engines.megatron.knobs import KNOBS
from tests.engines.megatron.test_reality import cases
from tests.engines.megatron.trained import train
from tests.record_tried import as_json, run_of

WORLD = 2


def main() -> None:
    """Train every layout of two ranks; one that fails ends it, and nothing is written."""
    started_at_s = time.time()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = [case for case in cases(folder) if case[1].world == WORLD]
        trained = train(asked, folder)
    for one in trained:
        for rank in one.ranks:
            if rank["error"] or rank["differences"]:
                sys.exit(f"{one.candidate}: {rank['error'] or rank['differences']}")
    record = run_of(
        [one.candidate.values for one in trained],
        knobs=KNOBS,
        engine="megatron",
        started_at_s=started_at_s,
        accelerator="cpu",
        device_name=detect_environment().device_name,
        ranks=WORLD,
        nodes=1,
        versions={"python": python_version()}
        | {name: version(name) for name in ("torch", "megatron-core")},
    )
    sys.stdout.write(as_json(record))


if __name__ == "__main__":
    main()
