"""Counts what goes through an engine's forward passes where samples differ in length."""

from typing import Any

import torch

from autotune.trial.scripts.train import IGNORED


class TokenCounter:
    """Watches the inputs of one engine, step by step."""

    def __init__(self, engine: Any) -> None:
        """Hook into the engine's forward pass."""
        self._real: list[torch.Tensor] = []
        self._padded = 0
        self._steps: list[tuple[int, int]] = []
        engine.register_forward_pre_hook(self._see, with_kwargs=True)

    def add(self) -> None:
        """Add the current step to those that are measured."""
        self._steps.append((int(torch.stack(self._real).sum().item()), self._padded))

    def since(self, first: int) -> tuple[int, int]:
        """Tokens of the measured steps from one on, without padding and with it."""
        real, padded = zip(*self._steps[first:], strict=True)
        return sum(real), sum(padded)

    def restart(self) -> None:
        """Begin a step."""
        self._real.clear()
        self._padded = 0

    def _see(self, _: torch.nn.Module, __: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        # Counted on the device and read after the step: reading here would wait for the device.
        self._real.append((inputs["labels"] != IGNORED).sum())
        self._padded += inputs["labels"].numel()
