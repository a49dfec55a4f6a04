"""One row of a table of training runs, as the columns of `Plans`: one spelling for each value."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.base.errors import FleetError
from autotune.cost.cells import Cells, RowError
from autotune.cost.device import device_columns, fp4_flops, link_columns
from autotune.cost.plans import Plans, Recompute
from autotune.cost.row_adapters import adapter_columns
from autotune.cost.row_choices import (
    CHOICES,
    choice_columns,
    fewest_logit_bytes,
    recomputed_modules,
    setting_columns,
)
from autotune.cost.row_model import count_params, read_model
from autotune.cost.traits import ASSUMED, FRAMEWORKS, GROWING_SEGMENTS, PURE_16_BIT, Meter, Traits
from autotune.devices.accelerators import Accelerator, find_accelerator

OPEN = ("zero_stage", "recompute", "attention", "loss", "software")
"""Columns that a row may leave open, so that its forecast is less certain. `software` is its age:
a year or a container's release."""
_MAX_DEVICES = 262_144
"""More than anybody has trained one model on."""
_ENDS = 2.0
"""Chunks of a pipeline without a layer: the embedding and the loss can have one each. Source:
Megatron-LM, --account-for-embedding-in-pipeline-split, --account-for-loss-in-pipeline-split."""
_GIGABIT = 1e9 / 8
_ULYSSES = re.compile(r"ulysses=([1-9]\d{0,8})")
_AGE = re.compile(r"20[12]\d|\d\d\.\d\d")
LINKS = re.compile(r"(?P<n>\d{1,4})x(?P<gbit>\d{1,6})Gb")
"""Network of a node: its links, and the bits that each moves in a second."""
_PRECISIONS = {
    **{"fp8-rowwise": "fp8", "tf32": "fp32", "pure-bf16": "bf16", "pure-fp16": "fp16"},
}
"""Words for a precision beside the device's own -> that of the device. Pure ones have no copy in
32 bits."""
_PRODUCTS = ("matmul_flops", "half_flops")
"""Columns of `Plans` with the rate of matrix products."""
METERS: Mapping[str, Meter] = {
    "device": "peak_bytes",
    "reserved": "reserved_bytes",
    "allocated": "allocated_bytes",
}
"""Words of the column `memory_meter`: what nvidia-smi shows, what torch's allocator has reserved,
and what it has handed out of that."""
_ALLOCATORS = ("default", "expandable_segments")
_STAGE_3_COPIES = 8.0
"""Bytes that stage 3 moves per 16-bit gradient: into its bucket, and there to divide it. Source:
DeepSpeed, runtime/zero/stage3.py and runtime/comm/coalesced_collectives.py."""


@dataclass(frozen=True, kw_only=True)
class ReadRow:
    """One row as the model takes it."""

    columns: dict[str, float]
    """Columns of `Plans`, among others; those that are left out have their defaults."""
    fewest_logit_bytes: float
    """Column `logit_bytes` at least, where the row leaves open how its loss is computed."""
    open: frozenset[str]
    """What of `OPEN` the row does not say."""
    framework: str
    """Name of its `Traits`."""
    accelerator: Accelerator
    meter: Meter
    """Which memory its peak is compared with."""


