"""Measurements of a rank by itself: products, memory streams, copies, a layer, a disk."""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from autotune.probe.clock import Clock

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_CPU_SIDES = (64, 128, 256, 512, 1024)
_CUDA_SIDES = (256, 512, 1024, 2048, 4096, 8192)
_CPU_STREAMS = (2**20, 2**23, 2**26)
_CUDA_STREAMS = (2**24, 2**27, 2**30)
_COPIES = (2**20, 2**24, 2**28)
_DISK_BYTES, _DISK_CHUNK_BYTES = 2**27, 2**23
_LAYER_HIDDEN, _LAYER_HEADS = 64, 4
_ATTENTION = (8, 4, 128, 32)
"""Samples, heads, tokens and a head's width, as of models that CPU ranks are used for."""
_LOGITS = (448, 8192)
"""Tokens and vocabulary."""
_LARGEST_HEAP_BLOCK_BYTES = 31 * 2**20

Points = Iterator[dict[str, Any]]
"""As `autotune.probe.rank` writes them."""


def products(clock: Clock, precisions: Sequence[str]) -> Points:
    """Square products of every size, and some with one short side, as few tokens make them."""
    sides = _CUDA_SIDES if clock.is_cuda else _CPU_SIDES
    long, middle = sides[-2], sides[-3]
    shapes = [(side, side, side) for side in sides]
    shapes += [(sides[0] // 4, long, long), (long, sides[0], middle), (middle, sides[0], long)]
    for name in precisions:
        for m, k, n in shapes:
            left, right = (
                torch.rand(rows, k, device=clock.device).to(_DTYPES[name]) for rows in (m, n)
            )
            # As a linear layer multiplies: the weight is stored by its outputs.
            timed = clock.alone(partial(functional.linear, left, right))
            yield {"kind": "matmul", "dtype": name, "shape": [m, k, n], **timed}


def one_product(clock: Clock) -> Points:
    """A large product in the precision that the device is made for, long enough to warm it."""
    if clock.is_cuda:
        has_bf16 = torch.cuda.get_device_capability(clock.device) >= (8, 0)
        n, name = _CUDA_SIDES[-1], "bf16" if has_bf16 else "fp16"
    else:
        n, name = _CPU_SIDES[-1], "fp32"
    left, right = (torch.rand(n, n, device=clock.device).to(_DTYPES[name]) for _ in range(2))
    timed = clock.alone(partial(torch.matmul, left, right), budget_s=1.5)
    yield {"kind": "matmul", "dtype": name, "shape": [n, n, n], **timed}


def streams(clock: Clock) -> Points:
    """A sum of two tensors into a third; `bytes` counts all three.

    Source: McCalpin, STREAM, the kernel Add (IEEE TCCA Newsletter, December 1995).
    """
    for size_bytes in _CUDA_STREAMS if clock.is_cuda else _CPU_STREAMS:
        a, b, c = (torch.ones(size_bytes // 4, device=clock.device) for _ in range(3))
        timed = clock.alone(partial(torch.add, a, b, out=c))
        yield {"kind": "stream", "bytes": 3 * size_bytes, **timed}
    if not clock.is_cuda:
        # A result that is new each time, as autograd's are: beyond a size the C library asks the
        # kernel for every page anew, which clears it.
        yield {"kind": "fresh", "bytes": 3 * size_bytes, **clock.alone(lambda: a + b)}


def copies(clock: Clock) -> Points:
    """Between the host's pinned memory and the device."""
    for size_bytes in _COPIES:
        host = torch.ones(size_bytes // 4, pin_memory=True)
        device = torch.ones(size_bytes // 4, device=clock.device)
        for kind, target, source in (("upload", device, host), ("download", host, device)):
            timed = clock.alone(partial(target.copy_, source, non_blocking=True))
            yield {"kind": kind, "bytes": size_bytes, **timed}


def layers(clock: Clock) -> Points:
    """A transformer layer forward and backward with next to nothing to compute.

    What is left is what the host takes to issue its kernels, which on a CPU nothing hides.
    """
    h, heads = _LAYER_HIDDEN, _LAYER_HEADS
    sizes = [(h, h)] * 4 + [(2 * h, h)] * 2 + [(h, 2 * h)]
    weights = [torch.rand(*size, device=clock.device).requires_grad_() for size in sizes]
    scale = torch.ones(h, device=clock.device, requires_grad=True)
    x = torch.rand(1, heads, h, device=clock.device)

    def norm(x: Any) -> Any:
        return scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))

    def turn(x: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return x * 0.5 + torch.cat((-second, first), dim=-1) * 0.5

    def layer() -> None:
        y = norm(x)
        q, k, v = (
            functional.linear(y, weight).view(1, -1, heads, h // heads).transpose(1, 2)
            for weight in weights[:3]
        )
        mixed = functional.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
        z = x + functional.linear(mixed.transpose(1, 2).reshape(x.shape), weights[3])
        y = norm(z)
        gated = functional.silu(functional.linear(y, weights[4]))
        out = z + functional.linear(gated * functional.linear(y, weights[5]), weights[6])
        out.sum().backward()

    yield {"kind": "layer", **clock.alone(layer)}


def attention(clock: Clock, precisions: Sequence[str]) -> Points:
    """Causal attention in one kernel, forward, and forward and backward together.

    On a CPU it is far from the rate of products, and its backward pass from that of its forward
    pass.
    """
    for name in precisions:
        q, k, v = (
            torch.rand(_ATTENTION, device=clock.device).to(_DTYPES[name]).requires_grad_()
            for _ in range(3)
        )
        forward = partial(functional.scaled_dot_product_attention, q, k, v, is_causal=True)
        gradient = torch.ones_like(forward())
        about = {"dtype": name, "shape": list(_ATTENTION)}
        yield {"kind": "attention", **about, **clock.alone(forward)}
        both = partial(_backward, forward, gradient)
        yield {"kind": "attention_both", **about, **clock.alone(both)}


def _backward(forward: Callable[[], Any], gradient: Any) -> None:
    forward().backward(gradient)


def losses(clock: Clock, precisions: Sequence[str]) -> Points:
    """Cross entropy of logits that are widened for it, forward and backward."""
    # glibc keeps blocks up to the largest that was freed once, and twice as much in all: with this
    # one no page has to be cleared below, which the model counts by itself.
    torch.empty(_LARGEST_HEAP_BLOCK_BYTES, dtype=torch.uint8)
    labels = torch.zeros(_LOGITS[0], dtype=torch.long, device=clock.device)
    for name in precisions:
        logits = torch.rand(_LOGITS, device=clock.device).to(_DTYPES[name]).requires_grad_()

        def loss(logits: Any = logits) -> None:
            functional.cross_entropy(logits.float(), labels).backward()

        yield {"kind": "loss", "dtype": name, "shape": list(_LOGITS), **clock.alone(loss)}


def disk(clock: Clock, folder: str, rank: int) -> Points:
    """Write a file and read it again, past the page cache where the file system lets one.

    Every rank does so at once: `bytes` are its own.

    Raises:
        OSError: The folder cannot be written, or its disk is full.
    """
    size_bytes = _DISK_BYTES // (4 if clock.is_quick else 1)
    # Such memory begins at a page, as unbuffered reads and writes ask for.
    memory = torch.empty(_DISK_CHUNK_BYTES + 4096, dtype=torch.uint8)
    start = -memory.data_ptr() % 4096
    chunk = memoryview(memory.numpy())[start : start + _DISK_CHUNK_BYTES]
    handle = _nameless(Path(folder), rank)
    try:
        for kind, move in (("write", os.writev), ("read", os.readv)):
            os.lseek(handle, 0, os.SEEK_SET)
            seconds = _through(handle, move, chunk, size_bytes)
            yield {"kind": kind, "bytes": size_bytes, "seconds": seconds, "scatter": 0.0}
    finally:
        os.close(handle)


def _nameless(folder: Path, rank: int) -> int:
    """A file in a folder that is gone as soon as it is closed, or its process is killed."""
    path = folder / f".autotune-probe-{rank}-{os.urandom(8).hex()}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        handle = os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:  # tmpfs and some network file systems know no unbuffered access
        path.unlink(missing_ok=True)  # some make it all the same
        handle = os.open(path, flags, 0o600)
    path.unlink()
    return handle


def _through(
    handle: int, move: Callable[[int, list[memoryview]], int], chunk: memoryview, size_bytes: int
) -> float:
    """Seconds to move `size_bytes` between a file and memory, on the disk at the end."""
    start_s = time.perf_counter()
    for _ in range(math.ceil(size_bytes / len(chunk))):
        move(handle, [chunk])
    os.fsync(handle)
    return time.perf_counter() - start_s
