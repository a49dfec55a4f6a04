"""One row of a table of training runs, as the columns of `Plans`."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.base.errors import FleetError
from autotune.cost.cells import Cells, RowError
from autotune.cost.device import device_columns, fp4_flops, link_columns
from autotune.cost.plans import Plans, Recompute, Tier
from autotune.cost.row_choices import choice_columns, fewest_logit_bytes
from autotune.cost.row_mixture import (
    lists_modules,
    mixture_columns,
    recomputed_modules,
    scaling_of,
)
from autotune.cost.row_model import read_model
from autotune.cost.traits import ASSUMED, SCALINGS, Traits, traits_of
from autotune.devices.accelerators import Accelerator, find_accelerator

_MAX_DEVICES = 262_144
"""More than anybody has trained one model on."""
_GIGABIT = 1e9 / 8
_PER_NODE = (
    # 8x200Gb HDR IB per node; 8x100Gb NIC per node; 8xHDR200 IB/node
    re.compile(r"(?P<n>\d+)\s*x\s*(?:HDR|NDR|EDR)?\s*(?P<gbit>\d+)\s*(?:Gb|G|IB|$)?", re.I),
    # RoCE 1600Gbps/node
    re.compile(r"(?P<n>)(?P<gbit>\d+)\s*Gb(?:ps|/s)?\s*(?:/|per)\s*node", re.I),
)
_PER_DEVICE = re.compile(r"(?P<gbit>\d+)\s*Gb(?:ps|/s)\b[^,]*per GPU", re.I)
_NETWORK_WORDS = re.compile(r"node|IB|RoCE|Omni|NIC|RDMA|network", re.I)
_PRECISIONS = (
    (re.compile(r"fp4"), "fp4"),
    (re.compile(r"fp8|float8"), "fp8"),
    (re.compile(r"bf16|bfloat16|amp"), "bf16"),
    (re.compile(r"fp16|float16|half"), "fp16"),
    (re.compile(r"fp32|float32|tf32"), "fp32"),
)
_PRODUCTS = ("matmul_flops", "half_flops")
"""Columns of `Plans` with the rate of matrix products."""
_STAGES = (
    ("grad_op", 2.0),  # FSDP's SHARD_GRAD_OP
    ("no_shard", 0.0),
    ("shard|fsdp", 3.0),
    ("dist-opt|distributed.?opt", 1.0),
    ("^(ddp|none|no)$", 0.0),
)
_NUMBERED = re.compile(r"(?:zero|stage|z)?[ _-]*(?:stage[ _-]*)?([0-3])(?:\.0)?(?!\d)")
"""A stage as people write it: 3, zero-3, ZeRO3, stage 2."""
_ANY_TORCH = re.compile(
    r"\bhf\b|hugging|transformers|accelerate|trainer|\btrl\b|lightning|axolotl|llama.?factory"
    r"|^(py)?torch$"
)
"""Names of what runs on the assumed framework, FSDP or DDP, as the stage tells."""
_YES = re.compile(r"^(yes|true|on|1(\.0)?|full|block|uniform)\b|checkpoint")
_NO = frozenset({"none", "no", "false", "off", "0", "0.0", "selective:[]"})
_STAGE_3_COPIES = 8.0
"""Bytes that stage 3 moves per 16-bit gradient: into its bucket, and there to divide it. Source:
DeepSpeed, runtime/zero/stage3.py and runtime/comm/coalesced_collectives.py."""
_QLORA_BYTES = 0.52
"""Bytes of a frozen weight in 4 bits with its scales. Source: Dettmers et al., QLoRA
(arXiv:2305.14314), section 3."""
_LORA_SHARE = 0.01
"""Trained parameters of usual adapters over all: rank 8 to 64 on every matrix."""


@dataclass(frozen=True, kw_only=True)
class ReadRow:
    """One row as the model takes it."""

    columns: dict[str, float]
    """Columns of `Plans`, among others; those that are left out have their defaults."""
    fewest_logit_bytes: float
    """Column `logit_bytes` at least, where the row leaves open how its loss is computed."""
    framework: str
    """Name of its `Traits`."""
    accelerator: Accelerator


def read_row(cells: Cells, table: Sequence[Accelerator]) -> ReadRow:
    """Read one row.

    Raises:
        RowError: It cannot be predicted.
    """
    traits = _framework(cells)
    model = read_model(cells)
    layout = _layout(cells, traits, model)
    accelerator = _accelerator(cells, table)
    precision = _precision(cells, accelerator)
    if traits.splits_local_batch and layout["pp"] > 1:
        # There, the pipeline's micro-batches are single samples of what a rank is given.
        layout["grad_accum"] *= layout["micro_batch"]
        layout["micro_batch"] = 1.0
        cells.assume("micro_batch", 1, f"{traits.name} splits the local batch")
    columns = {
        # Fetched module by module, where the framework says nothing else.
        "gather_calls_per_layer": 4.0,
        **model,
        **layout,
        **_device(cells, accelerator, precision, layout["n_gpus"]),
        **traits.columns,
        **(
            {"attention_speed": traits.attention_on_hopper}
            if "fp8" in accelerator.peak_flops
            else {}
        ),
        **(traits.low_precision_columns if precision in ("fp8", "fp4") else {}),
        **(SCALINGS[scaling_of(cells)] if precision in ("fp8", "fp4") else {}),
        **(traits.fp16_columns if precision == "fp16" else {}),
        **_dtypes(precision, traits),
        **_zero(cells, traits, layout, precision),
        **_kept(cells, traits, model),
    }
    is_hopper = "fp8" in accelerator.peak_flops
    columns |= choice_columns(cells, columns, is_hopper=is_hopper, framework=traits.name)
    if model["n_experts"] > 1:
        columns |= mixture_columns(cells, layout, traits.mixture_columns)
    if model["gated_mlp"]:
        columns["has_dropout"] = 0.0  # such models are trained without
    if "lora" in cells.text("task").lower():
        columns["trained_share"] = _LORA_SHARE
        cells.assume("trained_share", _LORA_SHARE, "LoRA")
        is_quantized = "qlora" in cells.text("task").lower()
        frozen_bytes = _QLORA_BYTES if is_quantized else columns.get("activation_bytes", 2.0)
        columns["weight_bytes"] = min(frozen_bytes, columns.get("weight_bytes", frozen_bytes))
    if columns["zero_stage"] < 3:
        columns["layer_wise_gather"] = 0.0
    if columns["zero_stage"] < 1:
        columns["flat_buffers"] = columns["accumulate_bytes"] = 0.0
    if columns["zero_stage"] == 3:
        columns["accumulate_bytes"] = columns.get("cuts_by_rank", 0.0) * _STAGE_3_COPIES
    if columns["vp"] == 1:
        columns["overlap_sends"] = 0.0
    logit_bytes = columns.get("logit_bytes", float(Plans.logit_bytes))
    return ReadRow(
        columns=columns,
        fewest_logit_bytes=fewest_logit_bytes(cells, logit_bytes),
        framework=traits.name,
        accelerator=accelerator,
    )


def _framework(cells: Cells) -> Traits:
    framework = cells.text("framework") or ASSUMED
    if cells.is_blank("framework"):
        cells.assume("framework", framework)
    traits = traits_of(framework)
    if traits is None and _ANY_TORCH.search(framework.lower()):
        stage = (cells.text("zero_equiv") or cells.text("zero_stage")).lower()
        runs_on = "fsdp" if "shard" in stage or "fsdp" in stage else "ddp"
        numbered = _NUMBERED.match(stage)
        runs_on = ASSUMED if numbered and numbered[1] != "0" else runs_on
        cells.assume("framework", runs_on, "as zero_stage tells")
        traits = traits_of(runs_on)
    if traits is None:
        raise RowError(f"framework={framework!r} is not known")
    return traits


def _layout(cells: Cells, traits: Traits, model: Mapping[str, float]) -> dict[str, float]:
    """Degrees; their product is the world, and they divide what they split."""
    n_gpus = cells.count("n_gpus", most=_MAX_DEVICES)
    tp, pp = cells.count("tp", 1.0), cells.count("pp", 1.0)
    vp, cp = cells.count("vp", 1.0), cells.count("cp", 1.0)
    ulysses = _ulysses(cells)
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
    if pp * vp > layers:
        raise RowError(f"pp {pp:g} x vp {vp:g} is more than n_layers={layers:g}")
    if seq_len % (cp * ulysses):
        raise RowError(f"seq_len={seq_len:g} is no multiple of cp x ulysses = {cp * ulysses:g}")
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
        **_stages(cells, layers, pp, vp),
        **_expert_ranks(cells, model, n_gpus, tp, pp),
    }


def _expert_ranks(
    cells: Cells, model: Mapping[str, float], n_gpus: float, tp: float, pp: float
) -> dict[str, float]:
    """Check the ranks of experts: ep x etp x pp divide the world, and etp an expert.

    Experts are split by tp where a row leaves it open, unless only whole ones fit the world.
    """
    ep, ffn_hidden = model["ep"], model["ffn_hidden"]
    if ep == 1:
        return {}
    etp = model.get("expert_tp", tp)
    columns = {}
    if "expert_tp" not in model and n_gpus % (ep * etp * pp):
        cells.assume("etp", 1, f"ep {ep:g} x tp {tp:g} x pp {pp:g} do not fit n_gpus")
        etp = columns["expert_tp"] = 1.0
    split = ep * etp * pp
    if n_gpus % split:
        raise RowError(
            f"ep {ep:g} x etp {etp:g} x pp {pp:g} = {split:g} does not divide n_gpus={n_gpus:g}"
        )
    if ffn_hidden % etp:
        raise RowError(f"ffn_hidden={ffn_hidden:g} is no multiple of etp={etp:g}")
    return columns


def _stages(cells: Cells, layers: float, pp: float, vp: float) -> dict[str, float]:
    """Layers of the stages where they do not split evenly.

    Engines then leave layers out of the ends, which have the embedding and the loss besides:
    Megatron's `--account-for-*-in-pipeline-split`, `--decoder-last-pipeline-num-layers`, and
    layouts.
    """
    if layers % (pp * vp) == 0:
        return {}
    if layers % pp == 0:
        cells.assume("stages", "a layout", f"{layers:g} layers on pp {pp:g} x vp {vp:g}")
        return {}
    most = math.ceil(layers / pp)
    n_missing = most * pp - layers
    first = most - float(n_missing >= 2)
    last = most - float(min(n_missing, 2 if n_missing > 2 else 1))
    cells.assume("stages", f"{first:g} to {most:g} to {last:g} layers", f"{layers:g} on pp {pp:g}")
    return {"most_stage_layers": most, "first_stage_layers": first, "last_stage_layers": last}


def _ulysses(cells: Cells) -> float:
    found = re.fullmatch(r"ulysses\s*=\s*(\d{1,9})", cells.text("sp").lower())
    degree = float(found[1]) if found else 1.0
    if degree < 1:
        raise RowError(f"sp={cells.text('sp')}: below one")
    return degree


def _sequence_parallel(cells: Cells, traits: Traits, tp: float) -> float:
    text = cells.text("sp").lower()
    if tp == 1 or text.startswith("ulysses"):
        return 0.0
    if text in {"yes", "true", "1", "1.0", "on"}:
        return 1.0
    if text in {"no", "false", "0", "0.0", "off"}:
        return 0.0
    if text:
        raise RowError(f"sp={text!r} is not yes, no or ulysses=N")
    cells.assume("sp", "yes" if traits.sequence_parallel else "no", f"as {traits.name}")
    return float(traits.sequence_parallel)


def _accelerator(cells: Cells, table: Sequence[Accelerator]) -> Accelerator:
    if cells.is_blank("gpu_type"):
        raise RowError("gpu_type is blank")
    memory_gib = None if cells.is_blank("gpu_mem_gb") else cells.number("gpu_mem_gb")
    try:
        found = find_accelerator(cells.text("gpu_type"), memory_gib=memory_gib, table=table)
    except FleetError as error:
        raise RowError(f"{error.message}; {error.hint}") from error
    if memory_gib is None:
        cells.assume("gpu_mem_gb", found.memory_bytes / 2**30, found.name)
    return found


def _precision(cells: Cells, accelerator: Accelerator) -> str:
    text = cells.text("precision").lower()
    default = "bf16" if "fp8" in accelerator.peak_flops else "fp16"
    if cells.is_blank("precision"):
        cells.assume("precision", default)
    spelled = default if cells.is_blank("precision") else text
    precision = next((name for pattern, name in _PRECISIONS if pattern.search(spelled)), None)
    if precision is None:
        raise RowError(f"precision={text!r} is not fp32, fp16, bf16, fp8 or fp4")
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
    if precision == "fp32" and "tf32" in cells.text("precision").lower():
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
    if precision == "fp8" and "rowwise" in cells.text("precision"):
        cells.assume("matmul_flops", accelerator.half, "scales by row gain nothing")
        return wide
    return narrow


def _network(
    cells: Cells, bytes_per_s: float, accelerator: Accelerator, per_node: float
) -> dict[str, float]:
    """Change of a device's share by the cell `interconnect`; blank, it is as in the table."""
    text = cells.text("interconnect")
    device = _PER_DEVICE.search(text)
    if device:
        return _described(cells, float(device["gbit"]) * _GIGABIT)
    if _NETWORK_WORDS.search(text):
        for pattern in reversed(_PER_NODE):
            found = pattern.search(text)
            if found:
                links = float(found["n"] or 1)
                return _described(cells, links * float(found["gbit"]) * _GIGABIT / per_node)
    cells.assume("network", f"{bytes_per_s / 1e9:g} GB/s per device", accelerator.name)
    return {}


