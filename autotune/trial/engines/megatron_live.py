"""A live Megatron, as the stopwatch, the diagnostic pass and a soak see it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import p2p_communication, schedules

from autotune.trial.engines.base import LiveEngine
from autotune.trial.engines.torch_collectives import TorchCollectives
from autotune.trial.timeline import BACKWARD, EXCHANGE, FORWARD, OPTIMIZER

_PASSES = {"forward_step": FORWARD, "backward_step": BACKWARD}
"""Functions of Megatron's schedules that compute one micro-batch."""


class LiveMegatron(LiveEngine):
    """Hooks into one `Training` (`autotune.trial.scripts.train_megatron`)."""

    def __init__(self, engine: Any) -> None:
        """See `LiveEngine`."""
        super().__init__(engine)
        self._step = engine.step

    @property
    def device(self) -> str:
        """See `LiveEngine.device`."""
        found = torch.cuda.current_device()  # the host, where it stands in for CUDA
        return str(found) if isinstance(found, torch.device) else f"cuda:{found}"

    def synchronize(self) -> None:
        """See `LiveEngine.synchronize`."""
        torch.cuda.synchronize()

    def on_losses(self, note: Callable[[Any, bool], None]) -> None:
        """See `LiveEngine.on_losses`."""
        step = self.engine.step

        def noted(*args: Any, **kwargs: Any) -> Any:
            loss = step(*args, **kwargs)
            note(loss, False)
            return loss

        self.engine.step = noted

    def on_steps(self, call: Callable[[], None]) -> None:
        """See `LiveEngine.on_steps`."""
        step = self.engine.step

        def watched(*args: Any, **kwargs: Any) -> Any:
            loss = step(*args, **kwargs)
            call()
            return loss

        self.engine.step = watched

    def was_applied(self) -> bool:
        """See `LiveEngine.was_applied`."""
        return bool(self.engine.was_applied)

    def watch(self, in_range: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
        """See `LiveEngine.watch`."""
        training = self.engine
        training.step = self._step
        training.update = in_range(OPTIMIZER, training.update)
        reduce = training.config.finalize_model_grads_func
        training.config.finalize_model_grads_func = in_range(BACKWARD, reduce)
        for name, label in _PASSES.items():
            setattr(schedules, name, in_range(label, getattr(schedules, name)))
        between = getattr(p2p_communication, "P2PCommunicator", p2p_communication)
        between._communicate = in_range(EXCHANGE, between._communicate)

    def collective_log(self) -> TorchCollectives:
        """See `LiveEngine.collective_log`."""
        return TorchCollectives("megatron.")

    def save(self, folder: str, tag: str, steps: int) -> None:
        """See `LiveEngine.save`; a file per rank."""
        training, path = self.engine, _file(folder, tag)
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "chunks": [chunk.state_dict() for chunk in training.chunks],
            "optimizer": training.optimizer.state_dict(),
            "applied": training.steps_applied,
            "steps": steps,
        }
        torch.save(state, path)
        if _is_sharded(training):
            # Its own state dictionary leaves out what is spread over the ranks.
            training.optimizer.save_parameter_state(str(_shards(folder, tag)))

    def load(self, folder: str, tag: str) -> tuple[str | None, dict[str, Any]]:
        """See `LiveEngine.load`."""
        training, path = self.engine, _file(folder, tag)
        if not path.exists():
            return None, {}
        state = torch.load(path, weights_only=True)
        for chunk, held in zip(training.chunks, state["chunks"], strict=True):
            chunk.load_state_dict(held)
        with torch.no_grad():  # its shards are views of weights
            training.optimizer.load_state_dict(state["optimizer"])
            if _is_sharded(training):
                training.optimizer.load_parameter_state(str(_shards(folder, tag)))
            training.optimizer.reload_model_params()
        training.steps_applied = state["applied"]
        return str(path), {"steps": state["steps"]}


def _file(folder: str, tag: str) -> Path:
    return Path(folder) / tag / f"rank_{dist.get_rank():04d}.pt"


def _shards(folder: str, tag: str) -> Path:
    """File of the optimizer's shards, which the first replica of a part of the model writes."""
    from megatron.core import parallel_state

    tp = parallel_state.get_tensor_model_parallel_rank()
    pp = parallel_state.get_pipeline_model_parallel_rank()
    return Path(folder) / tag / f"optimizer_tp{tp:02d}_pp{pp:03d}.pt"


def _is_sharded(training: Any) -> bool:
    return bool(training.chunks[0].ddp_config.use_distributed_optimizer)