def read_row(cells: Cells, table: Sequence[Accelerator]) -> ReadRow:
    """Read one row.

    Raises:
        RowError: It cannot be predicted.
    """
    word = cells.choice("framework", [traits.word for traits in FRAMEWORKS], ASSUMED)
    traits = next(traits for traits in FRAMEWORKS if traits.word == word)
    model = read_model(cells, builds_mtp=traits.mixture_columns.get("grouped_experts", 1.0) > 0)
    layout = _layout(cells, traits, model)
    accelerator = _accelerator(cells, table)
    precision = _precision(cells, accelerator)
    _check_software(cells)
    if traits.splits_local_batch and layout["pp"] > 1:
        # There, the pipeline's micro-batches are single samples of what a rank is given.
        layout["grad_accum"] *= layout["micro_batch"]
        layout["micro_batch"] = 1.0
        cells.assume("micro_batch", 1, f"{traits.name} splits the local batch")
    is_hopper = "fp8" in accelerator.peak_flops
    columns = {
        # Fetched module by module, where the framework says nothing else.
        "gather_calls_per_layer": 4.0,
        **model,
        **layout,
        **_device(cells, accelerator, precision, layout["n_gpus"]),
        **traits.columns,
        **({"attention_speed": traits.attention_on_hopper} if is_hopper else {}),
        **(traits.low_precision_columns if precision in ("fp8", "fp4") else {}),
        **(traits.fp16_columns if precision == "fp16" else {}),
        **_dtypes(cells, precision, traits),
        **_recompute_and_offload(cells, traits),
    }
    columns |= _zero(cells, traits, columns, precision)
    if layout["tp"] > 1 and traits.parallel_logit_bytes:
        columns["logit_bytes"] = traits.parallel_logit_bytes
    columns |= choice_columns(cells, columns, is_hopper=is_hopper, traits=traits)
    if model["n_experts"] > 1:
        columns |= _mixture(cells, traits)
    columns |= adapter_columns(cells, traits, columns, precision)
    columns |= setting_columns(cells)
    if model["gated_mlp"]:
        columns["has_dropout"] = 0.0  # such models are trained without
    if _unless_blank(cells, "allocator", _ALLOCATORS, "default") == "expandable_segments":
        columns["fragments"] = GROWING_SEGMENTS
    if columns["zero_stage"] < 3:
        columns["layer_wise_gather"] = 0.0
    if columns["zero_stage"] < 1:
        columns["flat_buffers"] = columns["accumulate_bytes"] = 0.0
    if columns["zero_stage"] == 3:
        columns |= traits.stage_3_columns
        columns["accumulate_bytes"] = columns.get("cuts_by_rank", 0.0) * _STAGE_3_COPIES
    if columns["vp"] == 1:
        columns["overlap_sends"] = 0.0
    logit_bytes = columns.get("logit_bytes", float(Plans.logit_bytes))
    return ReadRow(
        columns=columns,
        fewest_logit_bytes=fewest_logit_bytes(cells, logit_bytes, traits, columns),
        open=frozenset(name for name in OPEN if cells.is_blank(name)),
        framework=traits.name,
        accelerator=accelerator,
        meter=METERS[_unless_blank(cells, "memory_meter", METERS, "device")],
    )


def _unless_blank(cells: Cells, key: str, allowed: Iterable[str], default: str) -> str:
    """A word of a column whose default needs no note."""
    return default if cells.is_blank(key) else cells.choice(key, allowed, default)


def _check_software(cells: Cells) -> None:
    if not cells.is_blank("software") and not _AGE.fullmatch(cells.text("software")):
        raise cells.wrong("software", "is no year and no release, such as 2025 or 25.04")


def _mixture(cells: Cells, traits: Traits) -> dict[str, float]:
    """What the framework usually does with experts."""
    usual = dict(traits.mixture_columns)
    if "flex_dispatch" in usual and cells.is_blank("flex_dispatch"):
        cells.assume("flex_dispatch", usual["flex_dispatch"], f"as {traits.word}")
    if cells.is_blank("expert_imbalance") and cells.is_blank("forced_balance"):
        cells.assume("expert_imbalance", 1, "as if forced; else steps are up to 1.5 times slower")
    return usual