def _described(cells: Cells, bytes_per_s: float) -> dict[str, float]:
    if not 0 < bytes_per_s < math.inf:
        raise RowError(f"interconnect={cells.text('interconnect')!r}: no rate above 0")
    return {"network_bytes_per_s": bytes_per_s, **link_columns("network", None)}


def _dtypes(precision: str, traits: Traits) -> dict[str, float]:
    if precision == "fp32":
        of_elements = ("weight", "grad", "reduce", "gather", "activation", "product_input")
        return {**{f"{name}_bytes": 4.0 for name in of_elements}, "optimizer_bytes": 8.0}
    is_fp8_gather = precision in ("fp8", "fp4") and "layer_wise_gather" in traits.columns
    return {"gather_bytes": 1.0} if is_fp8_gather else {}


def _zero(
    cells: Cells, traits: Traits, layout: Mapping[str, float], precision: str
) -> dict[str, float]:
    text = cells.text("zero_stage").lower()
    stated = cells.text("zero_equiv").lower() or text
    ranks = layout["dp"] * layout["cp"] * layout["ulysses"]
    found = _NUMBERED.match(stated)
    stage = next((stage for words, stage in _STAGES if re.search(words, stated)), None)
    if found:
        stage = float(found[1])
    elif not stated:
        stage = float(traits.zero_stage)
        cells.assume("zero_stage", traits.zero_stage, f"as {traits.name}")
    elif stage is None:
        raise RowError(f"zero_stage={text!r} is not 0 to 3, fsdp or ddp")
    group = re.search(r"group (\d+)", text)
    shard_group = 0.0
    if group:
        shard_group = min(float(group[1]), ranks)
        if shard_group < 1 or ranks % shard_group:
            raise RowError(f"zero_stage={text!r}: groups of {group[1]} do not tile dp={ranks:g}")
    columns = {"zero_stage": stage, "shard_group": shard_group}
    if stage >= 2:
        columns["reduces_every_micro_batch"] = 1.0
    if stage == 3:
        # Stage 3 overlaps by itself; so does the engine that runs it without a pipeline. Not so
        # releases of 2021, which runs of plain DeepSpeed in fp16 are taken for.
        overlaps = 1.0 if precision != "fp16" else traits.fp16_columns.get("overlap_gather", 1.0)
        columns["overlap_reduce"] = columns["overlap_gather"] = overlaps
    return columns


