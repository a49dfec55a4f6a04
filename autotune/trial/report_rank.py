"""A rank that measures the machine and trains nothing: what it found goes to one file.

`python -m MODULE FOLDER ACCELERATOR DEVICES ...` under a launcher; DEVICES are core numbers where
the accelerator is `cpu`. The findings go to `FOLDER/RANK.json`, a failure to `FOLDER/RANK.error`,
after the time by the machine's monotonic clock.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from autotune.base.keeper import end_with_parent
from autotune.contract import PARENT_ENV
from autotune.trial.rendezvous import RankStore


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
        text = f"rank {rank}: {type(error).__name__}: {' '.join(str(error).split())}"
        aside = folder / f"{rank}.error.new"  # moved, so that nobody reads a part of it
        aside.write_text(f"{time.monotonic():.6f} {text[:500]}", encoding="utf-8")
        aside.replace(folder / f"{rank}.error")
        os._exit(1)
    (folder / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    store.leave()
    os._exit(0)
