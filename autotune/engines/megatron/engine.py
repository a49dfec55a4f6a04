"""Megatron-LM: a candidate as a layout, its arguments, and its columns for the cost model.

Nothing of Megatron is imported: its layouts are planned where it is not installed.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.base.data import table_beside
from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.base.templates import canonical_json
from autotune.contract import KnobValue
from autotune.cost.constants import load_constants
from autotune.cost.device import fp4_flops
from autotune.cost.plans import Plans, RowBuffers
from autotune.cost.problem import accelerator_of, fleet_columns, model_columns
from autotune.cost.traits import (
    BLOCKWISE_GAIN_SHARE,
    CAPTURED_SHARES,
    FRAMEWORKS,
    RECOMPUTED_MODULES,
    SCALINGS,
)
from autotune.devices.accelerators import Accelerator, accelerators_with
from autotune.devices.hardware import Environment, cpu_has_bf16
from autotune.engines.base import Engine, RankSettings
from autotune.engines.megatron.arguments import (
    KERNELS,
    SCRIPT_ON_CPU,
    applies,
    arguments_of,
    expert_kernels,
    kernel_arguments,
    layout_arguments,
)
from autotune.engines.megatron.baseline import Notes, changes_in_words, ladder, read_baseline
from autotune.engines.megatron.choices import (
    BALANCED,
    DISPATCHERS,
    FP8,
    FP8_RECIPES,
    GRAPHS,
    OFFLOADED,
    RECOMPUTED,
    has,
)
from autotune.engines.megatron.flags import (
    flags,
    known_release,
    newest_release,
    release_of,
)
from autotune.engines.megatron.knobs import (
    KNOBS,
    LATTICE_KNOBS,
    MORE_KNOBS,
    SHARE,
    columns_of,
    rows_of,
    value_of,
)
from autotune.engines.megatron.layout_rule import holds
from autotune.engines.megatron.layout_task import (
    SHARES_KV_HEADS,
    Columns,
    Counts,
    LayoutTask,
    Truth,
    chunk_layers,
    edge_layers,
    placed,
    stage_layers,
    written_stages,
)
from autotune.engines.megatron.layouts import PLANNED_ALONE, QUARTERS, Layouts, lay_out, modules_of
from autotune.engines.megatron.model_arguments import (
    check_release,
    dense_layers,
    has_attention_biases,
    has_layer_norm,
    has_sinks,
    model_arguments,
)
from autotune.engines.megatron.pretrain_gpt import check_arguments, checkout_of
from autotune.engines.megatron.rules import (
    OF_SOME_RELEASES,
    OF_TRANSFORMER_ENGINE,
    ON_GPU_ALONE,
    RULES,
)
from autotune.engines.megatron.stages import Stages, stages_of, work_of, written
from autotune.engines.releases import is_at_least
from autotune.job.job import DEFAULT_SPACE, PLAN_SPACE, Job
from autotune.job.lengths import FIXED
from autotune.job.model_shape import ModelShape
from autotune.space.candidate import Candidate
from autotune.space.knobs import canonical, describe_candidate, steps_of
from autotune.space.rule import Violation, judge_by
from autotune.space.workload import workload_of
from autotune.trial.engines.megatron import ARGUMENTS_FILE, words_of

PADDED_TO = 128
"""Megatron pads the vocabulary to a multiple of this times tp."""
_MEGATRON = next(traits.columns for traits in FRAMEWORKS if traits.name == "megatron")
_DTYPES: Mapping[str, Mapping[str, float]] = table_beside(__file__, "dtypes.json")
"""Precision -> columns. In fp16 gradients stay in 16 bits, and the optimizer copies its share of
them to 32. Source: NVIDIA/Megatron-LM, docs/user-guide/features/dist_optimizer.md."""
_READ_BACK = (
    *("tp", "pp", "vp", "cp", "ep", "sequence_parallel", "micro_batch"),
    *("distributed_optimizer", "recompute"),
)
"""Knobs that a live engine says of itself by their names."""
_HOPPER = re.compile(r"\b(H100|H200|H800|H20|GH200)")
_OF_ONE_NODE = 8
"""Devices that NVLink joins in one node, at most; more are a rack's."""
_HAS_HYBRIDEP = _HAS_GRAPHS = "0.16"
_BUFFERS = (RowBuffers.NONE, RowBuffers.DEEPEP, RowBuffers.HYBRIDEP, RowBuffers.NONE)
"""Buffers of each of `DISPATCHERS` that stay."""
_LIVE_MORE = {*MORE_KNOBS, "stage_layers"} - {
    *("first_stage_layers", "last_stage_layers", "overlap_grad_reduce", "overlap_param_gather")
}
"""What it says of itself where a candidate has it off its default."""
_SAVED_SHARES = {"qkv_linear": 2.0 / 34.0, "core_attn": 6.0 / 34.0, "attn_proj": 2.0 / 34.0}
"""Part of what a layer of GPT keeps that a module's inputs are. Source: Korthikanti et al.
(arXiv:2205.05198), section 4.1, without the scores."""
_PROCESS_BYTES_ON_CPU = 103e6
"""Memory of a CPU rank beside its training: the median over every second row of
results/recorded/megatron-order-cpu-2.json. The other rows say 101 MB."""
_MOMENTS_SAVE = 4.0
"""Bytes a parameter that two moments in 16 bits take less."""
_TP_OVERLAP = 0.7
"""Part of tensor parallel communication that `tp_comm_overlap` hides, as for NeMo's rows."""
_KINDS = ("int", "bool", "choice")
_STEPS = {
    name: LATTICE_KNOBS[name]
    for name in sorted(LATTICE_KNOBS, key=lambda n: _KINDS.index(KNOBS[n].kind))
}
"""The knobs in the order in which `explain` moves them."""


