"""What the reality test trains, as a record of two CPU ranks.

python -m tests.record_knobs > results/recorded/knobs-cpu-2.json
"""

import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from platform import python_version

from autotune.devices.hardware import detect_environment
from autotune.engines.deepspeed.knobs import KNOBS
from tests.engines.deepspeed.test_engine_reality import (
    WORLD,
    acting,
    compiled_cases,
    run,
    stratified_cases,
)
from tests.record_tried import as_json, run_of


def main() -> None:
    """Train every case; one that fails ends it, and nothing is written."""
    started_at_s = time.time()
    with tempfile.TemporaryDirectory() as folder:
        cases = [*compiled_cases(Path(folder)), *stratified_cases(Path(folder))]
        results = run(Path(folder), cases)
    for case, result in zip(cases, results, strict=True):
        if result.get("error") or result["differences"]:
            sys.exit(f"{case['spec']['knobs']}: {result.get('error') or result['differences']}")
    record = run_of(
        map(acting, cases),
        knobs=KNOBS,
        started_at_s=started_at_s,
        accelerator="cpu",
        device_name=detect_environment().device_name,
        ranks=WORLD,
        nodes=1,
        versions={"python": python_version()}
        | {name: version(name) for name in ("torch", "deepspeed", "transformers")},
    )
    sys.stdout.write(as_json(record))


if __name__ == "__main__":
    main()
