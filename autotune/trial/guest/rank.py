"""One rank of a user's own script: configured, timed, read back and ended from outside.

The script runs as it is. What it hands to DeepSpeed and to its framework is edited on the way (see
`edits.py`), and the first engine that trains is watched as one of a built-in trial is.
"""

import atexit
import contextlib
import copy
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from autotune.contract import RANKS_DIR, SPEC_FILE, Outcome, Phase
from autotune.trial.engines.deepspeed import SEGMENTS
from autotune.trial.faults import outcome_of
from autotune.trial.guest import frameworks, quiet
from autotune.trial.guest.edits import MAX_TEXT, Edits, configuration_of
from autotune.trial.guest.hooks import Function, Hook, Wrapper, around, call_after_imports
from autotune.trial.guest.reading import file_of_user, settings_read, sources_of, stop_watching
from autotune.trial.prebuilt import built_variables, use_built
from autotune.trial.rank import Rank, versions
from autotune.trial.statistics import MIN_SAMPLES

_SEEN: Mapping[str, Any] = {
    "framework": "deepspeed",
    **dict.fromkeys(("engines", "engines_trained"), 0),
    **dict.fromkeys(("config_file", "arguments_class", "client_optimizer"), ""),
    **{name: {} for name in ("config", "config_written", "arguments")},
    **dict.fromkeys(("sources", "settings_read", "arrived", "config_files"), ()),
    **dict.fromkeys(("micro_batches", "lengths", "rows", "loader_batches"), ()),
    **dict.fromkeys(("brings_plugin", "gives_data", "asks_micro_batch", "is_partitioned"), False),
    **dict.fromkeys(("parses_arguments", "optimizer_by_arguments", "takes_attention"), False),
    **{"step_batches": None, "recomputes": False, "is_given_words": True, "written_config": ""},
}
"""What a script shows of itself, before it shows anything; see `describe`."""
_PLUGINS = ("deepspeed_plugin", "deepspeed_plugins")
"""Arguments of Accelerator with which a script sets DeepSpeed up in its code."""
_RECOMPUTING = (
    ("torch.utils.checkpoint", "_checkpoint_without_reentrant_generator"),
    ("torch.utils.checkpoint", "CheckpointFunction.forward"),
    ("deepspeed.runtime.activation_checkpointing.checkpointing", "CheckpointFunction.forward"),
)
"""What recomputes, by module and place; `checkpoint` itself is what torch.compile looks for."""
_ENGINE_CALLS = ("forward", "backward", "step", "train_batch")
"""Methods in which an error is the configuration's, whatever the script makes of it."""
_WRAPPERS = (__name__, around.__module__)
_NO_SCRIPTS = (__name__.partition(".")[0], "deepspeed", "accelerate", "transformers", "torch")
"""Packages whose calls of the engine's say nothing of the user's script."""
_MAX_ERRORS = 5
"""Errors of an engine, with no step between them, after which a script that goes on is stuck."""
_MAX_IDLE = 50
"""Steps of another engine, with none of the watched one between, after which that is left."""
_MAX_PLAIN_STEPS = 50
"""Optimizer steps without an engine after which it is plain that the script trains without one."""


class ScriptEndedError(RuntimeError):
    """The script ended before its steps were measured."""


class NoEngineError(RuntimeError):
    """The script trains, but not by DeepSpeed."""