_VARIABLES: Sequence[Mapping[str, Any]] = table_beside(__file__, "variables.json")
"""Variables of ranks, and `when` a layout has them; later rows come first."""
_PACKAGES: Mapping[str, Sequence[Mapping[str, str]]] = table_beside(__file__, "packages.json")
"""Package that nodes need -> the oldest release that has what a layout uses: the first row's that
applies."""
_COLUMNS: Mapping[str, str] = table_beside(__file__, "columns.json")
"""Column of the cost model -> the knob that it is, or the conditions that all hold there."""


class MegatronEngine(Engine):
    """Megatron-LM for one job on one fleet."""

    name = "megatron"
    planned_alone = PLANNED_ALONE

    def __init__(self, job: Job, environment: Environment) -> None:
        super().__init__(job, environment)
        self._task = task_of(job, environment)
        self._notes: Notes = {}

    def layouts(self, *, saves_memory: bool = False) -> Layouts | None:
        if (space := self._job.space) not in (DEFAULT_SPACE, PLAN_SPACE):
            return None
        return lay_out(self._task, for_plan=space == PLAN_SPACE, saves_memory=saves_memory)

    def changes_training(self, candidates: Sequence[Candidate]) -> Truth:
        columns = candidates.columns if isinstance(candidates, Layouts) else columns_of(candidates)
        changing = [columns[name] > 0 for name, knob in KNOBS.items() if knob.changes_training]
        found: Truth = np.logical_or.reduce(changing)
        return found

    def judge(self, candidate: Candidate) -> list[Violation]:
        return judge_by(RULES, rows_of(self._task, [candidate]))

    def refused_rows(self, rows: Sequence[Candidate]) -> Mapping[str, Truth]:
        columns = rows_of(self._task, rows)
        return {rule.name: ~rule.holds(columns) for rule in RULES if rule.holds is not None}

    def describe(self, candidate: Candidate) -> str:
        """Knobs that are not at their default: `tp=8 pp=4 micro_batch=2 recompute=full dp=512`."""
        return f"{describe_candidate(candidate, self.context)} dp={candidate.dp}"

    def steps(self, candidate: Candidate) -> Iterator[tuple[str, KnobValue]]:
        """Each knob a step up and down, quarters of a chunk's layers and modules to recompute.

        Of the knobs that the lattice has off their default alone, one other value each.
        """
        layers = int(chunk_layers(self._task, columns_of([candidate]))[0])
        parts = range(1, QUARTERS) if layers % QUARTERS == 0 else ()
        blocks = [f"block_{layers * part // QUARTERS}" for part in parts if layers]
        knobs = {n: k for n, k in _STEPS.items() if n != "ep" or self._task.n_experts > 1}
        more: dict[str, list[KnobValue]] = {"recompute": list(blocks)}
        for name, value in self._off_default(candidate).items():
            knobs[name] = KNOBS[name]
            if name not in candidate.values:
                more[name] = [value]
        yield from steps_of(candidate, knobs, more)
        yield from (("recompute_modules", modules) for modules in modules_of(self._task))

    def _off_default(self, candidate: Candidate) -> dict[str, KnobValue]:
        """Knobs that the lattice lays out off their default alone, with a value of theirs."""
        found: dict[str, KnobValue] = {"stages": "balanced"} if candidate.pp > 1 else {}
        if self._task.n_experts > 1 and int(candidate["ep"]) > 1:
            found |= {"etp": 1, "overlap_experts": True, "overlap_shared_experts": True}
            if self._task.flex_here:
                found["dispatcher"] = DISPATCHERS[self._task.flex_here]
        return found

    def expected(self, candidate: Candidate) -> dict[str, Any]:
        """What a live Megatron must say of itself: the layout, the batch and the model."""
        knobs = {name: candidate[name] for name in _READ_BACK}
        row = rows_of(self._task, [candidate]).row(0)
        knobs |= {name: value for name, value in self._more(row).items() if name in _LIVE_MORE}
        shape = self._job.model_with(candidate.layers).shape
        is_sharded = bool(candidate["distributed_optimizer"])
        vocab = int(padded_vocab(shape.vocab, np.array(candidate.tp)))
        n_embeddings = 1 if shape.tied_embeddings else 2
        return {
            **knobs,
            "dp": candidate.dp,
            "grad_accum": candidate.grad_accum,
            "dtype": candidate.precision(self._job.precision),
            "overlap_grad_reduce": not row["overlap_grad_reduce"],
            "overlap_param_gather": is_sharded and not row["overlap_param_gather"],
            "n_layers": shape.n_layers + shape.n_mtp_layers,
            "n_mtp_layers": shape.n_mtp_layers,
            "dense_layers": list(dense_layers(self._job.model_with(candidate.layers))),
            "padded_vocab": vocab,
            "n_params": shape.n_params
            + mtp_params(shape)
            + n_embeddings * (vocab - shape.vocab) * shape.hidden,
        }

    def _more(self, row: Mapping[str, int]) -> dict[str, Any]:
        """Knobs that the lattice leaves at their default, where they are off it."""
        found: dict[str, Any] = {
            name: value_of(knob, row[name]) for name, knob in MORE_KNOBS.items() if row[name]
        }
        if row["first_stage_layers"] or row["last_stage_layers"] or row["ends_as_layers"]:
            *others, last = stage_layers(self._task, row)
            found["stage_layers"] = [*others, last + self._task.n_mtp_layers]
        if row["stages"]:
            stages: Stages = written_stages(row["stages"])
            if row["stages"] == BALANCED:
                counts = placed(self._task, row["pp"], row["vp"], BALANCED)
                stages = stages_of(written(counts, self._task.n_mtp_layers)) or ()
            of_ranks = ["".join(stages[rank :: row["pp"]]) for rank in range(row["pp"])]
            found["stage_layers"] = [
                letters.count("t") + letters.count("m") for letters in of_ranks
            ]
            found["stages"] = "|".join(stages)
        return found

    def ranks(self, candidate: Candidate) -> RankSettings:
        """The variable that orders the kernels of ranks that share a layer, on CPU ranks as well.

        Megatron refuses to start without it before Blackwell (megatron/training/arguments.py).
        """
        known = rows_of(self._task, [candidate]).row(0)
        variables: dict[str, str] = {}
        for row in _VARIABLES:
            variables |= row["variables"] if applies(row, known) else {}
        return RankSettings(
            environment=variables,
            # A warm start has Megatron imported, and a checkout brings its own.
            may_start_warm=self._job.megatron_path is None,
        )

    def needs(self, candidate: Candidate) -> Sequence[str]:
        """See `Engine.needs`; times and arguments are those with NVIDIA's kernels."""
        known = {**vars(self._task), **rows_of(self._task, [candidate]).row(0)}
        found: list[str] = []
        for package, rows in _PACKAGES.items():
            for release in [row["release"] for row in rows if applies(row, known)][:1]:
                found.append(f"{package} {release} or later" if release else package)
        return found

    def lacks(self) -> str:
        on_cpu, is_plain = self._task.on_cpu, self._job.precision == "fp32"
        if self._task.without_te:
            return str(KERNELS["transformer_engine"]["missing"])
        if on_cpu and not is_plain and not cpu_has_bf16():
            return str(KERNELS["gpu"]["missing"].format(precision=flag("precision")))
        return "" if on_cpu or self._environment.has_apex else str(KERNELS["apex"]["missing"])

    def no_files(self) -> str:
        """Megatron's GPT model is not every model."""
        try:
            model_arguments(self._job.model, self._job.seq_len)
            self._check_release()
        except JobError as error:
            return error.message
        return ""

    def _check_release(self) -> None:
        is_script = self._job.megatron_path is not None
        check_release(self._job.model, self._task.release, by_script=is_script)

    def files(self, candidate: Candidate) -> dict[str, str]:
        self._check_release()
        arguments = arguments_of(
            rows_of(self._task, [candidate]).row(0),
            self._job,
            layers=candidate.layers,
            release=self._task.release,
        )
        arguments |= kernel_arguments(self._environment)
        arguments |= expert_kernels(self._environment, self._job.model)
        if self._environment.accelerator == "cpu" and self._job.megatron_path is not None:
            arguments |= SCRIPT_ON_CPU
        return {ARGUMENTS_FILE: canonical_json(arguments)}

    def check_here(self, candidates: Sequence[Candidate]) -> None:
        """A checkout's own parser knows which arguments it takes."""
        if self._job.megatron_path is None:
            return
        checked = _with_each_value(candidates)
        lines = [self._command_line(candidate) for candidate in checked]
        checkout = checkout_of(self._job)
        refused = check_arguments(checkout, lines, world=self._job.world)
        if len(refused) == len(lines):
            setup, why = self.describe(checked[0]), refused[0]
            raise JobError.of(
                "engines.megatron.checkout_refuses", checkout=checkout, setup=setup, why=why
            )

    def _command_line(self, candidate: Candidate) -> list[str]:
        """Words after the name of a checkout's script."""
        arguments = json.loads(self.files(candidate)[ARGUMENTS_FILE])
        return [*words_of(arguments), *workload_of(self._job, candidate).arguments]

    def ladder(self) -> Iterator[list[Candidate]]:
        """Split as little as memory allows; see `autotune.engines.megatron.baseline`."""
        for rung in filter(None, ladder(self._task)):
            refused = np.logical_or.reduce([*self.refused_rows(rung).values()])
            yield [rung[place] for place in np.flatnonzero(~refused)]

    def baseline(self, path: Path) -> tuple["MegatronEngine", Candidate]:
        """The engine is this one, and says which of the user's arguments do not run as given."""
        release = release_for(self._job, self._environment) or newest_release()
        knobs, notes = read_baseline(path, self._job, release=known_release(release))
        engine = copy(self)
        out_of_reach: Sequence[str] = ON_GPU_ALONE if self._task.on_cpu else ()
        if self._task.without_te:
            out_of_reach = tuple(OF_TRANSFORMER_ENGINE)
        if self._task.has_torch_norms:
            out_of_reach = (*out_of_reach, "sequence_parallel")
        engine._notes = {
            **notes,
            **{name: (knobs[name], None) for name in out_of_reach if name in knobs},
        }
        usable = {name: value for name, value in knobs.items() if name not in out_of_reach}
        world, global_batch = self._job.world, self._job.global_batch
        chosen = canonical(usable, self.context)
        return engine, Candidate.of(chosen, world=world, global_batch=global_batch)

    def edits_in_words(self, candidate: Candidate) -> list[str]:
        path = self._job.baseline
        if path is None:
            return []
        release = known_release(release_for(self._job, self._environment) or newest_release())
        _, start = self.baseline(path)
        rows = rows_of(self._task, [start, candidate])
        before, after = (
            layout_arguments(rows.row(number), self._job, release=release) for number in (0, 1)
        )
        return sorted(changes_in_words(path, before, after, release=release))

    def overridden(self, candidate: Candidate) -> Mapping[str, tuple[Any, Any]]:
        return self._notes

    def plans(self, candidates: Sequence[Candidate], *, needs_shape: bool = True) -> Plans:
        job = self._job
        rows = candidates.columns if isinstance(candidates, Layouts) else columns_of(candidates)
        chunk = chunk_layers(self._task, rows)
        is_block = rows["recompute_layers"] > 0
        model = model_columns(job)
        columns: dict[str, Any] = {
            **model,
            **fleet_columns(job, self._environment, self.accelerators),
            **_MEGATRON,
            **_DTYPES[job.precision],
            "flash_attention": float(self._task.fused_attention),
            "grouped_experts": float(self._task.groups_experts),
            "fused_routing": float(self._task.groups_experts),
            "process_bytes": _PROCESS_BYTES_ON_CPU * self._task.on_cpu,
            "vocab": padded_vocab(int(model["vocab"]), rows["tp"]),
            "zero_stage": rows["distributed_optimizer"],
            "recompute_every": np.where(
                is_block, chunk / np.maximum(1, rows["recompute_layers"]), 1.0
            ),
            "overlap_sends": _MEGATRON["overlap_sends"] * (rows["vp"] > 1),
        }
        if any(np.any(rows[name]) for name in (*MORE_KNOBS, "ends_as_layers")):
            columns |= self._more_columns(rows)
        for name in ("tp", "pp", "vp", "cp", "ep", "dp", "micro_batch", "grad_accum"):
            columns[name] = rows[name]
        columns["sequence_parallel"] = rows["sequence_parallel"]
        columns["recompute"] = rows["recompute"]
        return Plans(
            **{
                name: value.astype(np.float64) if isinstance(value, np.ndarray) else float(value)
                for name, value in columns.items()
            }
        )

    def _more_columns(self, rows: Columns) -> dict[str, Any]:
        """The cost model's columns of knobs that most of the lattice leaves at their default."""
        first, last, most = edge_layers(self._task, rows)
        found: dict[str, Any] = {
            **{
                column: rows[terms] if terms in rows else _all_hold(terms, rows)
                for column, terms in _COLUMNS.items()
            },
            "first_stage_layers": first,
            "last_stage_layers": last,
            "most_stage_layers": most,
            "zero_stage": np.maximum(rows["distributed_optimizer"], rows["fsdp"]),
            "optimizer_host_share": rows["optimizer_offload"] / SHARE,
            "offloaded_activations": self._offloaded_activations(rows),
            "overlap_tp": _TP_OVERLAP * rows["tp_comm_overlap"],
            "rank_buffers": np.array(_BUFFERS)[rows["dispatcher"]],
            **{
                column: has(module, RECOMPUTED, rows["recompute_modules"])
                for module, column in RECOMPUTED_MODULES.items()
            },
        }
        if rows["adam_moments"].any():
            usual = float(
                {"optimizer_bytes": 12.0, **_DTYPES[self._job.precision]}["optimizer_bytes"]
            )
            found["optimizer_bytes"] = usual - _MOMENTS_SAVE * (rows["adam_moments"] > 0)
        if rows["main_grads"].any():
            for name in ("grad_bytes", "reduce_bytes"):
                found[name] = np.where(rows["main_grads"] > 0, 2.0, _MEGATRON[name])
        if rows["cuda_graphs"].any():
            found["launch_free"] = found["graph_share"] = sum(
                share * has(part, GRAPHS, rows["cuda_graphs"])
                for part, share in CAPTURED_SHARES.items()
            )
        if rows["fp8"].any() or rows["fp4"].any():
            found |= self._narrow_columns(rows)
        return found

    def _narrow_columns(self, rows: Columns) -> dict[str, Any]:
        """Columns of fp8 and fp4, by recipe.

        Parameters in mxfp8 are gathered in 16 bits, since both of their copies are cast from
        that: megatron/core/distributed/distributed_data_parallel_config.py,
        reuse_grad_buf_for_mxfp8_param_ag.
        """
        fp8, fp4, recipe = rows["fp8"] > 0, rows["fp4"] > 0, rows["fp8_recipe"]
        rate = self._product_flops("fp8") if fp8.any() else 0.0
        narrow = self._product_flops("fp4") if fp4.any() else 0.0
        half = self._product_flops(None)
        mixed = fp4_flops(narrow, half) if narrow else 0.0
        narrow_rate: Any = rate
        if not self._task.has_fp4:
            by_blocks = half + BLOCKWISE_GAIN_SHARE * (rate - half)
            is_blockwise = recipe == FP8_RECIPES.index("blockwise")
            narrow_rate = np.where(is_blockwise, by_blocks, rate)
        is_gathered = fp8 & (rows["fp8_param_gather"] > 0)
        names = np.where(fp4, len(FP8_RECIPES), recipe)
        found: dict[str, Any] = {
            column: np.array(
                [SCALINGS[name].get(column, usual) for name in (*FP8_RECIPES, "nvfp4")]
            )[names]
            for column, usual in (("cast_bytes", 4.0), ("cast_kernels", 1.0))
        }
        return found | {
            "matmul_flops": np.where(fp8, narrow_rate, np.where(fp4, mixed, half)),
            "product_input_bytes": np.where(fp8, 1.0, np.where(fp4, 0.5, 2.0)),
            "weight_bytes": np.where(is_gathered, 1.0, 2.0),
            "gather_bytes": np.where(
                is_gathered & (recipe != FP8_RECIPES.index("mxfp8")), 1.0, 2.0
            ),
            "fused_experts": rows["fused_experts"],
        }

    def _product_flops(self, precision: str | None) -> float:
        """Rate of large products at a precision, or at the job's where the device has it not.

        The device of a what-if may lack what the layouts were made for.
        """
        found = accelerator_of(self._environment, self.accelerators)
        if precision not in found.peak_flops:
            precision = None
        columns = fleet_columns(
            self._job, self._environment, self.accelerators, precision=precision
        )
        return columns["matmul_flops"]

    def _offloaded_activations(self, rows: Columns) -> NDArray[np.float64]:
        """Share of the kept activations that goes to the host."""
        share: NDArray[np.float64] = rows["activation_offload"] / self._task.n_layers
        for module, part in _SAVED_SHARES.items():
            share = share + part * has(module, OFFLOADED, rows["offload_modules"])
        return share


