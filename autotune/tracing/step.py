"""Runs one training step of a model under a tracker."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune.tracing.moments import Bytes, Kind, Part, StepPhase, Traced

_FUSED_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class Tracker(TorchDispatchMode):
    """While it is entered, every storage that an operation makes counts until it is freed."""

    # Torch's own MemTracker knows no parts of a backward pass, and looks at all modules each time.

    def __init__(self, part: Part, *, kind: Kind, granule_bytes: int = 1) -> None:
        """Start with nothing held, in a part of the step that makes tensors of a kind.

        The allocator rounds up to a multiple of a granule.
        """
        super().__init__()
        self.fullest: dict[Part, Bytes] = {}
        self._kind = kind
        self._granule_bytes = granule_bytes
        self._held = dict.fromkeys(Kind, 0)
        self._storages: dict[int, tuple[Kind, int, weakref.ref[Any]]] = {}
        self.enter(part, kind)

    def enter(self, part: Part, kind: Kind) -> None:
        """From now on it is that part of the step, which makes tensors of that kind."""
        self._part, self._kind = part, kind
        self._peak_bytes = sum(self.fullest.get(part, {}).values())
        self._look()

    def hold(self, tensors: Iterable[torch.Tensor | None], kind: Kind) -> None:
        for tensor in tensors:
            if tensor is not None:
                self._count(tensor, kind, is_new=True)
        self._look()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is _FUSED_ATTENTION:
            made = (_as_the_kernel_lays_it(made[0]), *made[1:])
        for leaf in [made] if isinstance(made, torch.Tensor) else tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf, self._kind, is_new=False)
        self._look()
        return made

    def _count(self, tensor: torch.Tensor, kind: Kind, *, is_new: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._storages.get(key)
        if known is not None:
            if is_new:
                self._held[known[0]] -= known[1]
                self._held[kind] += known[1]
                self._storages[key] = (kind, *known[1:])
            return
        size_bytes = -(-storage.nbytes() // self._granule_bytes) * self._granule_bytes
        # The storage's Python object lives as long as the storage does.
        reference = weakref.ref(storage, lambda _: self._free(key))
        self._storages[key] = (kind, size_bytes, reference)
        self._held[kind] += size_bytes

    def _free(self, key: int) -> None:
        kind, size_bytes, _ = self._storages.pop(key)
        self._held[kind] -= size_bytes

    def _look(self) -> None:
        total_bytes = sum(self._held.values())
        if total_bytes > self._peak_bytes or self._part not in self.fullest:
            self._peak_bytes = total_bytes
            self.fullest[self._part] = dict(self._held)


def _as_the_kernel_lays_it(attended: torch.Tensor) -> torch.Tensor:
    """The kernel's result, whose heads lie side by side, so that joining them copies nothing.

    A fake tensor has its query's layout instead, and would count a copy for every layer. Source:
    torch, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, and the CUDA kernels' as well.
    """
    if attended.transpose(1, 2).is_contiguous():
        return attended
    return torch.empty_permuted(
        attended.shape, (0, 2, 1, 3), dtype=attended.dtype, device=attended.device
    )


_FORWARD_LAYERS = Part(phase=StepPhase.FORWARD, place="layers")
_FORWARD_HEAD = Part(phase=StepPhase.FORWARD, place="head")
_BACKWARD_HEAD = Part(phase=StepPhase.BACKWARD, place="head")
_BACKWARD_INPUTS = Part(phase=StepPhase.BACKWARD, place="inputs")
_STEP = Part(phase=StepPhase.STEP, place="")


def trace_step(
    model: nn.Module,
    batch: dict[str, torch.Tensor],
    *,
    n_layers: int,
    gradients: str,
    granule_bytes: int = 1,
) -> Traced:
    """Trace forward, loss, backward and the optimizer's step.

    Args:
        model: In training mode; made of fake tensors or of real ones.
        batch: Arguments of its forward pass, the labels among them.
        n_layers: Layers to tell apart; 0: none.
        gradients: `grow`: weights have none before; `kept`: they have those of the micro-batch
            before; `taken`: somebody else takes each as soon as it is there, as ZeRO does.
        granule_bytes: See `Tracker`.
    """
    tracker = Tracker(_FORWARD_LAYERS, kind=Kind.ACTIVATIONS, granule_bytes=granule_bytes)
    weights = [p for p in model.parameters() if p.requires_grad]
    tracker.hold([*model.parameters(), *model.buffers()], Kind.PARAMETERS)
    tracker.hold(batch.values(), Kind.ACTIVATIONS)
    if gradients == "kept":
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        tracker.hold((weight.grad for weight in weights), Kind.GRADIENTS)
    with _layers_apart(model, n_layers, tracker), _gradients(weights, tracker, gradients), tracker:
        output = model(**batch)
        loss = output if isinstance(output, torch.Tensor) else output.loss
        tracker.enter(_BACKWARD_HEAD, Kind.LOGITS if n_layers else Kind.TEMPORARIES)
        loss.backward()
        if gradients != "taken":
            # As a training script has them until the next micro-batch.
            _step(weights, tracker)
        del output, loss
    return Traced(
        n_layers=n_layers,
        n_params=sum(p.numel() for p in model.parameters()),
        parts=tracker.fullest,
    )


def _step(weights: list[nn.Parameter], tracker: Tracker) -> None:
    """The first step makes the optimizer's states; the second one is as all after it."""
    optimizer = torch.optim.AdamW(weights, foreach=False)
    tracker.enter(_STEP, Kind.TEMPORARIES)
    optimizer.step()
    states = [state for of_weight in optimizer.state.values() for state in of_weight.values()]
    tracker.hold((state for state in states if torch.is_tensor(state)), Kind.OPTIMIZER)
    del tracker.fullest[_STEP]
    tracker.enter(_STEP, Kind.TEMPORARIES)
    optimizer.step()


