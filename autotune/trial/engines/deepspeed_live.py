"""A live DeepSpeed engine, as the stopwatch, the diagnostic pass and a soak see it."""

from collections.abc import Callable
from typing import Any

import deepspeed.comm
from deepspeed.accelerator import get_accelerator
from deepspeed.comm import comm
from deepspeed.runtime.pipe.engine import PipelineEngine

from autotune.trial.engines.base import LiveEngine
from autotune.trial.engines.torch_collectives import Collectives
from autotune.trial.guest.hooks import Function
from autotune.trial.timeline import BACKWARD, EXCHANGE, FORWARD, OPTIMIZER

_RANGES = {"forward": FORWARD, "backward": BACKWARD, "step": OPTIMIZER}
"""Methods that a training script calls, in this order."""

_INSTRUCTIONS = {
    "ForwardPass": FORWARD,
    "BackwardPass": BACKWARD,
    "ReduceGrads": BACKWARD,
    "ReduceTiedGrads": BACKWARD,
    "OptimizerStep": OPTIMIZER,
}
"""Instructions of a pipeline's schedule; the others pass activations on, or load them."""


class LiveDeepSpeed(LiveEngine):
    """Hooks into one engine's `backward` and `step`, or into a pipeline's `train_batch`."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._is_pipeline = isinstance(engine, PipelineEngine)
        if self._is_pipeline:
            self.step_method = "train_batch"
        self._methods = {
            name: getattr(engine, name)
            for name in (*_RANGES, "train_batch")
            if hasattr(engine, name)
        }

    @property
    def device(self) -> str:
        return str(get_accelerator().current_device_name())

    def synchronize(self) -> None:
        get_accelerator().synchronize()

    def on_losses(self, note: Callable[[Any, bool], None]) -> None:
        """Trainer and accelerate hand over shares."""

        def noted_train_batch(train_batch: Function, *args: Any, **kwargs: Any) -> Any:
            outcome = train_batch(*args, **kwargs)
            # Only the last stage computes it; the engine has sent it to the others.
            note(self.engine.dp_group_loss, False)
            return outcome

        def noted_backward(backward: Function, loss: Any, *args: Any, **kwargs: Any) -> Any:
            note(loss.detach(), not kwargs.get("scale_wrt_gas", True))
            return backward(loss, *args, **kwargs)

        if self._is_pipeline:
            self.around("train_batch", noted_train_batch)
        else:
            self.around("backward", noted_backward)

    def ends_step(self) -> bool:
        return self._is_pipeline or bool(self.engine.is_gradient_accumulation_boundary())

    def was_applied(self) -> bool:
        return bool(self.engine.was_step_applied())

    def watch(self, in_range: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
        engine = self.engine
        for name in ("send", "recv"):
            if (method := getattr(comm.cdb, name, None)) is not None:
                setattr(comm.cdb, name, in_range(EXCHANGE, method))
        if self._is_pipeline:
            # Its only call is `train_batch`: its instructions are what gets the ranges.
            engine.train_batch = self._methods["train_batch"]
            engine._INSTRUCTION_MAP = {
                kind: in_range(label, run) if (label := _INSTRUCTIONS.get(kind.__name__)) else run
                for kind, run in engine._INSTRUCTION_MAP.items()
            }
            return
        for name, label in _RANGES.items():
            setattr(engine, name, in_range(label, self._methods[name]))

    def collective_log(self) -> Collectives:
        return Collectives(deepspeed.comm, "deepspeed.", get_accelerator().synchronize)

    def save(self, folder: str, tag: str, steps: int) -> None:
        self.engine.save_checkpoint(folder, tag=tag, client_state={"steps": steps})

    def load(self, folder: str, tag: str) -> tuple[str | None, dict[str, Any]]:
        path, client_state = self.engine.load_checkpoint(folder, tag=tag)
        return path, client_state
