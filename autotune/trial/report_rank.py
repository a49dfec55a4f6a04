"""A rank that measures the machine and trains nothing: what it found goes to one file.

`python -m MODULE FOLDER ACCELERATOR DEVICES ...` under a launcher; DEVICES are core numbers where
the accelerator is `cpu`. The findings go to `FOLDER/RANK.json`, a failure to a report as a trial's
rank writes it.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from autotune.base.keeper import end_with_parent
from autotune.contract import PARENT_ENV, write_json
from autotune.trial.rendezvous import RankStore
from autotune.trial.reporter import Reporter


def report(measure: Callable[[str, int], dict[str, Any]]) -> NoReturn:
    """Measure, write, and leave without waiting for destructors.

    `measure` is given the accelerator and the local rank; it imports torch, after the process is
    pinned.
    """
    end_with_parent(int(os.environ[PARENT_ENV]))
    folder, accelerator, devices = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if accelerator == "cpu":
        # Before torch is imported: its threads and its memory stay on this core.
        os.sched_setaffinity(0, {int(devices.split(",")[local_rank])})
    store = RankStore()
    try:
        store.open()
        found = measure(accelerator, local_rank)
    except Exception as error:
        Reporter(folder, rank, submitted_at_s=0.0).fail(error)
        os._exit(1)
    write_json(folder / f"{rank}.json", found)
    store.leave()
    os._exit(0)
