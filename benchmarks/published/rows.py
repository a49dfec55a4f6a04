"""Rows of published tables, in the spelling of `autotune estimate --rows`.

Results are never looked at: only the model, the hardware and the layout are read. What a row
leaves open or says in no known word is filled and listed; a row that nobody can predict gets the
reason.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.base.errors import FleetError
from autotune.cost.cells import RowError
from autotune.cost.plans import LoggedStage
from autotune.cost.row import LINKS, METERS
from autotune.cost.table import TableRows
from autotune.cost.table import rows_to_plans as strict_rows_to_plans
from autotune.cost.traits import ASSUMED, FRAMEWORKS, RECOMPUTED_MODULES
from autotune.devices.accelerators import Accelerator, find_accelerator

from .cells import PublishedCells
from .model import model_cells, preset_shape
from .settings import mixture_cells, scaling_of
from .words import (
    AGE,
    FREED_GRADS,
    HUGGING_FACE,
    NOTED,
    NUMBERED_STAGE,
    PURE,
    RELEASE_IN_NOTES,
    REPEATED,
    STAGE_LAYOUT,
    STAGES,
    TILED_MLP,
    WRITTEN_SCORES,
    framework_word,
    word_of,
)

RESULT_COLUMNS = frozenset(
    {"step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "iter_s", "mfu_pct", "hfu_pct"}
    | {"samples_per_s", "peak_mem_gb", "status"}
)
"""Columns of results, which are never read. Of `notes`, words about the model and its settings
are."""
_NUMBERS = ("seq_len", "n_gpus", "gpus_per_node", "tp", "pp", "vp", "cp", "dp")
_OWN_COLUMNS = ("zero_equiv", "peak_mem_unit", "params_b")
"""Columns that `autotune` does not have."""
_SEQ_LEN, _OLD_SEQ_LEN = 4096, 2048
"""Tokens of a sample where a row does not say: today's, and those of V100's days."""
_BERT_SEQ_LEN = 512
"""Positions of BERT and what came of it: google-research/bert, bert_config.json."""
_PER_NODE = (
    # 8x200Gb HDR IB per node; 8x100Gb NIC per node; 8xHDR200 IB/node
    re.compile(r"(?P<n>\d+)\s*x\s*(?:HDR|NDR|EDR)?\s*(?P<gbit>\d+)\s*(?:Gb|G|IB|$)?", re.I),
    # RoCE 1600Gbps/node
    re.compile(r"(?P<n>)(?P<gbit>\d+)\s*Gb(?:ps|/s)?\s*(?:/|per)\s*node", re.I),
)
_PER_DEVICE = re.compile(r"(?P<gbit>\d+)\s*Gb(?:ps|/s)\b[^,]*per GPU", re.I)
_NETWORK_WORDS = re.compile(r"node|IB|RoCE|Omni|NIC|RDMA|network", re.I)
_UNPACKED = re.compile(r"\b(not |un)packed\b|only the limit", re.I)
_BETWEEN_EXPERT_RANKS = re.compile(r"deep-?ep|hybrid-?ep", re.I)
_MOST_LINKS, _MOST_GBIT = 9999, 999_999
_YES = re.compile(r"^(yes|true|on|1(\.0)?|full|block|uniform)\b|checkpoint")
_ADAPTED_MLP = re.compile(r"all[- _]linear|gate_proj|up_proj|\bw1\b|\bc_fc\b|linear_fc1|\bmlp\b")
_RANK = re.compile(r"\br(?:ank)?\s*[=:]?\s*0*([1-9]\d{0,3})\b")
_UNPACKED_IN_TORCH = "20"
"""Bytes moved per 4-bit weight where shifts, masks, zero points and scales are operations of
torch. Source: AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_cuda.py."""
_NO = frozenset({"none", "no", "false", "off", "0", "0.0", "selective:[]"})


@dataclass(frozen=True, kw_only=True)
class StrictRow:
    """A published row as `autotune` spells it."""

    cells: Mapping[str, str]
    """Every column of the row, those of the run in the strict spelling."""
    assumed: tuple[str, ...]
    reason: str
    """Why it cannot be spelled; empty where it can."""


def rows_to_plans(rows: Sequence[Mapping[str, str]], table: Sequence[Accelerator]) -> TableRows:
    """Read each row, column -> text; columns that are not known are left alone."""
    spelled = strict_rows(rows)
    read = strict_rows_to_plans([{} if row.reason else row.cells for row in spelled], table)
    pairs = list(zip(spelled, read.reasons, read.assumed, strict=True))
    lengths = [_is_length_open(PublishedCells(rows[position])) for position in read.positions]
    return dataclasses.replace(
        read,
        open={**read.open, "seq_len": np.array(lengths, bool)},
        reasons=tuple(row.reason or reason for row, reason, _ in pairs),
        assumed=tuple(row.assumed + assumed for row, _, assumed in pairs),
    )


def strict_rows(rows: Sequence[Mapping[str, str]]) -> list[StrictRow]:
    """Each row in the strict spelling, or the reason why it has none."""
    return [_spelled(row) for row in _resolved(rows)]


def _spelled(row: Mapping[str, str]) -> StrictRow:
    cells = PublishedCells({k: v for k, v in row.items() if k not in RESULT_COLUMNS})
    found: dict[str, str] = {k: v for k, v in row.items() if k not in _OWN_COLUMNS}
    if found.get("status", "").lower() == "failed":
        found["status"] = ""  # of no known cause: neither a time nor what memory asks for
    reason = ""
    try:
        found |= _cells_of(cells)
    except RowError as error:
        reason = str(error)
    return StrictRow(cells=found, assumed=tuple(cells.assumed), reason=reason)


def _cells_of(cells: PublishedCells) -> dict[str, str]:
    model = model_cells(cells)
    framework = _framework(cells)
    found = {
        **model,
        "framework": framework,
        # RTX4090 is RTX-4090.
        "gpu_type": re.sub(r"(?<=RTX)(?=[A-Z]?\d)", "-", cells.text("gpu_type")),
        "gpu_mem_gb": _number(cells, "gpu_mem_gb"),
        **{key: _number(cells, key) for key in _NUMBERS},
        **_layout_chunks(cells),
        **_parallel(cells),
        **_stage(cells),
        "recompute": _recompute(cells),
        **_offload(cells, model),
        **_task(cells),
        **_words(cells),
        "software": _software(cells),
        **_tiles(cells, model),
        **_memory(cells, framework),
        "precision": _precision(cells),
        "scaling": scaling_of(cells),
    }
    if framework == ASSUMED and found["precision"] not in ("", "fp16", "pure-fp16"):
        # Trainers' own files of DeepSpeed, which such runs mostly have, set overlap_comm.
        found |= {"overlap_reduce": "1", "overlap_gather": "1"}
    found |= _batch(cells, found)
    found["interconnect"] = _network(cells)
    if float(found["n_experts"] or 0) > 1 or _is_mixture(model):
        found |= mixture_cells(cells, chunks_overlap=found["pp"] in ("", "1") or _chunks(found))
        found |= _expert_ranks(cells, found)
    return found


def _is_mixture(model: Mapping[str, str]) -> bool:
    return bool(model["model"]) and preset_shape(model["model"]).n_experts > 1


def _chunks(found: Mapping[str, str]) -> bool:
    return found["vp"] not in ("", "1")


def _number(cells: PublishedCells, key: str) -> str:
    if cells.is_blank(key):
        return ""
    value = cells.number(key)
    return str(int(value)) if value == int(value) else repr(value)


def _layout_chunks(cells: PublishedCells) -> dict[str, str]:
    """Cell `vp` where the notes have a layout of the stages: its chunks over the stages."""
    layout = STAGE_LAYOUT.search(cells.text("notes"))
    if layout is None or cells.is_blank("pp"):
        return {}
    chunks = REPEATED.sub(lambda part: part[1] * int(part[2]), layout[1]).count("|") + 1
    return {"vp": str(chunks // int(cells.count("pp")))}


def _framework(cells: PublishedCells) -> str:
    if cells.is_blank("framework"):
        return ""
    text = cells.text("framework")
    word = framework_word(text)
    if word:
        return word
    stage = (cells.words("zero_equiv") or cells.words("zero_stage")).lower()
    numbered = NUMBERED_STAGE.match(stage)
    splits = any(not cells.is_blank(key) and cells.count(key) > 1 for key in ("tp", "pp"))
    runs_on = "fsdp" if "shard" in stage or "fsdp" in stage or "fsdp" in text.lower() else "ddp"
    if numbered and numbered[1] != "0":
        runs_on = ASSUMED
    if word is None and splits:
        runs_on = "megatron"
    why = "as zero_stage tells" if word == "" else f"{text} is not known"
    cells.assume("framework", runs_on, why)
    return runs_on


def _parallel(cells: PublishedCells) -> dict[str, str]:
    """Cells `sp` and `dp`."""
    text = cells.words("sp")
    ulysses = re.fullmatch(r"ulysses\s*=\s*(\d{1,9})", text)
    if ulysses and int(ulysses[1]):
        sp = f"ulysses={int(ulysses[1])}"
    elif text in {"yes", "true", "1", "1.0", "on"}:
        sp = "yes"
    elif text in {"no", "false", "0", "0.0", "off"}:
        sp = "no"
    else:
        sp = ""
        if text:
            cells.assume("sp", "as the framework", f"{text} is not known")
    return {"sp": sp, "dp": ""}


def _stage(cells: PublishedCells) -> dict[str, str]:
    text = cells.text("zero_stage").lower()
    stated = cells.words("zero_equiv") or cells.words("zero_stage")
    numbered = NUMBERED_STAGE.match(stated)
    stage = numbered[1] if numbered else None
    stage = stage or next((word for p, word in STAGES if re.search(p, stated)), None)
    if stage is None and stated:
        cells.assume("zero_stage", "as the framework", f"{stated} is not known")
    group = re.search(r"group (\d{1,9})", text)
    return {"zero_stage": stage or "", "shard_group": group[1] if group else ""}


def _words(cells: PublishedCells) -> dict[str, str]:
    """Cells whose words stand in `WORDS`; one that is not known changes nothing."""
    found = {}
    for column in ("loss", "attention", "kernels", "optimizer"):
        text = cells.words(column) or ("none" if cells.text(column).lower() == "none" else "")
        word = word_of(column, text) if text and not cells.is_blank(column) else ""
        if word is None:
            cells.assume(column, "as the framework", f"{text} is not known")
        found[column] = word or ""
    chunk = re.search(r"(\d{1,9})", cells.text("loss"))
    if found["loss"] == "chunked" and chunk:
        found["loss"] = f"chunked {max(1, int(chunk[1]))}"
    if found["loss"] == "fused" and HUGGING_FACE.search(cells.text("framework").lower()):
        found["loss"] = "fused after a cast"
    if WRITTEN_SCORES.search(cells.text("notes").lower()):
        found["attention"] = "eager"
    if FREED_GRADS.search(f"{cells.text('optimizer')} {cells.text('notes')}".lower()):
        found["grad_bytes"] = "0"
    for words, noted in NOTED:
        if words.search(cells.text("notes").lower()):
            found |= noted
    return found


def _software(cells: PublishedCells) -> str:
    """Age of the software: a year or a container's release, which notes may name."""
    told = AGE.search(cells.text("software"))
    noted = RELEASE_IN_NOTES.search(cells.text("notes").lower())
    return told[0] if told else noted[1] if noted else ""


