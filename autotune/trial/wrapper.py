"""One rank of a trial: `python -m autotune.trial.wrapper FOLDER` under a launcher, or forked warm.

Puts the candidate into its engine, times real optimizer steps of the training script, reads the
live engine back, and writes what it saw to `ranks/NN.json`. Anything that goes wrong becomes an
outcome there; nothing is recovered inside the process.
"""

import os
import runpy
import sys
from pathlib import Path
from typing import Any, NoReturn

from autotune.base.keeper import end_with_parent
from autotune.contract import PARENT_ENV, Phase
from autotune.trial.engines.base import driver_of
from autotune.trial.rank import Rank, pin, versions
from autotune.trial.scripts.lengths import is_drawn


def main(folder: Path) -> NoReturn:
    """Run this rank of the trial in a folder; the stopwatch ends it once all is measured."""
    pin(int(os.environ["LOCAL_RANK"]))
    rank = Rank(folder, int(os.environ["RANK"]))
    try:
        _run(rank)
    except BaseException as error:
        rank.fail(error)


def _run(rank: Rank) -> NoReturn:
    """Run the workload's script.

    Raises:
        RuntimeError: It ended before its steps were measured.
    """
    spec, reporter = rank.spec, rank.reporter
    workload = spec.workload
    reporter.enter(Phase.IMPORT)
    if workload.script:  # its folder may bring the engine
        sys.path.insert(0, str(Path(workload.script).parent))
    driver = driver_of(spec.engine.name)
    driver.load_code(spec.layout.accelerator)
    import torch

    from autotune.trial.guest.intake import Intake
    from autotune.trial.memory import peak_rss_bytes
    from autotune.trial.stopwatch import Stopwatch

    config = driver.read_config(spec, rank.folder)
    reporter.report.versions = versions()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    reporter.enter(Phase.PROCESS_GROUP)
    rank.store.open()
    rank.start_meter()
    driver.join_ranks()
    rank.meter.cap()
    rss_before_bytes = peak_rss_bytes()

    def watch(engine: Any) -> None:
        reporter.report.host_construction_bytes = peak_rss_bytes() - rss_before_bytes
        rank.meter.cap()
        is_loss_scaled = workload.precision == "fp16"
        tokens = Intake(engine, by_labels=True) if is_drawn(workload.lengths) else None
        live = driver.live(engine)
        Stopwatch(rank, driver, live, is_loss_scaled=is_loss_scaled, tokens=tokens).attach()

    driver.on_initialize(config, lambda: reporter.enter(Phase.ENGINE_INIT), watch)
    reporter.enter(Phase.MODEL)
    if workload.script:
        # Most engines read the candidate from a file that the script need not know.
        as_words = getattr(driver, "as_words", None)
        words = [] if as_words is None else as_words(spec, config)
        sys.argv = [workload.script, *words, *workload.arguments]
        if workload.folder:
            os.chdir(workload.folder)
        runpy.run_path(workload.script, run_name="__main__")
    else:
        for _ in driver.steps(spec, config):
            pass
    raise RuntimeError(f"{workload.script or 'it'} ended before its steps were measured")


if __name__ == "__main__":
    end_with_parent(int(os.environ[PARENT_ENV]))
    main(Path(sys.argv[1]))
