"""What the reality test of an engine trains, as a record of two CPU ranks.

python -m tests.record_knobs deepspeed > results/recorded/knobs-cpu-2.json
python -m tests.record_knobs megatron > results/recorded/knobs-cpu-2-megatron.json
"""

import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from autotune.contract import KnobValue
from autotune.devices.hardware import detect_environment
from autotune.space.knob import knobs_of
from tests.engines.deepspeed import test_engine_reality
from tests.engines.megatron import test_reality, trained
from tests.record_tried import as_json, run_of

WORLD = 2
PACKAGES = {
    "deepspeed": ("torch", "deepspeed", "transformers"),
    "megatron": ("torch", "megatron-core"),
}
"""Engine -> packages whose releases are recorded."""


def deepspeed(folder: Path) -> Iterator[Mapping[str, KnobValue]]:
    """Train every case; the knobs that act in each."""
    reality = test_engine_reality
    cases = [*reality.compiled_cases(folder), *reality.stratified_cases(folder)]
    for case, result in zip(cases, reality.run(folder, cases), strict=True):
        _check(case["spec"]["knobs"], [result])
        yield reality.acting(case)


def megatron(folder: Path) -> Iterator[Mapping[str, KnobValue]]:
    """Train every layout of two ranks; the knobs of each."""
    asked = [case for case in test_reality.cases(folder) if case[1].world == WORLD]
    for one in trained.train(asked, folder):
        _check(one.candidate, one.ranks)
        yield one.candidate.values


def _check(what: Any, answers: Iterable[Mapping[str, Any]]) -> None:
    for answer in answers:
        if answer.get("error") or answer["differences"]:
            sys.exit(f"{what}: {answer.get('error') or answer['differences']}")


def main(engine: str) -> None:
    """Train all; one that fails ends it, and nothing is written."""
    started_at_s = time.time()
    with tempfile.TemporaryDirectory() as folder:
        tried = [*{"deepspeed": deepspeed, "megatron": megatron}[engine](Path(folder))]
    record = run_of(
        tried,
        knobs=knobs_of(engine),
        engine=engine,
        started_at_s=started_at_s,
        accelerator="cpu",
        device_name=detect_environment().device_name,
        ranks=WORLD,
        nodes=1,
        versions={
            "python": python_version(),
            **{name: version(name) for name in PACKAGES[engine]},
        },
    )
    sys.stdout.write(as_json(record))


if __name__ == "__main__":
    main(sys.argv[1])