def _layout(cells: Cells, traits: Traits, model: Mapping[str, float]) -> dict[str, float]:
    """Degrees; their product is the world, and they divide what they split."""
    n_gpus = cells.count("n_gpus", most=_MAX_DEVICES)
    tp, pp = cells.count("tp", 1.0), cells.count("pp", 1.0)
    vp, cp = cells.count("vp", 1.0), cells.count("cp", 1.0)
    found = _ULYSSES.fullmatch(cells.text("sp"))
    ulysses = float(found[1]) if found else 1.0
    split = tp * pp * cp * ulysses
    if n_gpus % split:
        raise RowError(
            f"tp {tp:g} x pp {pp:g} x cp {cp:g} x ulysses {ulysses:g} = {split:g} does not divide "
            f"n_gpus={n_gpus:g}"
        )
    dp = cells.count("dp", n_gpus / split, "n_gpus over the other degrees")
    if dp * split != n_gpus:
        raise RowError(
            f"dp {dp:g} x tp {tp:g} x pp {pp:g} x cp {cp:g} x ulysses {ulysses:g} = "
            f"{dp * split:g}, not n_gpus={n_gpus:g}"
        )
    layers, heads, seq_len = model["n_layers"], model["n_heads"], model["seq_len"]
    if heads % tp:
        raise RowError(f"n_heads={heads:g} is no multiple of tp={tp:g}")
    if pp > layers or pp * vp > layers + _ENDS:
        raise RowError(f"pp {pp:g} x vp {vp:g} is more than n_layers={layers:g}")
    if seq_len % (cp * ulysses):
        raise RowError(f"seq_len={seq_len:g} is no multiple of cp x ulysses = {cp * ulysses:g}")
    _check_experts(model, n_gpus, tp, pp)
    micro_batch = cells.count("micro_batch")
    global_batch = cells.count("global_batch", most=1e12)
    if global_batch % (micro_batch * dp):
        raise RowError(
            f"global_batch={global_batch:g} is no multiple of micro_batch {micro_batch:g} x dp "
            f"{dp:g}"
        )
    return {
        "n_gpus": n_gpus,
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "vp": vp,
        "cp": cp,
        "ulysses": ulysses,
        "micro_batch": micro_batch,
        "grad_accum": global_batch / (micro_batch * dp),
        "sequence_parallel": _sequence_parallel(cells, traits, tp),
        **_stages(cells, traits, model, pp, vp),
    }


def _check_experts(model: Mapping[str, float], n_gpus: float, tp: float, pp: float) -> None:
    """Check the ranks of experts: ep x etp x pp divide the world, and etp an expert."""
    ep, ffn_hidden = model["ep"], model["ffn_hidden"]
    etp = model.get("expert_tp", tp)
    split = ep * etp * pp
    if ep > 1 and n_gpus % split:
        raise RowError(
            f"ep {ep:g} x etp {etp:g} x pp {pp:g} = {split:g} does not divide n_gpus={n_gpus:g}"
            + ("" if "expert_tp" in model else "; a blank etp is tp, set etp=1 for whole experts")
        )
    if ep > 1 and ffn_hidden % etp:
        raise RowError(f"ffn_hidden={ffn_hidden:g} is no multiple of etp={etp:g}")


def _stages(
    cells: Cells, traits: Traits, model: Mapping[str, float], pp: float, vp: float
) -> dict[str, float]:
    """Layers of the stages where they do not split evenly.

    A framework that weighs the head gives layers of the last stage to others. Engines otherwise
    leave layers out of the ends, which have the embedding and the loss besides:
    Megatron's `--account-for-*-in-pipeline-split`, `--decoder-last-pipeline-num-layers`, and
    layouts.
    """
    layers = model["n_layers"]
    if traits.weighs_head and pp > 1:
        heads = 4.0 * model["n_heads"] * model["head_dim"]
        layer = heads + (2.0 + model["gated_mlp"]) * model["ffn_hidden"]
        first, most, last = _dealt_layers(layers, model["vocab"] / layer, pp)
        cells.assume("stages", f"{first:g} to {last:g} layers", f"{traits.name} weighs the head")
        return {
            **{"most_stage_layers": most, "first_stage_layers": first},
            "last_stage_layers": last,
        }
    if layers % (pp * vp) == 0:
        return {}
    if layers % pp == 0:
        cells.assume("stages", "a layout", f"{layers:g} layers on pp {pp:g} x vp {vp:g}")
        return {}
    most = math.ceil(layers / pp)
    n_missing = most * pp - layers
    first = most - float(n_missing >= 2)
    last = max(1.0, most - float(min(n_missing, 2 if n_missing > 2 else 1)))
    cells.assume("stages", f"{first:g} to {most:g} to {last:g} layers", f"{layers:g} on pp {pp:g}")
    return {"most_stage_layers": most, "first_stage_layers": first, "last_stage_layers": last}


def _dealt_layers(n_layers: float, head: float, pp: float) -> tuple[float, float, float]:
    """Layers of the first stage, the fullest between, and the last; the head weighs `head`.

    Layers come one after the other, to a stage until it and those before it have their share. A
    last stage without layers has the loss, and the stage before it the head's product.
    """
    dealt = [0.0] * int(pp)
    stage = 0
    for layer in range(1, int(n_layers) + 1):
        dealt[stage] += 1.0
        stage += layer >= (n_layers + head) * (stage + 1) / pp
    return dealt[0], max(dealt[1:-1] or dealt), dealt[-1]