def _tiles(cells: PublishedCells, model: Mapping[str, str]) -> dict[str, str]:
    texts = ("kernels", "loss", "settings", "notes", "framework")
    if not TILED_MLP.search(" ".join(cells.text(name) for name in texts).lower()):
        return {}
    return {"mlp_tile_tokens": model["hidden"] or str(preset_shape(model["model"]).hidden)}


def _memory(cells: PublishedCells, framework: str) -> dict[str, str]:
    """What the row's peak was read from: as its unit says, else what the framework logs."""
    usual = next(traits for traits in FRAMEWORKS if traits.word == (framework or ASSUMED))
    unit = cells.words("peak_mem_unit")
    meter = word_of("memory_meter", unit)
    if cells.text("memory_meter") in METERS:
        meter = cells.text("memory_meter")
    elif meter != "device" and "peak_mem_unit" in cells:
        why = "by peak_mem_unit" if meter else f"as {usual.name}"
        meter = meter or next(word for word, of in METERS.items() if of == usual.meter)
        if meter != "device":
            cells.assume("pred_peak_memory_gb", meter, why)
    stage = usual.watched_stage
    if "last rank" in unit:
        stage = LoggedStage.LAST
    elif re.search(r"rank 0\b|rank-0", unit):
        stage = LoggedStage.FIRST
    elif re.search("max(imum)? (over|of)|all ranks", unit):
        stage = LoggedStage.FULLEST
    return {"memory_meter": meter or "", "watched_stage": str(int(stage))}


