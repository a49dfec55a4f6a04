"""One rank of a user's own script: configured, timed, read back and ended from outside.

The script runs as it is. What it hands to DeepSpeed and to its framework is edited on the way (see
`edits.py`), and the first engine that trains is watched as one of a built-in trial is.
"""

import atexit
import copy
import faulthandler
import functools
import inspect
import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from autotune.contract import (
    RANKS_DIR,
    SPEC_FILE,
    STACKS_FILE,
    Outcome,
    Phase,
    TrialSpec,
    read_json,
)
from autotune.trial.faults import outcome_of
from autotune.trial.guest import quiet
from autotune.trial.guest.begin import GUEST_ENV
from autotune.trial.guest.edits import Edits, configuration_of
from autotune.trial.guest.hooks import call_after_imports
from autotune.trial.reporter import Reporter
from autotune.trial.statistics import MIN_SAMPLES
from autotune.trial.variables import CAPACITY_ENV, SUBMITTED_ENV
from autotune.trial.wrapper import segments, versions

_ENGINE_CALLS = ("forward", "backward", "step", "train_batch")
"""Methods in which an error is the configuration's, whatever the script makes of it."""
_NO_SCRIPTS = ("deepspeed", "accelerate", "transformers", "torch", "autotune")
"""Packages whose questions to the engine say nothing of the user's script."""


class ScriptEndedError(RuntimeError):
    """The script ended before its steps were measured."""


