"""What drivers share whose ranks train many cases, one after the other in one set of ranks.

Started as `DRIVER.py CASES.json ANSWERS.json WORLD`. The ranks are forked from a process that has
imported what all of them need: that takes longer than most cases, and each would pay for it.
"""

import functools
import gc
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
from deepspeed.utils import logger

from autotune.trial.engines.deepspeed import load_code, load_model_code
from tests.forked_ranks import ask

AFTER_ERROR_S = 10.0
"""Time of the other ranks once one has raised."""

Cases = list[dict[str, Any]]
"""Cases, or what a rank says of each."""


def main(train: Callable[[Cases], Cases], *, within_s: float) -> list[Cases]:
    """What every rank says of all cases, in the order of the ranks; the first one's is written.

    Args:
        train: What a rank does with all cases once the ranks have found one another.
        within_s: Time for all of them.
    """
    cases_file, answers_file, world = sys.argv[1:]
    logger.setLevel(logging.ERROR)
    load_code("cpu")
    load_model_code({"config": {"model_type": "llama"}, "lora": {}})
    gc.freeze()
    ranks = ask(
        functools.partial(_answer, train, json.loads(Path(cases_file).read_text())),
        int(world),
        within_s=within_s,
        after_error_s=AFTER_ERROR_S,
    )
    if any(rank["error"] is not None for rank in ranks):
        sys.exit("\n".join(f"{rank['error']}\n{rank.get('traceback', '')}" for rank in ranks))
    answers = [rank["results"] for rank in ranks]
    Path(answers_file).write_text(json.dumps(answers[0]))
    return answers


def _answer(train: Callable[[Cases], Cases], cases: Cases) -> dict[str, Any]:
    deepspeed.init_distributed()
    return {"error": None, "results": train(cases)}