def _precision(cells: PublishedCells) -> str:
    text = cells.words("precision")
    word = word_of("precision", text) if text else ""
    if word is None:
        cells.assume("precision", "as the device", f"{text} is not known")
    in_precision, in_notes = PURE
    if in_precision.search(text) or in_notes.search(cells.text("notes").lower()):
        word = word or ("bf16" if "fp8" in _peaks(cells) else "fp16")
        return f"pure-{word}" if word in ("bf16", "fp16") else word
    return word or ""


def _peaks(cells: PublishedCells) -> Mapping[str, float]:
    """Peaks of the row's device by precision; none where it is not known."""
    try:
        return find_accelerator(cells.text("gpu_type")).peak_flops
    except FleetError:
        return {}


def _task(cells: PublishedCells) -> dict[str, str]:
    """Cells of adapters: their rank, what they are beside, and how frozen weights are unpacked."""
    task = cells.words("task")
    if "lora" not in task:
        return {"task": ""}
    texts = ("task", "settings", "kernels", "notes")
    told = " ".join(cells.text(name) for name in texts).lower()
    rank = _RANK.search(told)
    found = {"task": "qlora" if "qlora" in task else "lora", "lora_rank": rank[1] if rank else ""}
    found["lora_dropout"] = "0.05"  # as in the examples of peft
    # Who adapts the MLP says so: peft's own choice for such models is of the attention alone.
    found["adapts_mlp"] = "1" if _ADAPTED_MLP.search(told) else "0"
    if "gptq" in told and not re.search("triton|exllama|marlin", told):
        found["dequantized_bytes"] = _UNPACKED_IN_TORCH
    return found