def _all_hold(terms: str, rows: Columns) -> Truth:
    found: Truth = np.logical_and.reduce([holds(term, rows) for term in terms.split()])
    return found


def _with_each_value(candidates: Sequence[Candidate]) -> list[Candidate]:
    if not isinstance(candidates, Layouts):
        return list(candidates)
    firsts = [np.unique(column, return_index=True)[1] for column in candidates.columns.values()]
    return [candidates[int(index)] for index in np.unique(np.concatenate(firsts))]


def padded_vocab(vocab: int, tp: Counts) -> Counts:
    """Token ids with those that Megatron adds: a multiple of 128 tp.

    Source: NVIDIA/Megatron-LM, megatron/training/vocab_utils.py.
    """
    multiple = PADDED_TO * tp
    return -(-vocab // multiple) * multiple


def release_for(job: Job, environment: Environment) -> str:
    """The release of Megatron Core that trains a job; empty: none is installed.

    Raises:
        JobError: The job's checkout is none.
    """
    if job.megatron_path is not None:
        return release_of(job.megatron_path)
    return environment.megatron_core


_OF_SHAPE = (
    *("n_layers", "n_dense_layers", "n_heads", "n_kv_heads", "ffn_hidden", "dense_ffn_hidden"),
    *("n_experts", "shared_expert_hidden", "latent_kv_rank", "n_mtp_layers"),
)
"""Sizes of a model that are a task's as well."""


def task_of(job: Job, environment: Environment) -> LayoutTask:
    """The model and the devices that are to be laid out.

    Raises:
        FleetError: The accelerator is in no table.
        JobError: The job is not one that Megatron-LM trains, or its sizes cannot be seen.
    """
    _check_trained(job)
    table = accelerators_with(job.accelerators)
    device = fleet_columns(job, environment, table)
    model_columns(job)
    found = accelerator_of(environment, table)
    shape = job.model.shape
    release = release_for(job, environment)
    on_cpu, in_fp32 = environment.accelerator == "cpu", job.precision == "fp32"
    has_te = not on_cpu and environment.has_transformer_engine
    lacks_te = not on_cpu and not has_te
    dtypes = {"weight_bytes": 2.0, **_MEGATRON, **_DTYPES[job.precision]}
    held_bytes = dtypes["weight_bytes"] + dtypes.get("grad_bytes", 2.0)
    # The most that can be captured of a layer whose shapes never change.
    captured = "attn+moe_router+moe_preprocess" if shape.n_experts > 1 else "attn+mlp"
    has_graphs = has_te and is_at_least(release, _HAS_GRAPHS)
    has_flex = has_te and shape.n_experts > 1 and not in_fp32
    is_rack = device["nvlink_domain"] > _OF_ONE_NODE and is_at_least(release, _HAS_HYBRIDEP)
    return LayoutTask(
        **{name: getattr(shape, name) for name in _OF_SHAPE},
        has_sinks=has_sinks(job.model),
        has_attention_biases=has_attention_biases(job.model),
        work=work_of(shape, job.seq_len),
        groups_experts=has_te and shape.n_experts > 1,
        expert_bytes=held_bytes * expert_params(shape),
        other_bytes=held_bytes * (shape.n_params - expert_params(shape)),
        memory_bytes=device["memory_bytes"] * has_te,
        fuses_experts=has_te and _fuses_experts(found, shape, release),
        graphs_here=GRAPHS.index(captured) if has_graphs else 0,
        paced_tokens=_paced_tokens(shape, device["half_flops"]),
        in_bf16=job.precision == "bf16",
        fp8_here=_fp8_of(found, shape) if has_te and not in_fp32 else (0, 0),
        # The dispatcher that sends each token once, as a place in its knob's values.
        flex_here=DISPATCHERS.index("hybridep" if is_rack else "deepep") if has_flex else 0,
        seq_len=job.seq_len,
        max_seq_len=shape.max_seq_len or 0,
        global_batch=job.global_batch,
        world=job.world,
        domain=int(device["nvlink_domain"]),
        shares_kv_heads=is_at_least(release, SHARES_KV_HEADS),
        on_cpu=on_cpu,
        in_fp32=in_fp32,
        has_fp8="fp8" in found.peak_flops,
        has_fp4="fp4" in found.peak_flops,
        deepep_ranks=found.deepep_ranks(environment.n_devices),
        lacking=_lacking(release),
        release=release,
        from_0_17=is_at_least(release, "0.17"),
        without_te=lacks_te,
        has_torch_norms=lacks_te
        and not (environment.has_apex and has_layer_norm(job.model, job.seq_len)),
        # FlashAttention-2 and Transformer Engine need a device that has bf16.
        fused_attention=has_te and not in_fp32 and "bf16" in found.peak_flops,
    )


def mtp_params(shape: ModelShape) -> int:
    """Parameters of layers that predict further tokens.

    Each is a layer, with experts if the model has some, two norms and one projection of what comes
    in, and a norm at the end.

    Source: NVIDIA/Megatron-LM, megatron/core/transformer/multi_token_prediction.py.
    """
    if not shape.n_mtp_layers:
        return 0
    h = shape.hidden
    norms = 2 * h + shape.latent_q_rank + shape.latent_kv_rank
    n_experts = shape.n_experts if shape.n_experts > 1 else 0
    mlp = shape.expert_weights * max(1, n_experts)
    mlp += shape.mlp_matrices * h * shape.shared_expert_hidden
    layer = shape.attention_weights + mlp + n_experts * h + norms
    return shape.n_mtp_layers * (layer + 2 * h * h + 3 * h)


def expert_params(shape: ModelShape) -> int:
    """Parameters of all experts of all layers."""
    return shape.n_expert_layers * shape.n_experts * shape.expert_weights


def _fp8_of(found: Accelerator, shape: ModelShape) -> tuple[int, int]:
    """Format and recipe of fp8 that fit a device, as places in their knobs' values; 0: none do.

    Blackwell scales blocks of 32 in its tensor cores; on Hopper mixtures of experts are trained
    with blocks of 128 in e4m3, as DeepSeek-V3 was (arXiv:2412.19437, section 3.3), and others with
    one scale a tensor, as NVIDIA's recipes are.
    """
    if "fp8" not in found.peak_flops:
        return 0, 0
    if "fp4" in found.peak_flops:
        return FP8.index("e4m3"), FP8_RECIPES.index("mxfp8")
    if _HOPPER.search(found.name) and shape.n_experts > 1:
        return FP8.index("e4m3"), FP8_RECIPES.index("blockwise")
    return FP8.index("hybrid"), FP8_RECIPES.index("tensorwise")


def _fuses_experts(found: Accelerator, shape: ModelShape, release: str) -> bool:
    is_blackwell = "fp4" in found.peak_flops and "fp8" in found.peak_flops
    return is_blackwell and shape.n_experts > 1 and "fused_experts" not in _lacking(release)


def _paced_tokens(shape: ModelShape, flops_per_s: float) -> float:
    """Tokens of a rank's micro-batch that take a layer's products as long as its launches.

    6 operations per parameter and token. Twice as many, since fp8 is faster and experts are
    launched one by one.
    """
    c = load_constants()
    kernels = c.kernels_per_layer + c.routing_kernels * (shape.n_experts > 1)
    launches_s = 3.0 * kernels * c.launch_s
    layer = (shape.n_params_active or shape.n_params) / shape.n_layers
    return 2.0 * launches_s * flops_per_s / (6.0 * layer)


def _lacking(release: str) -> frozenset[str]:
    """Knobs whose flag a release lacks; none where no release is known."""
    known = flags(".".join(release.split(".")[:2]))
    return frozenset(
        name for name, flag in OF_SOME_RELEASES.items() if known and flag not in known
    )


def _check_trained(job: Job) -> None:
    if job.lengths != FIXED:
        raise JobError.of("engines.megatron.drawn_lengths")
    if job.finetune is not None:
        raise JobError.of("engines.megatron.finetuned")
    if job.base_config is not None:
        raise JobError.of("engines.megatron.base_config")
    kind = str(job.optimizer.get("type", "AdamW"))
    if kind.lower() not in {"adam", "adamw", "fusedadam"}:
        raise JobError.of("engines.megatron.other_optimizer", kind=kind)
