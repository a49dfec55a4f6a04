"""Knobs of the processes that train: the allocator and the cores."""

from autotune.knob import Context, Knob, Knobs


def environment_of(values: Knobs) -> dict[str, str]:
    """Environment variables that a candidate's ranks start with."""
    if values.get("allocator", "default") == "default":
        return {}
    # The old name: torch before 2.9 reads no other, and later ones still read it.
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def binds_cores(values: Knobs) -> bool:
    """Whether each GPU rank gets its own share of the cores."""
    return values.get("core_binding", "none") == "ranks"


def _is_cuda(_: Knobs, context: Context) -> bool:
    return context.accelerator == "cuda"


ENTRIES = (
    Knob(
        name="allocator",
        group="process",
        kind="choice",
        default="default",
        choices=("default", "expandable_segments"),
        scope="on a GPU",
        acts=_is_cuda,
        needs_cuda=("expandable_segments",),
        help="torch's CUDA allocator: fixed segments, or ones that grow, which fragment less",
        source="torch: PYTORCH_CUDA_ALLOC_CONF",
    ),
    Knob(
        # A CPU rank has a core as its device and is always bound to it.
        name="core_binding",
        group="process",
        kind="choice",
        default="none",
        choices=("none", "ranks"),
        scope="on a GPU",
        acts=_is_cuda,
        needs_cuda=("ranks",),
        help="none: a rank's threads run on any core; ranks: each rank has its own share of them",
        source="os.sched_setaffinity",
    ),
)
