"""A live Megatron, as the stopwatch, the diagnostic pass and a soak see it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import p2p_communication, schedules

from autotune.trial.engines.base import LiveEngine
from autotune.trial.engines.torch_collectives import Collectives
from autotune.trial.scripts.train_megatron import optimizers_of
from autotune.trial.timeline import BACKWARD, EXCHANGE, FORWARD, OPTIMIZER

_PASSES = {"forward_step": FORWARD, "backward_step": BACKWARD}
"""Functions of Megatron's schedules that compute one micro-batch."""


class LiveMegatron(LiveEngine):
    """Hooks into one `Training` (`autotune.trial.scripts.train_megatron`)."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._step = engine.step

    @property
    def device(self) -> str:
        found = torch.cuda.current_device()  # the host, where it stands in for CUDA
        return str(found) if isinstance(found, torch.device) else f"cuda:{found}"

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def on_losses(self, note: Callable[[Any, bool], None]) -> None:
        def noted(step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            loss = step(*args, **kwargs)
            note(loss, False)
            return loss

        self.around("step", noted)

    def was_applied(self) -> bool:
        return bool(self.engine.was_applied)

    def watch(self, in_range: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> None:
        training = self.engine
        training.step = self._step
        training.update = in_range(OPTIMIZER, training.update)
        reduce = training.config.finalize_model_grads_func
        training.config.finalize_model_grads_func = in_range(BACKWARD, reduce)
        for name, label in _PASSES.items():
            setattr(schedules, name, in_range(label, getattr(schedules, name)))
        between = getattr(p2p_communication, "P2PCommunicator", p2p_communication)
        between._communicate = in_range(EXCHANGE, between._communicate)

    def collective_log(self) -> Collectives:
        return Collectives(dist, "megatron.", torch.cuda.synchronize)

    def save(self, folder: str, tag: str, steps: int) -> None:
        """A file per rank, to be read by the same layout.

        Megatron's own way to save a sharded optimizer knows the states of NVIDIA's Adam alone.
        """
        training, path = self.engine, _file(folder, tag)
        path.parent.mkdir(parents=True, exist_ok=True)
        for chunk in training.chunks:
            _gather_weights(chunk)
        state = {
            "chunks": [chunk.state_dict() for chunk in training.chunks],
            "optimizers": [_state_of(optimizer) for optimizer in optimizers_of(training)],
            "applied": training.steps_applied,
            "steps": steps,
        }
        torch.save(state, path)

    def load(self, folder: str, tag: str) -> tuple[str | None, dict[str, Any]]:
        training, path = self.engine, _file(folder, tag)
        if not path.exists():
            return None, {}
        state = torch.load(path, weights_only=True)
        for chunk, saved in zip(training.chunks, state["chunks"], strict=True):
            chunk.load_state_dict(saved)
        with torch.no_grad():  # shards are views of weights
            for optimizer, saved in zip(optimizers_of(training), state["optimizers"], strict=True):
                _give_back(optimizer, saved)
        training.steps_applied = state["applied"]
        return str(path), {"steps": state["steps"]}


def _gather_weights(chunk: Any) -> None:
    """Bring the weights that other ranks updated, where the next forward pass would do so.

    Megatron's own script does it before it saves (megatron/training/training.py,
    `force_param_sync`), and computes its first step with what it has loaded.
    """
    config = getattr(chunk, "ddp_config", None)
    if getattr(config, "overlap_param_gather", False):
        chunk.start_param_sync(force_sync=True)


def _state_of(optimizer: Any) -> dict[str, Any]:
    """What torch's optimizer inside of Megatron's holds, the weights that it updates included."""
    scaler = getattr(optimizer, "grad_scaler", None)
    return {
        "inner": optimizer.optimizer.state_dict(),
        "weights": [weight.detach() for weight in _updated(optimizer)],
        "scaler": None if scaler is None else scaler.state_dict(),
    }


def _give_back(optimizer: Any, saved: dict[str, Any]) -> None:
    optimizer.optimizer.load_state_dict(saved["inner"])
    for weight, value in zip(_updated(optimizer), saved["weights"], strict=True):
        weight.copy_(value)
    if saved["scaler"] is not None:
        optimizer.grad_scaler.load_state_dict(saved["scaler"])


def _updated(optimizer: Any) -> list[torch.Tensor]:
    """The weights that an optimizer updates: copies in 32 bits, or shards of them."""
    return [weight for group in optimizer.optimizer.param_groups for weight in group["params"]]


def _file(folder: str, tag: str) -> Path:
    return Path(folder) / tag / f"rank_{dist.get_rank():04d}.pt"
