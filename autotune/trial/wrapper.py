"""One rank of a trial: `python -m autotune.trial.wrapper FOLDER` under a launcher, or forked warm.

Puts the candidate into its engine, times real optimizer steps of the training script, reads the
live engine back, and writes what it saw to `ranks/NN.json`. Anything that goes wrong becomes an
outcome there; nothing is recovered inside the process.
"""

import os
import platform
import runpy
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from autotune.base.keeper import end_with_parent
from autotune.contract import (
    PARENT_ENV,
    SPEC_FILE,
    Outcome,
    Phase,
    TrialSpec,
    read_json,
)
from autotune.trial.aftermath import Aftermath
from autotune.trial.communication import listen
from autotune.trial.engines.base import Driver, driver_of
from autotune.trial.faults import OutOfMemoryError, evidence_of, outcome_of
from autotune.trial.rendezvous import RankStore
from autotune.trial.reporter import Reporter, begin_rank
from autotune.trial.scripts.lengths import is_drawn
from autotune.trial.variables import CAPACITY_ENV, CORES_ENV


def main(folder: Path) -> NoReturn:
    """Run this rank of the trial in a folder and leave without waiting for destructors."""
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    reporter = begin_rank(folder, rank)
    pin(local_rank)
    spec = TrialSpec.from_dict(read_json(folder / SPEC_FILE))
    listen(spec, folder, rank)
    store = RankStore()
    try:
        _run(spec, folder, reporter, store)
    except BaseException as error:
        reporter.fail(error)
        print(reporter.report.traceback, file=sys.stderr, flush=True)
        os._exit(1)
    reporter.finish()
    sys.stdout.flush()
    store.leave()
    # Destructors of process groups and worker threads can hang or crash after a good run.
    os._exit(0)


def _run(spec: TrialSpec, folder: Path, reporter: Reporter, store: RankStore) -> None:
    reporter.enter(Phase.IMPORT)
    if spec.workload.script:  # its folder may bring the engine
        sys.path.insert(0, str(Path(spec.workload.script).parent))
    driver = driver_of(spec.engine.name)
    driver.load_code(spec.layout.accelerator)
    import torch

    from autotune.trial.memory import make_meter, peak_rss_bytes
    from autotune.trial.stopwatch import Stopwatch, TokenCounter, TrialDone

    config = driver.read_config(spec, folder)
    reporter.report.versions = versions()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

    reporter.enter(Phase.PROCESS_GROUP)
    store.open()
    meter = make_meter(spec.layout.accelerator)
    limit_bytes = spec.measure.memory_limit_bytes or int(os.environ.get(CAPACITY_ENV, "0")) or None
    meter.start(limit_bytes)
    driver.join_ranks()
    meter.cap()
    rss_before_bytes = peak_rss_bytes()

    aftermath = Aftermath(spec, driver, reporter, meter)

    def watch(engine: Any) -> None:
        reporter.report.host_construction_bytes = peak_rss_bytes() - rss_before_bytes
        meter.cap()
        live = driver.live(engine)
        aftermath.prepare(live)
        Stopwatch(
            reporter,
            spec.measure,
            aftermath,
            is_loss_scaled=spec.workload.precision == "fp16",
            tokens=TokenCounter(engine) if is_drawn(spec.workload.lengths) else None,
        ).attach(live)

    driver.on_initialize(config, lambda: reporter.enter(Phase.ENGINE_INIT), watch)
    reporter.enter(Phase.MODEL)
    try:
        _train(driver, spec, config)
    except TrialDone:
        reporter.enter(Phase.TEARDOWN)
    except BaseException as error:
        if aftermath.absorbs(error):
            reporter.enter(Phase.TEARDOWN)
            return
        meter.lift()
        reporter.report.memory_bytes = meter.read()
        says_so = outcome_of(error, reporter.report.phase) is Outcome.OOM
        if says_so or not meter.explains(error):
            raise
        raise OutOfMemoryError(
            f"{evidence_of(error)} (memory stood at {reporter.report.memory_bytes['peak']} of "
            f"{limit_bytes} bytes)"
        ) from error


def _train(driver: Driver, spec: TrialSpec, config: dict[str, Any]) -> None:
    """Run the workload's script; the stopwatch ends it once all is measured.

    Raises:
        RuntimeError: A user's script ended before that.
    """
    workload = spec.workload
    if workload.script:
        # Most engines read the candidate from a file that the script need not know.
        as_words = getattr(driver, "as_words", None)
        words = [] if as_words is None else as_words(spec, config)
        sys.argv = [workload.script, *words, *workload.arguments]
        if workload.folder:
            os.chdir(workload.folder)
        runpy.run_path(workload.script, run_name="__main__")
        raise RuntimeError(f"{workload.script} ended before its steps were measured")
    for _ in driver.steps(spec, config):
        pass


def pin(local_rank: int) -> None:
    """Bind this process to the cores that its node gives the rank, before torch is imported."""
    groups = [group for group in os.environ.get(CORES_ENV, "").split(";") if group]
    if groups:
        cores = {int(core) for core in groups[local_rank % len(groups)].split(",")}
        os.sched_setaffinity(0, cores)


def versions() -> dict[str, str]:
    """Releases of what trains in this process, by package."""
    found = {"python": platform.python_version()}
    for package in (
        "torch",
        "deepspeed",
        "megatron-core",
        "transformers",
        "accelerate",
        "peft",
        "trl",
    ):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    # A checkout that comes before an installed package.
    core = sys.modules.get("megatron.core")
    if core is not None:
        found["megatron-core"] = core.__version__
    return found


if __name__ == "__main__":
    end_with_parent(int(os.environ[PARENT_ENV]))
    main(Path(sys.argv[1]))