def _sequence_parallel(cells: Cells, traits: Traits, tp: float) -> float:
    text = cells.text("sp")
    if text not in ("", "yes", "no") and not text.startswith("ulysses="):
        raise cells.wrong("sp", "is not yes, no or ulysses=N")
    if text.startswith("ulysses=") and not _ULYSSES.fullmatch(text):
        raise cells.wrong("sp", "has no degree of at least 1, such as ulysses=8")
    if tp == 1 or text.startswith("ulysses"):
        return 0.0
    usual = "yes" if traits.sequence_parallel else "no"
    return float(cells.choice("sp", ("yes", "no"), usual, f"as {traits.name}") == "yes")


def _accelerator(cells: Cells, table: Sequence[Accelerator]) -> Accelerator:
    if cells.is_blank("gpu_type"):
        raise cells.unsaid("gpu_type")
    memory_gib = None if cells.is_blank("gpu_mem_gb") else cells.number("gpu_mem_gb")
    try:
        found = find_accelerator(cells.text("gpu_type"), memory_gib=memory_gib, table=table)
    except FleetError as error:
        raise RowError(f"{error.message}; {error.hint}") from error
    if memory_gib is None:
        cells.assume("gpu_mem_gb", found.memory_bytes / 2**30, f"GiB, {found.name}")
    return found


def _precision(cells: Cells, accelerator: Accelerator) -> str:
    default = "bf16" if "fp8" in accelerator.peak_flops else "fp16"
    words = ("fp32", "tf32", "fp16", "bf16", "pure-fp16", "pure-bf16", "fp8", "fp8-rowwise", "fp4")
    word = cells.choice("precision", words, default)
    precision = _PRECISIONS.get(word, word)
    if precision not in accelerator.peak_flops:
        known = ", ".join(accelerator.peak_flops)
        raise RowError(f"precision={precision}: {accelerator.name} has {known}")
    return precision


def _device(
    cells: Cells, accelerator: Accelerator, precision: str, n_gpus: float
) -> dict[str, float]:
    default_nodes = min(n_gpus, float(accelerator.devices_per_node))
    per_node = cells.count("gpus_per_node", default_nodes, accelerator.name, most=1024)
    per_node = min(per_node, n_gpus)
    columns = device_columns(accelerator, precision, per_node)
    if cells.text("precision") == "tf32":
        # Matrix products of fp32 at half of the 16-bit rate: NVIDIA, A100 and later datasheets.
        columns |= dict.fromkeys(_PRODUCTS, accelerator.rate(accelerator.half) / 2.0)
    return {
        **columns,
        "matmul_flops": _matmul_flops(cells, columns, accelerator, precision),
        **_network(cells, columns["network_bytes_per_s"], accelerator, per_node),
    }


def _matmul_flops(
    cells: Cells, columns: dict[str, float], accelerator: Accelerator, precision: str
) -> float:
    """The rate at the precision of the layers.

    One scale per row costs what fp8 gains.
    """
    narrow, wide = columns["matmul_flops"], columns["half_flops"]
    if precision == "fp4":
        return fp4_flops(narrow, wide)
    if cells.text("precision") == "fp8-rowwise":
        cells.assume("matmul_flops", accelerator.half, "scales by row gain nothing")
        return wide
    return narrow


def _network(
    cells: Cells, bytes_per_s: float, accelerator: Accelerator, per_node: float
) -> dict[str, float]:
    """Change of a device's share by the cell `interconnect`; blank, it is as in the table."""
    if cells.is_blank("interconnect"):
        cells.assume("network", f"{bytes_per_s / 1e9:g} GB/s per device", accelerator.name)
        return {}
    found = LINKS.fullmatch(cells.text("interconnect"))
    rate = float(found["n"]) * float(found["gbit"]) * _GIGABIT / per_node if found else 0.0
    if rate <= 0:
        raise cells.wrong("interconnect", "is not a node's links and their rate, such as 8x200Gb")
    return {"network_bytes_per_s": rate, **link_columns("network", None)}


