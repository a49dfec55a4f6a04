"""What went into an engine's forward passes, counted from the tensors that did."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

_FIRST = ("input_ids", "inputs_embeds", "pixel_values", "input_features", "inputs", "x")
"""Names of inputs whose first dimension is the samples, the most trusted first."""


class Intake:
    """Counts samples and tokens of an engine's training passes, optimizer step by step."""

    def __init__(self, engine: Any) -> None:
        """Hook into the engine's forward pass; evaluation is left out.

        A pipeline's engine calls its module's forward pass, and not its own.
        """
        self.micro_batches: list[int] = []
        """Samples of each forward pass of the step at hand."""
        self.lengths: list[int] = []
        """Tokens of a sample in each of them, padding included; 0: it has no such length."""
        self._real: list[torch.Tensor] = []
        self._steps: list[tuple[int, int, int]] = []
        self.all_lengths: set[int] = set()
        """Those of all passes so far."""
        self.all_micro_batches: set[int] = set()
        """Samples of a pass, over all passes so far."""
        passes = engine.module if hasattr(engine, "train_batch") else engine
        passes.register_forward_pre_hook(self.see, with_kwargs=True)

    def add(self) -> None:
        """Add the step at hand to those that are measured."""
        real = int(torch.stack(self._real).sum().item()) if self._real else 0
        pairs = zip(self.micro_batches, self.lengths, strict=True)
        padded = sum(samples * length for samples, length in pairs)
        self._steps.append((sum(self.micro_batches), real or padded, padded))

    def since(self, first: int) -> tuple[int, int]:
        """Tokens of the measured steps from one on, without padding and with it."""
        steps = self._steps[first:]
        return sum(real for _, real, _ in steps), sum(padded for _, _, padded in steps)

    def restart(self) -> None:
        """Begin a step."""
        self.micro_batches.clear()
        self.lengths.clear()
        self._real.clear()

    def see(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count a forward pass that is about to be made."""
        if not is_training_pass(module):
            return
        first = first_tensor(args, kwargs)
        if first is None:
            return
        self.micro_batches.append(int(first.shape[0]))
        is_tokens = first.dim() == 2 and not first.is_floating_point()
        embedded = first.dim() == 3 and first is kwargs.get("inputs_embeds")
        self.lengths.append(int(first.shape[1]) if is_tokens or embedded else 0)
        self.all_lengths.add(self.lengths[-1])
        self.all_micro_batches.add(self.micro_batches[-1])
        mask = kwargs.get("attention_mask")
        # Counted on the device and read after the step: reading here would wait for it.
        if isinstance(mask, torch.Tensor) and mask.dim() == 2:
            self._real.append((mask != 0).sum())
        elif is_tokens:
            self._real.append(torch.tensor(first.numel(), device=first.device))


def is_training_pass(module: torch.nn.Module) -> bool:
    """Whether what a module computes now is trained, and not looked at."""
    return bool(module.training and torch.is_grad_enabled())


def first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The tensor whose first dimension counts the samples; None: no input has one."""
    for name in _FIRST:
        if isinstance(kwargs.get(name), torch.Tensor) and kwargs[name].dim():
            found: torch.Tensor = kwargs[name]
            return found
    return next(_tensors((*args, kwargs)), None)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.dim():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