def _recompute(cells: PublishedCells) -> str:
    text = cells.text("recompute").lower()
    if not text or (cells.is_blank("recompute") and text != "none"):
        return ""
    if text.endswith("?"):
        cells.assume("recompute", text.rstrip("?"))
    every = re.search(r"every[ _-]?0*([1-9]\d{0,8})\b", text)
    if every:
        return f"every_{every[1]}"
    if _YES.search(text) or text.startswith("every"):
        return "full"
    words = re.findall(r"[a-z_]+", text)
    named = [word for word in words if word in RECOMPUTED_MODULES]
    listed = re.search(r"\[(.*)\]", text)
    if named and (text.startswith("selective") or len(named) == len(words)):
        lost = set(re.findall(r"[a-z_]+", listed[1])) - set(named) if listed else set()
        if lost:
            cells.assume("recompute", ", ".join(named), f"{', '.join(sorted(lost))} is not known")
        return f"selective: [{', '.join(dict.fromkeys(named))}]"
    if text.startswith("selective") and not text.endswith(":[]"):
        return "selective"
    if text not in _NO:
        why = text if "not set" in text else f"{text} is not known"
        cells.assume("recompute", "none", why)
    return "none"


def _offload(cells: PublishedCells, model: Mapping[str, str]) -> dict[str, str]:
    text = cells.text("offload").lower()
    if text in {"none", "no", "false"}:
        return {"offload": "none"}
    if cells.is_blank("offload") or "not set" in text:
        return {"offload": ""}
    share = re.fullmatch(r"(?:cpu[ (]*)?optimizer[ (]*(\d{1,3})\s*%\)*", text)
    if share:
        of_optimizer = min(1.0, float(share[1]) / 100.0)
        return {"offload": "none", "optimizer_host_share": f"{of_optimizer:g}"}
    alpha = re.search(r"act\w*[^=]*alpha\s*=\s*(\d*\.?\d+)", text)
    layers = re.search(r"act\w*[^=]*layers\s*=\s*(\d+)|act\w* of (\d+) layers", text)
    if alpha or layers:
        if alpha:
            kept = min(1.0, float(alpha[1]))
        else:
            assert layers is not None
            n_layers = float(model["n_layers"] or 1e9)
            kept = min(1.0, float(layers[1] or layers[2]) / n_layers)
        return {"offload": "none", "offloaded_activations": repr(kept)}
    if re.match("act|checkpoint", text) and not re.search("optim|param", text):
        cells.assume("offloaded_activations", 1, text)
        return {"offload": "none", "offloaded_activations": "1"}
    tier = "nvme" if "nvme" in text else "cpu" if "cpu" in text or "host" in text else None
    if tier is None and re.search(r"optim|param|yes|true|^on$", text):
        tier = "cpu"
        cells.assume("offload", "cpu", f"{text} names no place")
    if tier is None:
        cells.assume("offload", "as the framework", f"{text} is not known")
        return {"offload": ""}
    has_params = "param" in text
    has_optimizer = "optim" in text or not has_params
    what = "+".join(["optimizer"] * has_optimizer + ["param"] * has_params)
    found = {"offload": f"{tier}({what})"}
    if re.search(r"full|\bact|checkpoint", text):
        cells.assume("offloaded_activations", 1, text)
        found["offloaded_activations"] = "1"
    return found