class Guest:
    """What is known of this rank, and what is done with it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.spec = TrialSpec.from_dict(read_json(folder / SPEC_FILE))
        self.edits = Edits.of_trial(folder)
        self.reporter = Reporter(folder, rank, float(os.environ[SUBMITTED_ENV]))
        self.seen: dict[str, Any] = {"frameworks": [], "engines": 0}
        """What the script shows of itself; see `describe`."""
        self._meter: Any = None
        self._watched: Any = None
        self._stopwatch: Any = None
        self._is_over = False
        self._lock = threading.RLock()

    @classmethod
    def begin(cls, folder: Path, rank: int | None = None) -> "Guest":
        """Take this process for a rank of the trial in a folder."""
        number = int(os.environ["RANK"]) if rank is None else rank
        guest = cls(folder, number)
        stacks = (folder / RANKS_DIR / STACKS_FILE.format(rank=number)).open("wb")
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        guest.reporter.enter(Phase.IMPORT)
        atexit.register(guest.on_exit)
        sys.excepthook = functools.partial(guest.on_error, sys.excepthook)
        call_after_imports(guest.hooks())
        return guest

    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        """What is done once each module is there."""
        return {
            **quiet.hooks(),
            "deepspeed": self.on_deepspeed,
            "accelerate.utils.deepspeed": self._on_accelerate_config,
            "accelerate.accelerator": self._on_accelerator,
            "transformers.training_args": self._on_training_arguments,
        }

    # ------------------------------------------------ what the script brings

    def on_deepspeed(self, module: ModuleType) -> None:
        """DeepSpeed is there: what a configuration takes is counted from here on."""
        from autotune.trial.engines import deepspeed as driver
        from autotune.trial.memory import make_meter

        self.reporter.report.versions = versions()
        if "TORCH_EXTENSIONS_DIR" in os.environ:
            from autotune.trial.prebuilt import load_as_built, reuse_cpu_info

            reuse_cpu_info()
            load_as_built()
        self._meter = make_meter(self.spec.layout.accelerator, segments(driver))
        capacity = int(os.environ.get(CAPACITY_ENV, "0")) or None
        self._meter.start(self.spec.measure.memory_limit_bytes or capacity)
        self.reporter.enter(Phase.MODEL)
        initialize = module.initialize
        module.initialize = self._watched_initialize(initialize)  # type: ignore[attr-defined]

    def _on_training_arguments(self, module: ModuleType) -> None:
        """Trainer's arguments: a candidate's values, and nothing that leaves traces."""
        kind = module.TrainingArguments
        finish = kind.__post_init__

        @functools.wraps(finish)
        def edited(arguments: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen["arguments"] = _plain(vars(arguments))
            self.seen["arguments_class"] = type(arguments).__name__
            for name, value in self.edits.arguments.items():
                setattr(arguments, name, copy.deepcopy(value))
            quiet.quiet_arguments(arguments)
            return finish(arguments, *args, **kwargs)

        kind.__post_init__ = edited

    def _on_accelerate_config(self, module: ModuleType) -> None:
        """The one place where Trainer, accelerate and what builds on them read a configuration."""
        kind = module.HfDeepSpeedConfig
        read = kind.__init__

        @functools.wraps(read)
        def edited(config: Any, config_file_or_dict: Any, *args: Any, **kwargs: Any) -> None:
            read(config, config_file_or_dict, *args, **kwargs)
            if isinstance(config_file_or_dict, str) and os.path.exists(config_file_or_dict):
                self.seen["config_file"] = os.path.abspath(config_file_or_dict)
            self.seen.setdefault("config_written", _plain(config.config))
            self.edits.apply(config.config, drops_product=True)
            config.set_stage_and_offload()

        kind.__init__ = edited

    def _on_accelerator(self, module: ModuleType) -> None:
        """No trackers, and no folder of theirs for a project."""
        kind = module.Accelerator
        make = kind.__init__

        @functools.wraps(make)
        def quietly(accelerator: Any, *args: Any, **kwargs: Any) -> None:
            self._note_framework("accelerate")
            if kwargs.get("log_with") is not None:
                kwargs["log_with"] = None
            make(accelerator, *args, **kwargs)

        kind.__init__ = quietly

    def _note_framework(self, name: str) -> None:
        if name not in self.seen["frameworks"]:
            self.seen["frameworks"].append(name)

    # ------------------------------------------------ the engine

    def _watched_initialize(self, initialize: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(initialize)

        @functools.wraps(initialize)
        def watched(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind_partial(*args, **kwargs)
            self.reporter.enter(Phase.ENGINE_INIT)
            is_trained = self._edit(given.arguments)
            self.seen["engines"] += 1
            made = initialize(*given.args, **given.kwargs)
            if is_trained:
                self._wait_for(made[0], given.arguments)
            return made

        return watched

    def _edit(self, arguments: dict[str, Any]) -> bool:
        """Edit what an engine is made with; says whether it is one that trains."""
        of_script = arguments.get("args")
        in_arguments = getattr(of_script, "deepspeed_config", None)
        given = arguments.get("config")
        if given is None:
            given = arguments.get("config_params")
        if given is None:
            given = in_arguments
        if given is None:
            return False
        config, file = configuration_of(given)
        is_trained = arguments.get("optimizer") is not None or bool(config.get("optimizer"))
        if not is_trained:
            return False
        if "config_file" not in self.seen:
            self.seen["config_file"] = file
        self.seen.setdefault("config_written", _plain(config))
        if self.edits.configuration:
            self.edits.apply(config, drops_product=True)
            arguments.pop("config_params", None)
            arguments["config"] = config
            if in_arguments is not None:  # DeepSpeed refuses two
                arguments["args"] = copy.copy(of_script)
                arguments["args"].deepspeed_config = None
        self.seen["config"] = _plain(config)
        self.seen["client_optimizer"] = _class_of(arguments.get("optimizer"))
        self.seen["client_scheduler"] = _class_of(arguments.get("lr_scheduler"))
        self.seen["gives_data"] = arguments.get("training_data") is not None
        return True

    def _wait_for(self, engine: Any, arguments: dict[str, Any]) -> None:
        """Watch the first engine that trains, from its first training pass on."""
        for name in _ENGINE_CALLS:
            if hasattr(engine, name):
                setattr(engine, name, self._failing_fast(getattr(engine, name)))
        asked = getattr(engine, "train_micro_batch_size_per_gpu", None)
        if asked is not None:
            engine.train_micro_batch_size_per_gpu = self._noting_question(asked)
        if hasattr(engine, "train_batch") and type(engine).__name__ == "PipelineEngine":
            self._watch(engine)
            return

        def on_pass(module: Any, args: Any, kwargs: Any) -> None:
            if self._watched is None and module.training:
                self._watch(engine)
                # The hook that counts came too late for this pass.
                self._stopwatch.intake._see(module, args, kwargs)

        engine.register_forward_pre_hook(on_pass, with_kwargs=True)

    def _watch(self, engine: Any) -> None:
        from autotune.trial.guest.watch import watch

        self._watched = engine
        self._meter.cap()
        self._stopwatch = watch(self, engine, self._meter)

    def _failing_fast(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method after whose out-of-memory error nothing goes on, whoever catches it."""

        @functools.wraps(method)
        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                if outcome_of(error, self.reporter.report.phase) is Outcome.OOM:
                    self.fail(error)
                self.seen["last_error"] = error
                raise

        return watched

    def _noting_question(self, method: Callable[[], int]) -> Callable[[], int]:
        """`engine.train_micro_batch_size_per_gpu`, which a script may build its batches by."""

        @functools.wraps(method)
        def noting() -> int:
            here = inspect.currentframe()
            asks = here.f_back if here is not None else None
            package = "" if asks is None else asks.f_globals.get("__name__", "").partition(".")[0]
            if package not in _NO_SCRIPTS:
                self.seen["asks_micro_batch"] = True
            return method()

        return noting

    # ------------------------------------------------ the end

    def finish(self) -> NoReturn:
        """All is measured: end this rank here, whatever the script would still do."""
        with self._lock:
            self._is_over = True
            self.reporter.enter(Phase.TEARDOWN)
            self.reporter.finish()
        self._leave(0)

    def fail(self, error: BaseException, outcome: Outcome | None = None) -> NoReturn:
        """End this rank by an error that the script may not answer."""
        self._record(error, outcome)
        self._leave(1)

    def on_error(
        self,
        show: Callable[..., None],
        kind: type[BaseException],
        error: BaseException,
        trace: Any,
    ) -> None:
        """An error that nobody caught."""
        show(kind, error, trace)
        if not isinstance(error, KeyboardInterrupt):
            self._record(error)

    def on_exit(self) -> None:
        """The interpreter ends: the script is done, or has given up."""
        if self._is_over or os.environ.get(GUEST_ENV) is None:
            return
        report = self.reporter.report
        if report.phase is Phase.MEASURED and len(report.step_times_s) >= MIN_SAMPLES:
            self._stopwatch.cut_short()  # does not return
        cause = self.seen.get("last_error")
        n_steps = len(report.losses)
        if self.seen["engines"] == 0:
            said = "it never called deepspeed.initialize"
        else:
            said = f"after {n_steps} optimizer steps, and at least {self._least_steps} are needed"
        ended = ScriptEndedError(f"the script ended by itself: {said}")
        ended.__cause__ = cause
        outcome = Outcome.INVALID if cause is None else outcome_of(cause, report.phase)
        self._record(ended, outcome)

    @property
    def _least_steps(self) -> int:
        return self.spec.measure.warmup_steps + MIN_SAMPLES

    def _record(self, error: BaseException, outcome: Outcome | None = None) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            report = self.reporter.report
            if self._meter is not None:
                says_so = outcome_of(error, report.phase) is Outcome.OOM
                if not says_so and outcome is None and self._meter.explains(error):
                    outcome = Outcome.OOM
                self._meter.lift()
                report.memory_bytes = self._meter.read()
            self.reporter.fail(error, outcome)
        print(report.traceback, file=sys.stderr, flush=True)

    def _leave(self, code: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        # Destructors of process groups and worker threads can hang or crash after a good run.
        os._exit(code)


def _class_of(value: Any) -> str:
    return "" if value is None else type(value).__name__


def _plain(value: Any) -> Any:
    """A value as JSON can hold it; what it cannot is left out or becomes text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if _is_plain(item)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value if _is_plain(item)]
    return getattr(value, "value", value)  # a choice of an enum


def _is_plain(value: Any) -> bool:
    held = getattr(value, "value", value)
    if isinstance(held, float) and not math.isfinite(held):
        return False  # accelerate prints every infinitely many steps
    return held is None or isinstance(held, bool | int | float | str | dict | list | tuple)
