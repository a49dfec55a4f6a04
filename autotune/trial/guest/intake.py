"""What went into an engine's forward passes, counted from the tensors that did."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from autotune.trial.scripts.train import IGNORED

_TRUSTED = ("input_ids", "inputs_embeds", "pixel_values", "input_features")
_FIRST = (*_TRUSTED, "inputs", "x")
"""Names of inputs whose first dimension is the samples, the most trusted first."""


@dataclass
class _Pass:
    """A forward pass of an engine."""

    samples: int
    length: int
    """Tokens of a sample, padding included; 0: it has no such length."""
    real: torch.Tensor | None
    """Tokens without padding; None: nothing tells."""
    backward: int
    """Number of the backward pass that it belongs to."""
    is_trained: bool = True


class Intake:
    """Counts samples and tokens of an engine's training passes, optimizer step by step.

    A forward pass is trained if a gradient comes back through what it gave out: that of a GAN's
    generator is not where the discriminator alone learns from it. What one backward pass trains is
    one micro-batch, be it of several forward passes.
    """

    def __init__(
        self,
        engine: Any,
        passes: Any = None,
        *,
        by_labels: bool = False,
        sizes: Iterable[int] = (),
    ) -> None:
        """Hook into the engine's forward pass, or that of `passes`; evaluation is left out.

        Tokens without a label are padding if it goes `by_labels`, else those without attention.

        A pipeline's engine calls its module's forward pass, and not its own; there each pass is a
        micro-batch, for forward and backward passes alternate as its schedule has it.

        The batches of the script's data loaders have `sizes` samples.
        """
        self._sizes = {size for size in sizes if size > 1}
        self._axis: int | None = None
        """Dimension of the samples; None: nothing has told yet, and it is the first."""
        self._by_labels = by_labels
        self._passes: list[_Pass] = []
        self._steps: list[tuple[int, int, int]] = []
        self.decided: tuple[int, int, int] | None = None
        """Counts of an earlier step that is decided on; None: it is the one at hand."""
        self._earlier_lengths: set[int] = set()
        self.rows: Counter[int] = Counter()
        """Samples of a micro-batch -> how many there were, in all steps before the one at hand."""
        self._is_pipeline = hasattr(engine, "train_batch")
        self._is_backward = False
        """True if the next forward pass belongs to another backward pass than the last."""
        passes = engine.module if self._is_pipeline else passes or engine
        passes.register_forward_pre_hook(self.see, with_kwargs=True)
        if not self._is_pipeline:
            passes.register_forward_hook(self._watch_gradients)

    @property
    def micro_batches(self) -> list[int]:
        found: dict[int, int] = {}
        for forward in self._trained():
            found[forward.backward] = found.get(forward.backward, 0) + forward.samples
        return list(found.values())

    @property
    def lengths(self) -> list[int]:
        """Tokens of a sample in each trained pass of the step at hand; 0: it has no length."""
        return [forward.length for forward in self._trained()]

    @property
    def all_lengths(self) -> set[int]:
        return self._earlier_lengths.union(self.lengths)

    def add(self) -> None:
        self._steps.append(self.decided or self.counted())

    def counted(self) -> tuple[int, int, int]:
        """Samples and tokens of the step at hand, without padding and with it."""
        trained = self._trained()
        counted = [forward.real for forward in trained if forward.real is not None]
        real = int(torch.stack(counted).sum().item()) if counted else 0
        padded = sum(forward.samples * forward.length for forward in trained)
        return sum(self.micro_batches), real or padded, padded

    def since(self, first: int) -> tuple[int, int]:
        """Tokens of the measured steps from one on, without padding and with it."""
        steps = self._steps[first:]
        return sum(real for _, real, _ in steps), sum(padded for _, _, padded in steps)

    def restart(self) -> None:
        self._earlier_lengths.update(self.lengths)
        self.rows.update(self.micro_batches)
        self._passes.clear()
        self._is_backward = False

    def see(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count a forward pass that is about to be made."""
        if not is_training_pass(module):
            return
        first = first_tensor(args, kwargs)
        if first is None:
            return
        is_tokens = first.dim() == 2 and not first.is_floating_point()
        embedded = first.dim() == 3 and first is kwargs.get("inputs_embeds")
        mask = kwargs.get("attention_mask")
        real = None
        # Counted on the device and read after the step: reading here would wait for it.
        if self._by_labels:
            real = (kwargs["labels"] != IGNORED).sum()
        elif isinstance(mask, torch.Tensor) and mask.dim() == 2:
            real = (mask != 0).sum()
        elif is_tokens:
            real = torch.tensor(first.numel(), device=first.device)
        if any(first is kwargs.get(name) for name in _TRUSTED):
            self._axis = 0
        samples, length = self._size(first, [*args, *kwargs.values()])
        last = self._passes[-1].backward if self._passes else 0
        begins = self._is_pipeline or self._is_backward
        self._is_backward = False
        self._passes.append(
            _Pass(
                samples=samples,
                length=length if is_tokens or embedded else 0,
                real=real,
                backward=last + 1 if begins else last,
            )
        )

    def _size(self, first: torch.Tensor, given: list[Any]) -> tuple[int, int]:
        """Samples of a pass and the length of each, by the dimensions of its first tensor.

        The samples are the second dimension, as in torch's `Transformer`, or the items of a list,
        as in detection, where a data loader's batches have as many and the first does not.
        """
        size, length = (*map(int, first.shape), 0)[:2]
        lists = (one for one in given if isinstance(one, list | tuple) and len(one))
        n_listed = next((len(one) for one in lists if one[0] is first), 0)
        if self._axis is None and size not in self._sizes and n_listed in self._sizes:
            return n_listed, 0
        if self._axis is None and not self._sizes.isdisjoint((size, length)):
            self._axis = int(size not in self._sizes)
        return (length, size) if self._axis else (size, length)

    def _watch_gradients(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        """Learn whether the pass that has just been made is trained."""
        if not self._passes or not is_training_pass(module):
            return
        made = self._passes[-1]
        trainable = [tensor for tensor in _tensors(output) if tensor.requires_grad]
        # Of what is given out in another form nobody sees the gradient: it counts by itself.
        made.is_trained = self._is_backward = not trainable
        for tensor in trainable:
            tensor.register_hook(partial(self._on_gradient, made))

    def _on_gradient(self, made: _Pass, _: torch.Tensor) -> None:
        made.is_trained = self._is_backward = True

    def _trained(self) -> list[_Pass]:
        return [forward for forward in self._passes if forward.is_trained]


def is_training_pass(module: torch.nn.Module) -> bool:
    """True if what a module computes now is trained, not only looked at."""
    return bool(module.training and torch.is_grad_enabled())


def first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The tensor whose first dimension counts the samples; None: no input has one."""
    for name in _FIRST:
        if isinstance(kwargs.get(name), torch.Tensor) and kwargs[name].dim():
            found: torch.Tensor = kwargs[name]
            return found
    return next((tensor for tensor in _tensors((*args, kwargs)) if tensor.dim()), None)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