def _batch(cells: PublishedCells, found: Mapping[str, str]) -> dict[str, str]:
    """Samples of a micro-batch and of a step, tokens of a sample: filled where they are blank.

    A step whose last micro-batch is smaller takes as long as one whose micro-batches are alike.
    """
    split = 1.0
    for key in ("tp", "pp", "cp"):
        split *= float(found[key] or 1)
    split *= float(found["sp"].removeprefix("ulysses=")) if "ulysses" in found["sp"] else 1.0
    dp = cells.count("n_gpus") / split
    stated = 0.0 if cells.is_blank("dp") else cells.count("dp")
    if dp != int(dp):
        return {}  # the layout has no ranks for it, which is what the row is told
    if stated and stated != dp:
        cells.assume("dp", dp, f"n_gpus over the other degrees; the row has {stated:g}")
    if cells.is_blank("micro_batch"):
        cells.assume("micro_batch", 1)
        micro_batch = 1.0
    else:
        micro_batch = cells.count("micro_batch")
    stages = float(found["pp"] or 1)
    if cells.is_blank("global_batch"):
        global_batch = micro_batch * dp * stages
        cells.assume("global_batch", global_batch, "as few micro-batches as fill the pipeline")
    else:
        global_batch = cells.count("global_batch", most=1e12)
        whole = math.ceil(global_batch / (micro_batch * dp)) * micro_batch * dp
        if whole != global_batch:
            cells.assume("global_batch", whole, f"{global_batch:g} in micro-batches of equal size")
            global_batch = whole
    return {
        "dp": str(int(dp)) if stated else "",
        "micro_batch": str(int(micro_batch)),
        "global_batch": str(int(global_batch)),
        **_seq_len(cells, found["model"]),
    }


