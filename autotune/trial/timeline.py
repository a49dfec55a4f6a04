"""Works out from the profiler's events where the time of an optimizer step went.

Every nanosecond between the pass's beginning and its last step's end is communication if a
collective runs and nothing is computed; else it belongs to the engine's call that it lies in, or
to the training script between those calls.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autotune.contract import Split

BEGIN = "autotune::begin"
"""A range that ends where the first step of the pass begins."""
FORWARD = "autotune::forward"
BACKWARD = "autotune::backward"
OPTIMIZER = "autotune::optimizer"
EXCHANGE = "autotune::exchange"
"""Range around sends to one rank and receives from it: gloo's receives have no events."""

Spans = list[tuple[int, int]]
"""Sorted, disjoint intervals in nanoseconds."""


class Event(NamedTuple):
    """One event of the profiler."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    on_device: bool
    """True for a kernel or a copy on a GPU."""


_MATMUL_OPS = re.compile(
    r"aten::(mm|addmm|bmm|baddbmm|_scaled_mm|linalg_vecdot|mv|dot|convolution\w*|mkldnn_linear|"
    r"mkl_linear|_?scaled_dot_product_\w*attention\w*|_flash_attention_\w+|"
    r"_efficient_attention_\w+)$|mkldnn::|FlashAttn"
)
"""Operations on the host that compute more than they move."""
_MATMUL_KERNELS = re.compile(
    r"gemm|nvjet|cutlass|cublas|xmma|wgmma|flash|fmha|attention|conv|gemv|splitK", re.IGNORECASE
)
"""The same of kernels, by the names that cuBLAS, CUTLASS and the attention libraries give them."""
_COLLECTIVE_KERNELS = re.compile(r"nccl", re.IGNORECASE)
_HOST_COLLECTIVES = ("gloo:", "c10d::", EXCHANGE)
_HOST_WORK = ("aten::", "mkldnn::")
HOST_NAMES = (*_HOST_WORK, *_HOST_COLLECTIVES, "autotune::")
"""Prefixes of the host's events that count."""


def split(events: Sequence[Event], *, steps: int, on_device: bool) -> Split:
    """Where the time went, per optimizer step.

    Args:
        events: Events of one rank, in any order, with the ranges that this module names.
        steps: Optimizer steps that they cover.
        on_device: Whether the rank computes on a GPU: then its kernels count, else its main
            thread's operations.

    Raises:
        ValueError: The ranges are not among the events.
    """
    begins = [e for e in events if e.name == BEGIN and not e.on_device]
    calls = {
        name: _merged((e.start_ns, e.end_ns) for e in events if e.name == name and not e.on_device)
        for name in (FORWARD, BACKWARD, OPTIMIZER)
    }
    if not begins or not calls[OPTIMIZER]:
        raise ValueError("the profiler recorded no range of the pass")
    window = [(begins[0].end_ns, calls[OPTIMIZER][-1][1])]
    main = begins[0].thread
    # gloo's work runs on threads of its own.
    counted = [e for e in events if e.on_device or e.thread == main or e.name.startswith("gloo:")]
    communicates, computes, multiplies = _work(counted, on_device=on_device)
    exposed = _inside(_without(communicates, computes), window)
    rest = _without(window, [span for spans in calls.values() for span in spans])
    computed = {name: _without(spans, exposed) for name, spans in calls.items()}
    # The optimizer's own work is told apart by the call: its kernels look like any others.
    model_s = _without(_without(window, exposed), calls[OPTIMIZER])
    spent = {
        "step_s": window,
        "forward_s": computed[FORWARD],
        "backward_s": computed[BACKWARD],
        "optimizer_s": computed[OPTIMIZER],
        "communication_s": exposed,
        "data_s": _without(rest, exposed),
        "overlapped_s": _inside(_inside(communicates, computes), window),
        "matmul_s": _inside(multiplies, model_s),
        "memory_s": _without(_inside(computes, model_s), multiplies),
        "host_s": _without(model_s, computes),
    }
    per_step = 1 / (steps * 1e9)
    return Split(
        **{
            name: sum(end - start for start, end in parts) * per_step
            for name, parts in spent.items()
        }
    )


def _work(events: Iterable[Event], *, on_device: bool) -> tuple[Spans, Spans, Spans]:
    """When something was communicated, computed, and multiplied."""
    communicates, computes, multiplies = [], [], []
    for event in events:
        span = (event.start_ns, event.end_ns)
        if on_device:
            if not event.on_device or event.name.startswith("autotune::"):
                continue
            if _COLLECTIVE_KERNELS.search(event.name):
                communicates.append(span)
                continue
            computes.append(span)
            if _MATMUL_KERNELS.search(event.name):
                multiplies.append(span)
        elif event.name.startswith(_HOST_COLLECTIVES):
            communicates.append(span)
        elif event.name.startswith(_HOST_WORK):
            computes.append(span)
            if _MATMUL_OPS.match(event.name):
                multiplies.append(span)
    return _merged(communicates), _merged(computes), _merged(multiplies)


def _merged(spans: Iterable[tuple[int, int]]) -> Spans:
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def _inside(spans: Spans, others: Spans) -> Spans:
    """The parts of the first that lie in the second."""
    return _without(spans, _without(spans, others))


def _without(spans: Spans, others: Spans) -> Spans:
    """The parts of the first that lie outside the second; the second in any order."""
    left: Spans = []
    others = _merged(others)
    index = 0
    for start, end in spans:
        while index < len(others) and others[index][1] <= start:
            index += 1
        at = index
        while at < len(others) and others[at][0] < end:
            if others[at][0] > start:
                left.append((start, others[at][0]))
            start = max(start, others[at][1])
            at += 1
        if start < end:
            left.append((start, end))
    return left
