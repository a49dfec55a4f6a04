"""The numbers that no datasheet tells: how much of a peak real training reaches, and at what cost.

Their values lie in `constants.yaml` beside this file, which `benchmarks/fit_constants.py` writes,
and for CPU ranks in `constants_cpu.yaml`, which `benchmarks/fit_cpu_constants.py` writes.
"""

import dataclasses
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from autotune.base.errors import JobError
from autotune.base.text import named
from autotune.base.yaml_file import read_yaml
from autotune.devices.hardware import Environment

SHIPPED = Path(__file__).resolve().parent / "constants.yaml"
SHIPPED_CPU = SHIPPED.with_name("constants_cpu.yaml")
_HINT = "a mapping of the names in autotune/cost/constants.yaml to numbers"
_LEAST = 1e-12
"""Least value of any constant: the fit works on their logarithms, and some divide."""
_MOST_BY_SUFFIX = {"_share": 1.0, "_s": 3600.0, "_bytes": 2.0**50}
"""Largest value that the end of a name allows: of a share, seconds, bytes."""
_MOST = 1e6
"""Largest value of a constant that is a plain ratio."""


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants of the model, alike for every model and engine. A share is between 0 and 1."""

    matmul_share: float
    """Share of a device's achieved rate that products inside a training step reach: clocks fall
    under a load that lasts."""
    matmul_traffic: float
    """Times that a product moves its operands and result through device memory."""
    grouped_traffic: float
    """Times that the products of experts, a group of small ones, move rows beside large ones."""
    low_precision_share: float
    """Share of the gain of fp8 and fp4 over bf16 that products reach with their casts."""
    attention_share: float
    """Share of a device's achieved rate that a fused attention kernel reaches forward."""
    attention_backward_share: float
    """The same, backward."""
    attention_start_tokens: float
    """Tokens by which a sequence would have to be longer to take as long in a fused attention
    kernel at its full rate: what short ones lose."""
    memory_share: float
    """Share of the datasheet's memory bandwidth that element-wise kernels reach."""
    unfused_traffic: float
    """Times the traffic of fused element-wise kernels, without fusion."""
    routed_traffic: float
    """Times that the rows of experts and their router move through device memory, over what is
    counted."""
    score_traffic_bytes: float
    """Moved per attention score, forward, where the scores are written."""
    launch_s: float
    """Host time per kernel."""
    kernels_per_layer: float
    """Kernels of one layer, forward; twice as many backward."""
    routing_kernels: float
    """Further kernels of a layer with experts, forward: its router, and rows that are permuted."""
    expert_launch_s: float
    """Host time per product of one expert in a grouped product, or per cast to fp8 beyond one."""
    skew_share: float
    """Share of a layer's host time that each further tensor parallel rank adds: all wait for the
    slowest."""
    micro_batch_s: float
    """Host time per micro-batch: data, loss, the schedule."""
    fetch_s: float
    """Host time per tensor of stage 3 to fetch it forward and backward, where the host is the
    device: the modules' hooks take it."""
    device_fetch_s: float
    """The same where the device computes meanwhile. Not fitted: between what gpt2 (1.4 ms) and
    llama-3.2-1b (0.6 ms) gave on one H100 (results/recorded/gpu/h100-listed-candidates.csv)."""
    cut_s: float
    """Host time to cut a tensor of stage 3 for one rank of its group, where it does."""
    send_s: float
    """Time of a rank's call that sends its part of the parameters to all, besides its bytes."""
    step_s: float
    """Host time per optimizer step: norms, synchronisation, the scheduler."""
    nvlink_share: float
    """Share of an NVLink's rate that collectives reach as bus bandwidth."""
    network_share: float
    """The same of the network."""
    all_to_all_share: float
    """The same of the network where experts' rows go through it: no ring, so nobody waits."""
    host_link_share: float
    """The same of PCIe or NVLink-C2C."""
    nvlink_latency_s: float
    """Per hop of a collective."""
    network_latency_s: float
    """The same between nodes."""
    network_step_s: float
    """Least time of each step of a ring that leaves a node: the host's thread moves it on."""
    overlap_share: float
    """Share of the shorter of two overlapping parts that still adds to the time."""
    scale_jitter: float
    """Share of the step that each doubling of the nodes adds: the slowest of many."""
    optimizer_traffic_bytes: float
    """Moved per parameter by Adam on the device beyond its states once in and once out."""
    page_s: float
    """Time that the kernel takes to clear a page of 4 KiB for a rank that asks for memory."""
    host_optimizer_share: float
    """Share of the host's memory bandwidth that Adam on the CPU reaches."""
    context_bytes: float
    """Taken by the driver and its libraries in each process, outside the allocator."""
    communicator_bytes: float
    """Taken by NCCL for each group that a rank is in. As fitted it is more than NCCL's buffers:
    nearly all measured runs are in three groups, and whatever else they take counts as theirs."""
    fragmentation: float
    """Share of what varies over the step that the allocator cannot use again."""
    logits_fragmentation: float
    """The same of the logits besides, where there is room: the loss takes a few large tensors, for
    which the segments that layers leave are too small."""
    heap_bytes: float
    """Memory of the set-up that a heap which gives nothing back still holds."""
    heap_share: float
    """Share of what varies over the step that such a heap holds besides: freed, and in pieces."""
    workspace_bytes: float
    """Memory of the matrix product library, inside the allocator."""


@cache
def load_constants(path: Path = SHIPPED) -> Constants:
    """Read constants; the shipped ones by default.

    Raises:
        JobError: A constant is missing, unknown, no number, or one that cannot be.
    """
    data = read_yaml(path, hint=_HINT)
    known = {field.name for field in dataclasses.fields(Constants)}
    wrong = sorted(map(str, set(data) ^ known))
    if wrong:
        raise JobError(f"{path}: {named(wrong)}: missing or unknown", _HINT)
    try:
        constants = TypeAdapter(Constants).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise JobError(f"{path}: {first['loc'][0]}: {first['msg']}", _HINT) from error
    for name, value in dataclasses.asdict(constants).items():
        most = next((most for end, most in _MOST_BY_SUFFIX.items() if name.endswith(end)), _MOST)
        # True would count as 1, and text as the number that it spells.
        if isinstance(data[name], bool | str) or not _LEAST <= value <= most:
            facts = {"path": path, "name": name, "value": data[name]}
            raise JobError.of("cost.no_constant", **facts, least=_LEAST, most=most)
    return constants


def constants_of(environment: Environment) -> Constants:
    """The shipped constants of the environment's accelerators.

    CPU ranks' memory is counted above what their imports took: there are no NCCL communicators,
    no workspace and no torch allocator.
    """
    if environment.accelerator != "cpu":
        return load_constants(SHIPPED)
    return replace(
        load_constants(SHIPPED_CPU),
        communicator_bytes=0.0,
        workspace_bytes=0.0,
        fragmentation=0.0,
        logits_fragmentation=0.0,
    )