def _kept(cells: Cells, traits: Traits, model: Mapping[str, float]) -> dict[str, float]:
    """Columns of recomputation and offload."""
    text = cells.text("recompute").lower()
    if not text:
        cells.assume("recompute", traits.recompute, f"as {traits.name}")
        text = traits.recompute
    every = re.search(r"every[ _-]?(\d{1,9})\b", text)
    recompute = Recompute.NONE
    if every or _YES.search(text):
        recompute = Recompute.FULL
    elif lists_modules(text) or (text.startswith("selective") and not text.endswith(":[]")):
        recompute = Recompute.OPERATORS if traits.selective_operators else Recompute.SELECTIVE
    elif text not in _NO:
        if "not set" not in text:
            raise RowError(f"recompute={text!r} is not none, selective, full or every_N")
        cells.assume("recompute", "none", text)
    if text.endswith("?"):
        cells.assume("recompute", text.rstrip("?"))
    return {
        "recompute": float(recompute),
        **(recomputed_modules(cells) if recompute == Recompute.SELECTIVE else {}),
        "recompute_every": float(every[1]) if every and int(every[1]) > 0 else 1.0,
        **_offload(cells, model),
    }


def _offload(cells: Cells, model: Mapping[str, float]) -> dict[str, float]:
    text = cells.text("offload").lower()
    if not text or "not set" in text:
        cells.assume("offload", "none", text)
        return {}
    if text in {"none", "no", "false"}:
        return {}
    host_share = re.fullmatch(r"(?:cpu[ (]*)?optimizer[ (]*(\d{1,3})\s*%\)*", text)
    if host_share:
        return {"optimizer_host_share": min(1.0, float(host_share[1]) / 100.0)}
    share = re.search(r"act\w*[^=]*alpha\s*=\s*(\d*\.?\d+)", text)
    if share:
        return {"offloaded_activations": min(1.0, float(share[1]))}
    layers = re.search(r"act\w*[^=]*layers\s*=\s*(\d+)|act\w* of (\d+) layers", text)
    if layers:
        return {
            "offloaded_activations": min(1.0, float(layers[1] or layers[2]) / model["n_layers"])
        }
    if text.startswith("act") and not re.search("optim|param", text):
        cells.assume("offloaded_activations", 1, text)
        return {"offloaded_activations": 1.0}
    tier = Tier.NVME if "nvme" in text else Tier.CPU if "cpu" in text else None
    if tier is None:
        raise RowError(f"offload={text!r} names neither cpu nor nvme")
    if "full" in text:
        cells.assume("offloaded_activations", 1, text)
    has_params = "param" in text
    has_optimizer = "optim" in text or not has_params
    return {
        "optimizer_tier": float(tier) if has_optimizer else 0.0,
        "param_tier": float(tier) if has_params else 0.0,
        "offloaded_activations": float("full" in text),
    }