@contextmanager
def _gradients(weights: list[nn.Parameter], tracker: Tracker, gradients: str) -> Iterator[None]:
    def there(weight: Any) -> None:
        if gradients == "taken":
            weight.grad = None
        else:
            tracker.hold([weight.grad], Kind.GRADIENTS)

    hooks = [weight.register_post_accumulate_grad_hook(there) for weight in weights]
    yield
    for hook in hooks:
        hook.remove()


@contextmanager
def _layers_apart(model: nn.Module, n_layers: int, tracker: Tracker) -> Iterator[None]:
    """Tell the tracker when the layers end, and when the backward pass reaches each of them."""
    layers = layers_of(model, n_layers)
    if layers is None:
        yield
        return

    def on_gradient(tensor: Any, part: Part, kind: Kind) -> None:
        if torch.is_tensor(tensor) and tensor.requires_grad:
            tensor.register_hook(lambda _: tracker.enter(part, kind))

    def before_first(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        hidden = next(iter([*args, *kwargs.values()]), None)
        on_gradient(hidden, _BACKWARD_INPUTS, Kind.TEMPORARIES)

    def after(index: int) -> Any:
        part = Part(phase=StepPhase.BACKWARD, place="layer", index=index)

        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple | list) else output
            on_gradient(hidden, part, Kind.TEMPORARIES)
            if index == n_layers - 1:
                tracker.enter(_FORWARD_HEAD, Kind.LOGITS)

        return hook

    hooks = [layers[0].register_forward_pre_hook(before_first, with_kwargs=True)]
    hooks += [layer.register_forward_hook(after(i)) for i, layer in enumerate(layers)]
    yield
    for hook in hooks:
        hook.remove()


def layers_of(model: nn.Module, n_layers: int) -> nn.ModuleList | None:
    """The list of a model's layers; None: there is none of that length."""
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next((layers for layers in lists if len(layers) == n_layers > 0), None)
