"""Trains candidates of Megatron for a few steps, each in fresh ranks, and reads each back.

Its arguments are CASES.json ANSWERS.json; it forks the ranks by itself.
"""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import torch

from autotune.contract import TrialSpec, settings_of
from autotune.trial.engines import megatron as driver
from autotune.trial.engines.base import differences
from autotune.trial.scripts import train_megatron
from tests.forked_ranks import Answer, ask

STEPS = 3
STEPS_AFTER = 2
"""Steps after a checkpoint, once without a break and once resumed."""


def train(case: dict[str, Any]) -> Answer:
    """Train in one rank; losses are those of its samples."""
    from autotune.trial import megatron_readback  # the host has CUDA's place by now

    spec, arguments = TrialSpec.from_dict(case["spec"]), case["arguments"]
    torch.set_num_threads(1)
    driver.join_ranks()
    settings = train_megatron.settings_of(settings_of(spec.workload, spec.layout), arguments)
    training = train_megatron.make_training(arguments, settings)
    norms = _noted_norms(training)
    trained = train_megatron.steps(training)
    losses = [next(trained).item() for _ in range(STEPS)]
    found = driver.read_back(training, spec.engine.expected)
    live = driver.live(training)
    live.save(case["folder"], "t", STEPS)
    went_on = [next(trained).item() for _ in range(STEPS_AFTER)]
    path, notes = live.load(case["folder"], "t")
    return {
        "resumed": [path is not None, notes.get("steps")],
        "went_on": went_on,
        "again": [next(trained).item() for _ in range(STEPS_AFTER)],
        "error": None,
        "losses": losses,
        "norms": norms[:STEPS],
        "read_back": found,
        "differences": differences(spec.engine.expected, found),
        "states": megatron_readback.states(training),
    }


def _noted_norms(training: train_megatron.Training) -> list[float]:
    """The norm of all gradients before each update, as Megatron's optimizer has it."""
    norms: list[float] = []
    step = training.optimizer.step

    def noted() -> Any:
        found = step()
        if found[1] is not None:  # the loss scale of fp16 leaves its first steps out
            norms.append(float(found[1]))
        return found

    training.optimizer.step = noted
    return norms


def main() -> None:
    """Ask for every case."""
    answers = [
        ask(
            functools.partial(train, case),
            case["spec"]["layout"]["world"],
            within_s=60,
            after_error_s=3,
        )
        for case in json.loads(Path(sys.argv[1]).read_text())
    ]
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