def _dtypes(cells: Cells, precision: str, traits: Traits) -> dict[str, float]:
    if cells.text("precision").startswith("pure-"):
        temporary = traits.columns.get("optimizer_temporary_bytes", 0.0)
        return {**PURE_16_BIT, "optimizer_temporary_bytes": temporary / 2.0}
    if precision == "fp32":
        of_elements = ("weight", "grad", "reduce", "gather", "activation", "product_input")
        return {**{f"{name}_bytes": 4.0 for name in of_elements}, "optimizer_bytes": 8.0}
    is_fp8_gather = precision in ("fp8", "fp4") and "layer_wise_gather" in traits.columns
    return {"gather_bytes": 1.0} if is_fp8_gather else {}


def _zero(
    cells: Cells, traits: Traits, columns: Mapping[str, float], precision: str
) -> dict[str, float]:
    stage = cells.within("zero_stage", 0, 3)
    if stage is None:
        stage, why = _usual_stage(cells, traits, columns)
        cells.assume("zero_stage", stage, why)
    elif stage != int(stage):
        raise cells.wrong("zero_stage", "is not 0, 1, 2 or 3")
    ranks = columns["dp"] * columns["cp"] * columns["ulysses"]
    group = cells.within("shard_group", 0, _MAX_DEVICES) or 0.0
    if group and ranks % group:
        raise RowError(f"shard_group={group:g}: groups of that many do not tile {ranks:g} ranks")
    found = {"zero_stage": stage}
    if stage >= 2:
        found["reduces_every_micro_batch"] = 1.0
    if stage == 3:
        # Stage 3 overlaps by itself; so does the engine that runs it without a pipeline. Not so
        # releases of 2021, which runs of plain DeepSpeed in fp16 are taken for.
        overlaps = 1.0 if precision != "fp16" else traits.fp16_columns.get("overlap_gather", 1.0)
        found["overlap_reduce"] = found["overlap_gather"] = overlaps
    return found


def _usual_stage(cells: Cells, traits: Traits, columns: Mapping[str, float]) -> tuple[float, str]:
    """Stage where a row names none, and why: of DeepSpeed the first by which the states fit.

    They are 2 bytes of weights, 2 of gradients and 12 of Adam's for each parameter, in three
    quarters of the memory. Adapters and states on the host take less, and a pipeline shards no
    gradients.
    """
    states_bytes = 16.0 * count_params(columns) / columns["tp"]
    held = 0.75 * columns["memory_bytes"] / states_bytes
    is_less = cells.text("task") in ("lora", "qlora") or columns.get("optimizer_tier", 0) > 0
    if held >= 1 or is_less or columns["pp"] > 1 or "cuts_by_rank" not in traits.columns:
        return float(traits.zero_stage), f"as {traits.name}"
    whole = {1: 4 / 16, 2: 2 / 16}
    fits = (stage for stage, part in whole.items() if part + (1 - part) / columns["dp"] <= held)
    return float(next(fits, 3)), "the first by which all states fit"


def _recompute_and_offload(cells: Cells, traits: Traits) -> dict[str, float]:
    """Columns of recomputation and offload."""
    text = cells.text("recompute")
    every = re.fullmatch(r"every_([1-9]\d{0,8})", text)
    modules = recomputed_modules(cells)
    if every:
        recompute = Recompute.FULL
    elif modules:
        recompute = Recompute.SELECTIVE
    else:
        words = {
            "none": Recompute.NONE,
            "selective": (
                Recompute.OPERATORS if traits.selective_operators else Recompute.SELECTIVE
            ),
            "full": Recompute.FULL,
        }
        if text and text not in words:
            raise cells.wrong(
                "recompute", "is not none, selective, full, every_2 or selective: [MODULE, ...]"
            )
        recompute = words[cells.choice("recompute", words, traits.recompute, f"as {traits.name}")]
    tiers = CHOICES["offload"][cells.choice("offload", CHOICES["offload"], "none")]
    return {
        "recompute": float(recompute),
        "recompute_every": float(every[1]) if every else 1.0,
        **modules,
        **{column: float(tier) for column, tier in tiers.items()},
        # What the framework does by itself is off, too.
        **({"offloaded_activations": 0.0} if cells.text("offload") == "none" else {}),
    }
