"""Knobs of the processes that train: their allocators and their cores."""

from collections.abc import Mapping

from autotune.contract import KnobValue
from autotune.engines.deepspeed.knobs.base import DeepSpeedKnob
from autotune.space.knob import Context, Knobs

_VARIABLES: Mapping[tuple[str, KnobValue], Mapping[str, str]] = {
    # The old name: torch before 2.9 reads no other, and later ones still read it.
    ("allocator", "expandable_segments"): {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ("host_allocator", "keep"): {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**40),
        "MALLOC_TOP_PAD_": str(64 * 2**20),
    },
}
"""Variables by knob and value; a value that is not here needs none."""


def environment_of(values: Knobs) -> dict[str, str]:
    """Environment variables that a candidate's ranks start with."""
    return {
        variable: text
        for pair in values.items()
        for variable, text in _VARIABLES.get(pair, {}).items()
    }


def _is_cpu(_: Knobs, context: Context) -> bool:
    return context.accelerator == "cpu"


def _is_cuda(_: Knobs, context: Context) -> bool:
    return context.accelerator == "cuda"


ENTRIES = (
    DeepSpeedKnob(
        name="allocator",
        default="default",
        choices=("default", "expandable_segments"),
        scope="on a GPU",
        acts=_is_cuda,
        needs_cuda=("expandable_segments",),
        help="torch's CUDA allocator: fixed segments, or ones that grow, which fragment less",
        source="torch: PYTORCH_CUDA_ALLOC_CONF",
    ),
    DeepSpeedKnob(
        name="host_allocator",
        default="default",
        choices=("default", "keep"),
        scope="for CPU ranks on Linux with glibc",
        acts=_is_cpu,
        help="default: large blocks go back to the kernel when they are freed, and every step "
        "waits for their pages to be cleared again; keep: the process keeps them, for more memory",
        source="mallopt(3): M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD",
    ),
    DeepSpeedKnob(
        # A CPU rank has a core as its device and is always bound to it.
        name="core_binding",
        default="none",
        choices=("none", "ranks"),
        scope="on a GPU",
        acts=_is_cuda,
        needs_cuda=("ranks",),
        help="none: a rank's threads run on any core; ranks: each rank has its own share of them",
        source="os.sched_setaffinity",
    ),
)
