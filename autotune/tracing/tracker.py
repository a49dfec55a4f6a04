"""Counts the bytes of live tensors, by what they are there for.

Torch's own `torch.distributed._tools.mem_tracker.MemTracker` does so too, and a test compares the
two; it knows no parts of a backward pass, and looks at every module at every operation.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune.tracing.moments import Bytes, Kind, Part

_FUSED_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class Tracker(TorchDispatchMode):
    """While it is entered, every storage that an operation makes counts until it is freed."""

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
        """Run an operation and count what it made."""
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
