"""What drivers share whose ranks train many cases, one after the other in one set of ranks.

A module with the arguments CASES.json ANSWERS.json WORLD, run by `tests.driven_ranks`. The ranks
are forked from a process that has imported what all of them need: that takes longer than most
cases.
"""

import functools
import gc
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.utils import logger

from tests.deepspeed_state import clean_globals
from tests.forked_ranks import ask

AFTER_ERROR_S = 10.0
"""Time of the other ranks once one has raised before its first case."""

Case = dict[str, Any]
"""A case, or what a rank says of it."""


def main(run: Callable[[Case], Case], *, within_s: float) -> None:
    """Write what every rank says of each case: by case, and in the order of the ranks.

    An exception is an answer: the `error`, with the seconds of the case as `s`.

    Args:
        run: What a rank does with a case.
        within_s: Time for all of them.
    """
    cases_file, answers_file, world = sys.argv[1:]
    logger.setLevel(logging.ERROR)
    ranks = ask(
        functools.partial(_answer, run, json.loads(Path(cases_file).read_text())),
        int(world),
        within_s=within_s,
        after_error_s=AFTER_ERROR_S,
    )
    if failed := [rank for rank in ranks if rank["error"] is not None]:
        sys.exit("\n".join(f"{rank['error']}\n{rank.get('traceback', '')}" for rank in failed))
    by_case = zip(*(rank["results"] for rank in ranks), strict=True)
    Path(answers_file).write_text(json.dumps([list(each) for each in by_case]))


def _answer(run: Callable[[Case], Case], cases: list[Case]) -> Case:
    deepspeed.init_distributed()
    results = []
    for case in cases:
        start = time.perf_counter()
        try:
            with clean_globals():
                results.append(run(case))
        except Exception:
            results.append({"error": traceback.format_exc()})
        gc.collect()
        results[-1]["s"] = time.perf_counter() - start
    torch.distributed.barrier()
    return {"error": None, "results": results}