class Guest(Rank):
    """What is known of this rank, and what is done with it."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, number)
        self.edits = Edits.of_trial(folder)
        self.seen = dict(_SEEN)
        self._as_read: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """Configurations that Trainer and accelerate have read, and what each was when read."""
        self._drawn: set[int] = set()
        """Sizes of the data loaders that gave batches since the watched engine's last step."""
        self.watched: Any = None
        self._stopwatch: Any = None
        self._began_elsewhere: dict[Any, int] = {}
        """Steps that other engines had made at their first pass after the watched one's last."""
        self._splits_models = False
        """True if the script has made a zero.Init of its own."""
        self._n_errors = 0
        self._last_error: BaseException | None = None
        """An error that the script caught; None: it has taken a step since."""
        self._n_plain_steps = 0
        self._exit_code: Any = None
        """What the script gave to `sys.exit` last."""
        self._handled_at_exit: Exception | None = None
        """The error that it handled there, if any."""

    @classmethod
    def begin(cls, folder: Path, number: int) -> "Guest":
        guest = cls(folder, number)
        os.environ.update(built_variables())  # before DeepSpeed chooses its accelerator
        guest.reporter.enter(Phase.IMPORT)
        atexit.register(guest.on_exit)
        sys.excepthook = functools.partial(guest.on_error, sys.excepthook)
        journal = folder / RANKS_DIR / quiet.JOURNAL_FILE.format(rank=number)
        quiet.watch_files((folder / SPEC_FILE).stat().st_ctime, journal)
        sys.exit = around(sys.exit, guest._note_exit)
        os._exit = around(os._exit, guest._end)
        call_after_imports(guest.hooks())
        return guest

    def hooks(self) -> list[Hook]:
        """What is done once each module is there."""
        return [
            *quiet.hooks(),
            *frameworks.hooks(self.edits.arguments, self.seen),
            ("torch.optim.optimizer", "", self._on_optimizers),
            ("torch.distributed", "destroy_process_group", self._part),
            ("deepspeed.runtime.engine", "DeepSpeedEngine.destroy", self._destroy),
            ("deepspeed", "", self.on_deepspeed),
            ("deepspeed", "initialize", self._initialize),
            ("deepspeed", "zero.Init.__init__", self._note_init),
            ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", self._note_draw),
            *((*place, self._note_recomputation) for place in _RECOMPUTING),
            ("accelerate.utils.deepspeed", "HfDeepSpeedConfig.__init__", self._read_config),
            ("accelerate.accelerator", "Accelerator.__init__", self._make_accelerator),
            ("transformers.training_args", "TrainingArguments.__post_init__", self._finish),
            ("transformers.trainer", "Trainer.get_optimizer_cls_and_kwargs", self._choose),
            (
                "transformers.hf_argparser",
                "HfArgumentParser.parse_args_into_dataclasses",
                self._parse,
            ),
            ("trl.scripts.utils", "TrlParser.parse_args_and_config", self._parse),
            ("lightning.fabric.wrappers", "_FabricOptimizer.step", self._step_by_engine),
        ]

    # ------------------------------------------------ what the script brings

    def on_deepspeed(self, module: ModuleType) -> None:
        """What a configuration takes is counted from here on."""
        self.reporter.report.versions = versions()
        use_built()
        self.start_meter()
        self.reporter.enter(Phase.MODEL)

    def _on_optimizers(self, module: ModuleType) -> None:
        """Optimizers are there: a script whose steps are none of an engine's is not waited for."""

        def on_step(*_: Any) -> None:
            if self.seen["engines"] or self.is_over or not self._is_here:
                return
            self._n_plain_steps += 1
            if self._n_plain_steps >= _MAX_PLAIN_STEPS:
                what = f"{_MAX_PLAIN_STEPS} optimizer steps, and it never called"
                error = f"the script trains without DeepSpeed: {what} deepspeed.initialize"
                self.fail(NoEngineError(error), Outcome.INVALID)

        module.register_optimizer_step_post_hook(on_step)

    def _finish(self, finish: Function, arguments: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Trainer's arguments: a candidate's values, and nothing that leaves traces."""
        self.seen |= {
            "framework": "trainer",
            "arguments": {
                name: value
                for name, value in _plain(vars(arguments)).items()
                if not (name[:1] == "_" or (isinstance(value, str) and len(value) > MAX_TEXT))
            },
            "arguments_class": type(arguments).__name__,
        }
        for name, value in self.edits.arguments.items():
            if name == frameworks.ATTENTION_ARGUMENT:
                continue  # none of Trainer's
            setattr(arguments, name, copy.deepcopy(value))
        quiet.quiet_arguments(arguments)
        return finish(arguments, *args, **kwargs)

    def _choose(self, choose: Function, /, *args: Any, **kwargs: Any) -> Any:
        """Note whether Trainer makes the optimizer by its arguments: a script may bring one."""
        self.seen["optimizer_by_arguments"] = True
        return choose(*args, **kwargs)

    def _parse(
        self, parse: Function, parser: Any, /, args: Any = None, *more: Any, **kwargs: Any
    ) -> Any:
        """Note whether the command line is what the arguments are read from, and no list."""
        is_of_line = args is None or args == sys.argv[1:]
        self.seen["parses_arguments"] |= is_of_line and _fills_training_arguments(parser)
        self.seen["is_given_words"] = _ends_with(self.spec.workload.command, sys.argv)
        return parse(parser, args, *more, **kwargs)

    def _read_config(
        self, read: Function, config: Any, /, config_file_or_dict: Any, *args: Any, **kwargs: Any
    ) -> None:
        """The one place where Trainer, accelerate and what builds on them read a configuration."""
        stop_watching()
        read(config, config_file_or_dict, *args, **kwargs)
        # Trainer reads what accelerate has read before, and fills in its own copy of it.
        facts = self._when_read(config_file_or_dict) or self._origin(config.config)
        if isinstance(config_file_or_dict, str) and os.path.exists(config_file_or_dict):
            path = os.path.abspath(config_file_or_dict)
            self.seen["config_files"] = sorted({*self.seen["config_files"], path})
            facts |= file_of_user(path)
        self._as_read.append((config.config, facts))
        file = facts.get("config_file") or facts.get("written_config")
        if not file or self.edits.trained_file in ("", file):  # else of a frozen model
            self.edits.apply(config.config)
            config.set_stage_and_offload()

    def _make_accelerator(
        self, make: Function, accelerator: Any, /, *args: Any, **kwargs: Any
    ) -> None:
        """No trackers, and no folder of theirs for a project."""
        if self.seen["framework"] != "trainer":
            self.seen["framework"] = "accelerate"
        given = inspect.signature(make).bind_partial(accelerator, *args, **kwargs).arguments
        self.seen["brings_plugin"] = any(given.get(name) for name in _PLUGINS)
        if kwargs.get("log_with") is not None:
            kwargs["log_with"] = None
        make(accelerator, *args, **kwargs)

    # ------------------------------------------------ the engine

    def _initialize(self, initialize: Function, /, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(initialize).bind_partial(*args, **kwargs)
        quiet.end_preparing()
        if self.watched is None:
            self.reporter.enter(Phase.ENGINE_INIT)
        facts = self._edit(given.arguments)
        if facts is not None and self._splits_models:
            self.seen["is_partitioned"] |= _is_partitioned(given.arguments.get("model"))
        self.seen["engines"] += 1
        made = self._failing_fast(initialize, *given.args, **given.kwargs)
        if facts is not None:
            self.seen["engines_trained"] += 1
            if facts["client_optimizer"]:  # a function makes it in there
                facts["client_optimizer"] = type(made[0].basic_optimizer).__name__
            self._wait_for(made[0], facts)
        return made

    def _edit(self, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """Edit what an engine is made with, and tell of it; None: it has nothing to train with."""
        stop_watching()
        of_script = arguments.get("args")
        in_arguments = getattr(of_script, "deepspeed_config", None)
        places = (arguments.get("config"), arguments.get("config_params"), in_arguments)
        given = next((one for one in places if one is not None), None)
        if given is None:
            return None
        config, file = configuration_of(given)
        optimizer = arguments.get("optimizer")
        if optimizer is None and not config.get("optimizer"):
            return None
        facts = {**file_of_user(file), **self._origin(config)}
        facts |= self._when_read(given)
        if self.edits.configuration:
            self.edits.apply(config)
            arguments.pop("config_params", None)
            arguments["config"] = config
            if in_arguments is not None:  # DeepSpeed refuses two
                arguments["args"] = copy.copy(of_script)
                arguments["args"].deepspeed_config = None
        return {
            **facts,
            "config": _plain(config),
            "client_optimizer": "" if optimizer is None else type(optimizer).__name__,
            "gives_data": arguments.get("training_data") is not None,
        }

    def _when_read(self, config: Any) -> dict[str, Any]:
        """What a configuration was when Trainer or accelerate read it; empty: neither did."""
        return next((facts for read, facts in self._as_read if read is config), {})

    def _origin(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What a configuration was before it is edited here, and which files it came from."""
        written = _plain(dict(config))
        return {
            "config_written": written,
            "sources": sources_of(written) if self.edits.observes else [],
            "settings_read": settings_read() if self.edits.observes else [],
            "arrived": self.edits.arrived_in(config),
        }

    def _wait_for(self, engine: Any, facts: dict[str, Any]) -> None:
        """Watch the first engine that trains, from its first training pass on."""
        from torch.nn import Module

        from autotune.trial.guest.intake import is_training_pass

        wrappers: dict[str, Wrapper] = dict.fromkeys(_ENGINE_CALLS, self._failing_fast)
        wrappers["train_micro_batch_size_per_gpu"] = self._note_question
        for name, wrapper in wrappers.items():
            if hasattr(engine, name):
                setattr(engine, name, around(getattr(engine, name), wrapper))
        if hasattr(engine, "train_batch"):  # a pipeline's, which does not pass by `forward`
            if self.watched is None:
                self._watch(engine, facts)
            return

        is_called = was_watched = False

        def on_pass(module: Any, args: Any, kwargs: Any) -> None:
            nonlocal is_called, was_watched
            if module is engine:
                is_called = True
                past_engine.remove()  # a compiler would trace it
            is_of_engine = module in (engine, engine.module)  # and no copy
            if was_watched or not (is_of_engine and is_training_pass(module)):
                return
            if self.watched is not None:
                began = self._began_elsewhere.setdefault(engine, engine.global_steps)
                if engine.global_steps - began >= _MAX_IDLE:
                    self._leave_watched()
            if self.watched is None:
                was_watched = True
                self._watch(engine, facts, passes=module)
                # The hook that counts came too late for this pass.
                self._stopwatch.intake.see(module, args, kwargs)

        def forward(original: Function, *args: Any, **kwargs: Any) -> Any:
            """A pass by the engine's hooks, which `engine.forward(batch)` leaves out."""
            nonlocal is_called
            if not is_called:
                return Module.__call__(engine, *args, **kwargs)  # an engine's may leave them out
            is_called = False
            return original(*args, **kwargs)

        def backward(original: Function, *args: Any, **kwargs: Any) -> Any:
            """A loss by another method of the module than `forward`: nothing counts samples."""
            nonlocal was_watched
            if self.watched is None and not was_watched:
                was_watched = True
                self._watch(engine, facts, passes=engine.module)
            return original(*args, **kwargs)

        engine.backward = around(engine.backward, backward)
        engine.forward = around(engine.forward, forward)
        engine.register_forward_pre_hook(on_pass, with_kwargs=True)
        past_engine = engine.module.register_forward_pre_hook(on_pass, with_kwargs=True)

    def _watch(self, engine: Any, facts: dict[str, Any], passes: Any = None) -> None:
        from autotune.trial.guest.watch import GuestStopwatch

        self.seen |= facts
        self.watched = engine
        try:
            self.meter.cap()
            self._stopwatch = GuestStopwatch(self, engine, passes or engine)
            self._stopwatch.attach()
        except Exception as error:  # no mistake of ours is left to the script, which may catch it
            self.fail(error)

    def _failing_fast(self, method: Function, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method after whose out-of-memory error nothing goes on, whoever catches it."""
        try:
            return method(*args, **kwargs)
        except Exception as error:
            self._n_errors += 1
            is_oom = outcome_of(error, self.reporter.report.phase) is Outcome.OOM
            if is_oom or self._n_errors >= _MAX_ERRORS:
                self.fail(error)
            self._last_error = error
            raise

    def on_step(self) -> None:
        """An optimizer step of the watched engine was made: all ranks have met by now."""
        _remove_segment()
        before = self.seen["step_batches"]  # few steps draw from a loader for evaluation
        drawn = self._drawn if before is None else self._drawn.intersection(before)
        self.seen["step_batches"], self._drawn = sorted(drawn), set()
        self._began_elsewhere.clear()
        self._n_errors = 0
        self._last_error = self._exit_code = self._handled_at_exit = None

    def _step_by_engine(self, step: Function, optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Lightning's Fabric calls the step of ZeRO's optimizer, past its engine's."""
        engine = getattr(optimizer._strategy, "model", None)
        if (
            engine is None
            or engine is not self.watched
            or engine.gradient_accumulation_steps() > 1
        ):
            return step(optimizer, *args, **kwargs)
        return engine.step()

    def _note_question(self, answer: Callable[[], int]) -> int:
        """`engine.train_micro_batch_size_per_gpu`, which a script may build its batches by."""
        if _is_called_by_script():
            self.seen["asks_micro_batch"] = True
        return answer()

    def _note_init(self, make: Function, /, *args: Any, **kwargs: Any) -> None:
        """`zero.Init`, which splits a model for stage 3 whatever the configuration says.

        Hugging Face's loaders make one by the configuration: with another stage they make none.
        """
        self._splits_models |= _is_called_by_script()
        make(*args, **kwargs)

    def _note_draw(self, draw: Function, batches: Any, /) -> Any:
        """A batch is drawn from a data loader: samples of it, which may be what a file says."""
        if isinstance(size := getattr(batches._index_sampler, "batch_size", None), int):
            self._drawn.add(size)
            self.seen["loader_batches"] = sorted({*self.seen["loader_batches"], size})
        return draw(batches)

    def _note_recomputation(self, compute: Function, /, *args: Any, **kwargs: Any) -> Any:
        """A part of the model of which the activations are recomputed."""
        self.seen["recomputes"] = True
        return compute(*args, **kwargs)

    # ------------------------------------------------ the end

    def on_error(
        self, show: Function, kind: type[BaseException], error: BaseException, trace: Any
    ) -> None:
        show(kind, error, trace)
        if isinstance(error, KeyboardInterrupt) or not self._is_here:
            return
        is_oom = outcome_of(error, self.reporter.report.phase) is Outcome.OOM
        if error is not self._last_error and not is_oom:
            self.on_exit(goes_on=True)  # of what follows the training
        if unsaved := quiet.unsaved_in(error):
            why = f"the script reads {unsaved}, and a trial saves no large checkpoints: {error}"
            self.record(ScriptEndedError(why), Outcome.INVALID)
        self.record(error)

    def _note_exit(self, leave: Callable[..., NoReturn], code: Any = None, /) -> NoReturn:
        """`sys.exit`, whose code nobody is told at the end of the interpreter.

        An error that is handled by it, as Hydra does, is told beside the code; memory that was
        lacking is the cause.
        """
        if self._is_here:
            error = sys.exc_info()[1]
            self._exit_code = code
            self._handled_at_exit = error if code and isinstance(error, Exception) else None
            handled = self._handled_at_exit
            if handled and outcome_of(handled, self.reporter.report.phase) is Outcome.OOM:
                self._last_error = handled
        leave(code)

    def _end(self, leave: Callable[[int], NoReturn], status: int) -> NoReturn:
        """`os._exit`, which ends a rank past all that would tell of it."""
        if self._is_here and not self.is_over:
            self._exit_code, self._handled_at_exit = status, None
            self.on_exit()
        leave(status)

    def _part(self, part: Callable[..., None], /, group: Any = None) -> None:
        """Ranks leave one another, as scripts do at their end: later they cannot agree."""
        if group is None:
            self.on_exit(goes_on=True)
        part(group)

    def _destroy(self, destroy: Callable[..., None], engine: Any, /) -> None:
        if engine is self.watched:
            self._leave_watched()
        destroy(engine)

    def _leave_watched(self) -> None:
        """The watched engine has ended: a script may look for its learning rate with its own."""
        report = self.reporter.report
        if report.phase is Phase.DIAGNOSE:
            return
        self.on_exit(goes_on=True)  # does not return where it has shown enough steps
        times_s, losses, skipped = report.step_times_s, report.losses, report.skipped
        for seen in (report.warmup_step_times_s, times_s, losses, skipped):
            seen.clear()
        self.watched = self._stopwatch = None
        self.seen |= {name: self.seen[name] - 1 for name in ("engines", "engines_trained")}

    def on_exit(self, *, goes_on: bool = False) -> None:
        """The interpreter ends: the script is done, or has given up; or it `goes_on`."""
        if self.is_over or not self._is_here:
            return
        report = self.reporter.report
        if report.phase is Phase.MEASURED and len(report.step_times_s) >= MIN_SAMPLES:
            self._stopwatch.cut_short()  # does not return
        if goes_on:
            return
        # A script may have put its own hook for errors in the place of ours.
        cause = self._last_error or getattr(sys, "last_value", None)
        if cause is not None and not isinstance(cause, SystemExit | KeyboardInterrupt):
            self.record(cause)
            return
        n_steps = 0 if self._stopwatch is None else self._stopwatch.n_applied
        if self.seen["engines"] == 0:
            why = "it never called deepspeed.initialize"
        elif self.seen["engines_trained"] == 0:
            why = "no engine that it made has an optimizer"
        else:
            least = self.spec.measure.warmup_steps + MIN_SAMPLES
            why = f"after {n_steps} optimizer steps, and at least {least} are needed"
        text = f"{self._exit_code}: " if isinstance(self._exit_code, str) else ""
        code = f" with exit code {1 if text else self._exit_code}" if self._exit_code else ""
        if code and (error := self._handled_at_exit) is not None:
            code += f", while handling {type(error).__name__}: {error}"
        ended = ScriptEndedError(f"{text}the script ended by itself{code}: {why}")
        self.record(ended, Outcome.INVALID)

    @property
    def _is_here(self) -> bool:
        """True in the rank's own process, False in one that it has forked."""
        return os.getpid() == self.reporter.report.pid

    def _close(self) -> None:
        super()._close()
        _remove_segment()


def _remove_segment() -> None:
    """Remove a CPU rank's shared memory, at any port: all hold it once they have reduced."""
    names = ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
    address, port, rank = (os.environ.get(name, "0") for name in names)
    start = SEGMENTS.format(user=os.getuid(), address=address)
    with contextlib.suppress(OSError):
        os.unlink(f"/dev/shm/{start}{port}_{rank}")


def _is_called_by_script() -> bool:
    """True if no package that we know called the function that is wrapped here."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in _WRAPPERS:
        frame = frame.f_back
    module = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] not in _NO_SCRIPTS


def _ends_with(command: list[str], argv: list[str]) -> bool:
    """True if a command ends with what its script gets: a shell script gives it other words."""
    given = [word for word in argv[1:] if not word.startswith("--local_rank=")]  # by DeepSpeed's
    if given:
        return command[-len(given) :] == given
    module = getattr(vars(sys.modules["__main__"]).get("__spec__"), "name", "")
    return command[-1] in (argv[0], module.removesuffix(".__main__"))  # a package's has that name


def _fills_training_arguments(parser: Any) -> bool:
    """True if a parser makes Trainer's arguments, not only others of the script's own."""
    kinds = getattr(parser, "dataclass_types", ())
    fields = [getattr(kind, "__dataclass_fields__", {}) for kind in kinds]
    return any("per_device_train_batch_size" in name for name in fields)


def _is_partitioned(model: Any) -> bool:
    parameters = getattr(model, "parameters", None)
    return parameters is not None and any(hasattr(weight, "ds_id") for weight in parameters())


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