def _is_length_open(cells: PublishedCells) -> bool:
    """Whether nobody says how long samples are, or no more than what they may have at most."""
    return cells.is_blank("seq_len") or bool(_UNPACKED.search(cells.text("notes")))


def _seq_len(cells: PublishedCells, model: str) -> dict[str, str]:
    """Tokens of a sample where the row has none: no more than the model's positions."""
    if not cells.is_blank("seq_len"):
        return {}
    is_old = re.search(r"V100|P100|T4", cells.text("gpu_type")) is not None
    seq_len = _OLD_SEQ_LEN if is_old else _SEQ_LEN
    is_bert = "bert" in cells.text("model_name").lower()
    longest = _BERT_SEQ_LEN if is_bert else preset_shape(model).max_seq_len if model else None
    seq_len = min(seq_len, longest or seq_len)
    cells.assume("seq_len", seq_len, "shorter at the low end: a step's time depends on it")
    return {"seq_len": str(seq_len)}


def _network(cells: PublishedCells) -> str:
    """Links of a node: `8x200Gb`; empty where the text names none."""
    text = cells.text("interconnect")
    per_device = _PER_DEVICE.search(text)
    if per_device:
        return _links(_per_node(cells), float(per_device["gbit"]))
    if _NETWORK_WORDS.search(text) or LINKS.fullmatch(text):
        for pattern in reversed(_PER_NODE):
            found = pattern.search(text)
            if found:
                return _links(float(found["n"] or 1), float(found["gbit"]))
    return ""


def _per_node(cells: PublishedCells) -> float:
    if not cells.is_blank("gpus_per_node"):
        return min(cells.count("gpus_per_node"), cells.count("n_gpus"))
    try:
        usual = find_accelerator(cells.text("gpu_type")).devices_per_node
    except FleetError:
        usual = 8  # the row is refused for its device
    return min(float(usual), cells.count("n_gpus"))


def _links(count: float, gbit: float) -> str:
    is_one = 0 < count <= _MOST_LINKS and 0 < gbit <= _MOST_GBIT
    return f"{count:.0f}x{gbit:.0f}Gb" if is_one else ""


def _expert_ranks(cells: PublishedCells, found: Mapping[str, str]) -> dict[str, str]:
    """Ranks of experts where notes name a dispatcher alone; whole ones where they do not fit."""
    ep, tp, pp = (float(found[key] or 1) for key in ("ep", "tp", "pp"))
    if not found["ep"] and _BETWEEN_EXPERT_RANKS.search(cells.text("notes")):
        n_experts = int(found["n_experts"] or preset_shape(found["model"]).n_experts)
        ep = float(math.gcd(n_experts, int(cells.count("n_gpus") / (tp * pp))))
        cells.assume("ep", ep, "as many ranks as share out the experts, by their dispatcher")
        return {"ep": f"{ep:g}", "etp": found["etp"] or "1"}
    if found["etp"] or ep == 1 or cells.count("n_gpus") % (ep * tp * pp) == 0:
        return {}
    cells.assume("etp", 1, f"ep {ep:g} x tp {tp:g} x pp {pp:g} do not fit n_gpus")
    return {"etp": "1"}


def _resolved(rows: Sequence[Mapping[str, str]]) -> Iterator[Mapping[str, str]]:
    """Rows whose notes say their settings, also where they are those of the row above."""
    above = ""
    for row in rows:
        notes = row.get("notes", "")
        clauses = [clause.strip().lower() for clause in notes.split(";")]
        if "the same" in clauses:
            notes = f"{above}; {notes}"
            row = {**row, "notes": notes}
        above = notes
        yield row
