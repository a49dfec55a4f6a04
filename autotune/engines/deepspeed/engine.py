"""The DeepSpeed engine: a candidate as a ds_config.json, and what the live engine must read back.

Layers of a rendered configuration, the lower giving way to the upper: DeepSpeed's defaults for
the knobs that act, the user's base configuration, the job (precision, optimizer, batch), the
candidate. Every key of the user's that gives way is named by `overridden`.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.base.data import installed_files
from autotune.base.errors import FleetError, JobError, RenderError
from autotune.base.flags import flag
from autotune.base.nested import clashes, look_up, merge, without
from autotune.base.templates import Templates, canonical_json
from autotune.contract import KnobValue
from autotune.cost.plans import Plans
from autotune.cost.problem import accelerator_of
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, Exported, RankSettings
from autotune.engines.communication.knobs import environment_of as communication_variables
from autotune.engines.communication.rules import Communication
from autotune.engines.deepspeed import extensions
from autotune.engines.deepspeed.ds_config_file import (
    SECTIONS,
    Note,
    knobs_of,
    leftover,
    precision_of,
    read_ds_config,
)
from autotune.engines.deepspeed.expected import DEFAULT_GRADIENT_CLIPPING, config_value, expected
from autotune.engines.deepspeed.knobs import KNOBS, environment_of
from autotune.engines.deepspeed.knobs.situation import (
    ADAM,
    optimizer_implementation,
    recompute_interval,
)
from autotune.engines.deepspeed.mixtures import (
    AUTOEP_PRESETS,
    SPLIT_BESIDE_AUTOEP,
    partition_config,
)
from autotune.engines.deepspeed.outputs import without_outputs
from autotune.engines.deepspeed.plans import plans_of
from autotune.engines.deepspeed.rules import DECIDED_BY, judge
from autotune.engines.deepspeed.rules.base import BATCH_KEYS, Setup
from autotune.engines.deepspeed.rules.releases import NEWEST_READ
from autotune.engines.deepspeed.rules.zero import inert_keys
from autotune.job.job import DEFAULT_OPTIMIZER, DEFAULT_SPACE, PLAN_SPACE, Job
from autotune.job.lengths import FIXED
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import canonical, steps_of
from autotune.space.rows import answers_of
from autotune.space.rule import Violation
from autotune.space.space_file import Space
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.transformer_shape import refusal

if TYPE_CHECKING:
    from autotune.engines.deepspeed.sources.baseline import BaselineRun

TEMPLATE = "deepspeed/ds_config.json.j2"

_IMPLEMENTATIONS: Mapping[str, Mapping[str, bool]] = {
    "torch": {"torch_adam": True},
    "torch_fused": {"torch_adam": True, "fused": True},
}
"""Parameters that `optimizer.implementation` adds to the optimizer's own."""

_PLAIN = tuple(
    (*knob.key.rpartition(".")[::2], name) for name, knob in KNOBS.items() if knob.is_plain
)
"""Section, key and knob of each value that is written as it is."""

_OF_TRIALS = ("steps_per_print", "wall_clock_breakdown", "gradient_clipping")
"""Keys that a trial sets and nobody chose: an export has them as the user's file does."""

_LAYOUT = (
    *("train_batch_size", "tensor_parallel", "fp16", "bf16"),
    *("sequence_parallel_size", "data_parallel_size"),
)
"""Keys that a base configuration cannot keep when the rendered one leaves them out."""


class DeepSpeedEngine(Engine):
    """DeepSpeed for one job in one environment."""

    name = "deepspeed"
    _rendering: str | None
    """Digest of the base that is in use; None: nobody has asked for it."""

    def __init__(self, job: Job, environment: Environment) -> None:
        """Read the job's templates and base configuration.

        Raises:
            RenderError: A template or the base configuration cannot be used.
        """
        known = environment.deepspeed_version or NEWEST_READ  # where it is not installed
        super().__init__(job, replace(environment, deepspeed_version=known))
        self._templates = Templates(job.templates)
        self._pipeline_refusal = refusal(
            job.model.source, seq_len=job.seq_len, lengths=job.lengths.as_spec()
        )
        base: tuple[dict[str, Any], dict[str, Note]] = ({}, {})
        self._base_knobs: Mapping[str, KnobValue] = {}
        if job.base_config is not None:
            base = read_ds_config(job.base_config)
            self._base_knobs = knobs_of(base[0], job.base_config)
            precision_of(base[0], job.base_config)  # refuses one that cannot run
        self._use_base(*base)

    @property
    def context(self) -> Context:
        chosen = _chosen_by(self._job)
        base = {**chosen, **self._base_knobs}
        return Context.of(
            self._job,
            self._environment,
            base=base,
            optimizer=self.optimizer,
            settled=chosen if self._job.script is None else base,
        )

    def needs(self, candidate: Candidate) -> Sequence[str]:
        """See `Engine.needs`; the release is the one whose rules were asked."""
        extra = {
            "bitsandbytes": self._is_packed,
            "flash-attn": candidate.get("attention") == "flash_attention_2",
            "deep_ep": candidate.get("ep.dispatch") == "deepep",
            "liger-kernel": candidate.get("tp.loss") == "liger",
        }
        return [*super().needs(candidate), *(name for name, is_used in extra.items() if is_used)]

    @property
    def _is_packed(self) -> bool:
        return self._job.finetune is not None and self._job.finetune.is_packed

    def no_files(self) -> str:
        """QLoRA is forecast alone: the built-in script loads no weights of 4 bits."""
        return JobError.of("engines.deepspeed.packed").message if self._is_packed else ""

    @cached_property
    def _deepep_ranks(self) -> int | None:
        """See `Accelerator.deepep_ranks`; None where the device is in no table."""
        try:
            device = accelerator_of(self._environment, self.accelerators)
        except FleetError:
            return None
        return device.deepep_ranks(self._environment.n_devices)

    @property
    def space(self) -> Space:
        """See `Engine.space`; a plan names an attention of models without sdpa alone."""
        found = super().space
        if self._job.space != PLAN_SPACE or "flex_attention" in self._job.model.attention:
            return found
        domains = {name: d for name, d in found.domains.items() if name != "attention"}
        return replace(found, domains=domains)

    def spread_experts(self, candidate: Candidate) -> Mapping[str, Mapping[str, Any]]:
        """See `Engine.spread_experts`; at stage 3 each rank gathers all experts of a layer."""
        is_gathered = candidate.get("zero.stage") == 3 and candidate.get("ep", 1) == 1
        # Nothing here spreads the experts of a model with adapters.
        is_other = self._job.script is not None or self._job.finetune is not None
        if self._job.model.shape.n_experts < 2 or not is_gathered or is_other:
            return {}
        return {
            "--space moe": {"space": "moe"},
            "--engine megatron": {"engine": "megatron", "space": DEFAULT_SPACE},
        }

    def splits_sequences(self) -> Sequence[str]:
        job, source = self._job, self._job.model.source
        has_sp = job.script is not None or job.model.supports_sp(job.seq_len)
        trains_it = "config" in source and "lora" not in source and job.lengths == FIXED
        way = f"take {flag('engine')} megatron: with tp, pp and cp fewer ranks share the batch"
        return (way,) if trains_it and not has_sp else ()

    @property
    def rendering_digest(self) -> str:
        """See `Engine.rendering_digest`; empty where the user's templates may read anything."""
        # What derives from this class may render otherwise.
        if type(self) is not DeepSpeedEngine or self._job.templates is not None:
            return ""
        if self._rendering is None:
            self._rendering = self._digest()
        return self._rendering

    @property
    def optimizer(self) -> str:
        """Type of the optimizer that trains, in lower case: the job's, else that of the base."""
        return str(self._optimizer_section.get("type", "")).lower()

    def judge(self, candidate: Candidate) -> list[Violation]:
        return judge(self.setup(candidate))

    @property
    def decided_by(self) -> Mapping[tuple[str, ...], Collection[str]]:
        """See `Engine.decided_by`; a template of the user's may write anything."""
        return {} if self._templates.is_users(TEMPLATE) else DECIDED_BY

    def steps(self, candidate: Candidate) -> Iterator[tuple[str, KnobValue]]:
        """Each knob a step up and down, and at the values of the job's space."""
        domains = self.space.domains
        return steps_of(candidate, KNOBS, {name: d.values for name, d in domains.items()})

    def setup(self, candidate: Candidate) -> Setup:
        """Render the candidate: what would really run.

        Raises:
            RenderError: The template does not render, or not to a configuration.
        """
        job = self._job
        model = job.model_with(candidate.layers)
        return Setup(
            ds_config=self._render(candidate)[0],
            ranks=candidate.world,
            tp=candidate.tp,
            pp=candidate.pp,
            global_batch=candidate.global_batch,
            seq_len=job.seq_len,
            recompute=str(candidate.get("recompute", "none")),
            precision=candidate.precision(job.precision),
            model=model.shape,
            model_type=_model_type(job),
            has_adapters=job.finetune is not None,
            balances_routers=model.balances_routers,
            expert_blocks=model.expert_blocks,
            supports_tp=model.supports_tp,
            supports_recompute=model.supports_recompute,
            environment=self._environment,
            attention=str(candidate.get("attention", "default")),
            attentions=" or ".join(model.attention),
            has_attention=candidate.get("attention") in (None, "default", *model.attention),
            loss_chunk_tokens=int(candidate.get("loss_chunk_tokens", 0) or 0),
            mlp_chunk_tokens=int(candidate.get("mlp_chunk_tokens", 0) or 0),
            offload_activations=str(candidate.get("offload.activations", "none")),
            deepep_ranks=self._deepep_ranks,
            compile=str(candidate.get("compile", "none")),
            supports_loss_chunks=model.supports_loss_chunks,
            supports_mlp_chunks=model.supports_mlp_chunks,
            pipeline_refusal=self._pipeline_refusal,
            sp_by_script=candidate.sp,
            supports_sp=model.supports_sp(job.seq_len),
            communication=Communication.of(candidate, self._environment, self.accelerators),
        )

    def ranks(self, candidate: Candidate) -> RankSettings:
        """See `Engine.ranks`; Muon's kernels compile on import, `compile` at the first step."""
        return RankSettings(
            environment={
                **environment_of(candidate.values),
                **communication_variables(candidate.values, self._environment.nccl),
            },
            binds_cores=candidate.get("core_binding") == "ranks",
            may_start_warm=candidate.get("compile", "none") == "none" and self.optimizer != "muon",
        )

    def files(self, candidate: Candidate) -> dict[str, str]:
        if self._is_packed:
            raise JobError.of("engines.deepspeed.packed")
        return {CONFIG_FILE: canonical_json(self._render(candidate)[0])}

    def expected(self, candidate: Candidate) -> dict[str, Any]:
        return expected(self.setup(candidate), self._job.model.source)

    def ladder(self) -> Iterator[list[Candidate]]:
        """Stage by stage, without offload; see `ladder`."""
        return ladder(self._job, self.context)

    def preparation(self, candidates: Sequence[Candidate]) -> tuple[str, ...]:
        """DeepSpeed's extensions; the one for disks only where a candidate swaps."""
        tiers = ("offload.optimizer", "offload.param")
        found = answers_of(candidates, lambda c: any(c.get(tier) == "nvme" for tier in tiers))
        swaps = any(found.distinct)
        return extensions.build_command(self._environment.accelerator, nvme=swaps)

    def exported(self, candidate: Candidate) -> Exported:
        """See `Engine.exported`: the user's file is the job's base, or else its baseline."""
        job, engine = self._job, copy(self)
        clipping = {"gradient_clipping": DEFAULT_GRADIENT_CLIPPING}
        given: Mapping[str, Any] = clipping
        if job.base_config is not None:
            given, notes = read_ds_config(job.base_config, with_monitors=True)
            engine._use_base(given, notes)
        elif job.baseline is not None:
            run = self._read_run(job.baseline, with_monitors=True)
            given, notes, optimizer = run.config, run.notes, self._optimizer_section
            # What trained in another one's place was measured, and stays.
            if _same_type(optimizer, given_optimizer := given.get("optimizer", {})):
                optimizer = _optimizer(job, given_optimizer)
            engine._use_base(leftover(given), notes, optimizer=optimizer)
        if engine._notes.get("gradient_clipping", ("",))[0] == "auto":
            given = {**given, **clipping}  # a number, whoever fills it in
        config, notes = engine._composed(candidate)
        for key in _OF_TRIALS:
            config.pop(key)
            if key in given:
                config[key] = given[key]
                notes.pop(key, None)
        return Exported(files={CONFIG_FILE: canonical_json(config)}, overridden=notes)

    def overridden(self, candidate: Candidate) -> Mapping[str, Note]:
        return self._render(candidate)[1]

    def baseline(self, path: Path) -> tuple["DeepSpeedEngine", Candidate]:
        """A user's file as a candidate, with the engine that renders it; see `read_run`.

        The engine carries what no knob knows of the file as its base, in place of the job's; the
        optimizer is the one that every candidate trains with.

        Raises:
            RenderError: The file cannot be read.
            JobError: It trains something else than the job: another batch, precision or world.
        """
        run = self._read_run(path)
        config, notes = run.config, run.notes
        # Wrong values first: a file that means nothing trains in no precision either.
        tp = _whole(config.get("tensor_parallel", {}), "autotp_size", path) or 1
        sp = _whole(config, "sequence_parallel_size", path) or 1
        for key in BATCH_KEYS:
            _whole(config, key, path)
        named = knobs_of(config, path)
        self._check_same_training(config, notes, path)
        micro_batch = _micro_batch(config, self._job, tp, sp, path)
        chosen = {**run.knobs, **named, "micro_batch": micro_batch}
        context = replace(self.context, base=_chosen_by(self._job))
        knobs = canonical(chosen, context)
        for name, value in chosen.items():
            if (folded := knobs.get(name)) != value and name not in SECTIONS:
                notes[KNOBS[name].key or name] = (value, folded)  # it changes nothing, or folds
        engine = copy(self)
        engine._base_knobs = {}
        engine._use_base(leftover(config), notes, optimizer=self._optimizer_section)
        candidate = Candidate.of(knobs, world=self._job.world, global_batch=self._job.global_batch)
        return engine, candidate

    def _read_run(self, path: Path, *, with_monitors: bool = False) -> "BaselineRun":
        from autotune.engines.deepspeed.sources.baseline import read_run  # of a user's file alone

        hidden = self._job.model.shape.hidden
        return read_run(path, world=self._job.world, hidden=hidden, with_monitors=with_monitors)

    def plans(self, candidates: Sequence[Candidate], *, needs_shape: bool = True) -> Plans:
        return plans_of(
            candidates,
            self._job,
            self._environment,
            accelerators=self.accelerators,
            needs_shape=needs_shape,
        )

    def _check_same_training(
        self, config: Mapping[str, Any], notes: Mapping[str, Note], path: Path
    ) -> None:
        precision = precision_of(config, path)
        if precision == "fp32" and notes.keys() & {"bf16.enabled", "fp16.enabled"}:
            precision = self._job.precision  # "auto": the caller's to decide
        if precision != self._job.precision:
            named = {"path": path, "precision": precision, "asked": self._job.precision}
            raise JobError.of("engines.deepspeed.precision_of_a_file", **named)
        if config.get("pipeline") is not None:
            raise JobError.of("engines.deepspeed.baseline_of_a_pipeline", path=path)

    def _use_base(
        self,
        config: Mapping[str, Any],
        notes: dict[str, Note],
        optimizer: Mapping[str, Any] | None = None,
    ) -> None:
        """Take a base configuration; what every candidate gets from it is worked out once."""
        self._rendering = None
        given = config.get("optimizer")
        section = self._optimizer_section = optimizer or _optimizer(self._job, given)
        if given is not None and _same_type(section, given):
            notes.update(clashes({"optimizer": given}, {"optimizer": section}))
        elif given is not None:
            notes["optimizer"] = (given, section)
        self._base, self._notes = without(config, "optimizer"), notes
        self._constants = {
            "nvme_path": None if self._job.nvme_path is None else str(self._job.nvme_path),
            "largest_param": self._job.model.shape.largest_param,
            "gradient_clipping": config.get("gradient_clipping", DEFAULT_GRADIENT_CLIPPING),
        }
        self._optimizer, self._implementation = dict(section), None
        if self.optimizer in ADAM:
            # The knob chooses among the implementations.
            self._implementation = optimizer_implementation(section.get("params"))
            for switch in ("torch_adam", "fused"):
                self._optimizer = without(self._optimizer, f"params.{switch}")
        self._stage = {
            "zero.stage": self._base_knobs.get("zero.stage", KNOBS["zero.stage"].default)
        }

    def _digest(self) -> str:
        """Digest of what `_render` reads of this engine, and of the code that reads it."""
        read = {
            "installed": installed_files(),
            "precision": self._job.precision,
            "base": self._base,
            "notes": self._notes,
            "constants": self._constants,
            "optimizer": [self._optimizer_section, self._optimizer, self._implementation],
            "stage": self._stage,
        }
        text = json.dumps(read, sort_keys=True, default=repr)
        return hashlib.sha256(text.encode()).hexdigest()

    def _render(self, candidate: Candidate) -> tuple[dict[str, Any], dict[str, Note]]:
        """The configuration of a trial, and the keys of the base that give way to it."""
        config, notes = self._composed(candidate)
        config, left_out = without_outputs(config)
        return config, {**notes, **left_out}

    def _composed(self, candidate: Candidate) -> tuple[dict[str, Any], dict[str, Note]]:
        """The same with what the user's file has DeepSpeed write."""
        knobs = {**self._stage, **candidate.values}
        tuned = self._templates.json(
            TEMPLATE,
            {
                **self._constants,
                "precision": candidate.precision(self._job.precision),
                "optimizer": self._implemented(knobs),
                "autoep_preset": AUTOEP_PRESETS.get(_model_type(self._job), ""),
                "expert_blocks": self._job.model.expert_blocks,
                "seq_len": self._job.seq_len,
                "partition_config": self._partition(candidate),
                "dp": candidate.dp,
                "knobs": knobs,
                "plain": _plain(knobs),
                "tp": candidate.tp,
                "pp": candidate.pp,
                "recompute_interval": recompute_interval(knobs.get("recompute")),
                "sp": candidate.sp,
                "micro_batch": candidate.micro_batch,
                "grad_accum": candidate.grad_accum,
                "global_batch": candidate.global_batch,
            },
        )
        _refuse_auto(tuned)
        _check_obeyed(tuned, candidate)
        has_base = self._base or self._notes
        return self._over_base(tuned, candidate) if has_base else (tuned, {})

    def _partition(self, candidate: Candidate) -> Mapping[str, Any] | None:
        """What AutoTP splits of a mixture beside AutoEP; None where transformers' plan says it."""
        if candidate.get("ep", 1) == 1 or _model_type(self._job) not in SPLIT_BESIDE_AUTOEP:
            return None
        return partition_config(self._job.model.shape)

    def _implemented(self, knobs: Mapping[str, KnobValue]) -> Mapping[str, Any]:
        chosen = str(knobs.get("optimizer.implementation", self._implementation))
        switches = _IMPLEMENTATIONS.get(chosen)
        return merge(self._optimizer, {"params": switches}) if switches else self._optimizer

    def _over_base(
        self, tuned: dict[str, Any], candidate: Candidate
    ) -> tuple[dict[str, Any], dict[str, Note]]:
        under: Mapping[str, Any] = self._base
        overridden: dict[str, Note] = {}
        for key in _governed(tuned, candidate):
            given = look_up(under, key)
            if given is not None and look_up(tuned, key) is None:
                overridden[key] = (given, None)
                under = without(under, key)
        overridden.update(clashes(under, tuned))
        for key, (given, used) in self._notes.items():
            overridden[key] = (given, look_up(tuned, key) if used is None else used)
        merged = merge(under, tuned)
        # A user's file is written for one stage; at another, some of its keys mean nothing.
        for name in inert_keys(merged["zero_optimization"]):
            key = f"zero_optimization.{name}"
            if look_up(tuned, key) is None:
                overridden[key] = (look_up(under, key), None)
                merged = without(merged, key)
        return merged, overridden


def ladder(job: Job, context: Context) -> Iterator[list[Candidate]]:
    """Stage by stage, the power-of-two micro-batches; none where none divides the global batch.

    So a careful user of DeepSpeed looks for a start: the lowest stage without offload, tensor
    degree 1, and recomputation only where nothing runs without it.
    """
    share, rest = divmod(job.global_batch, job.world)
    sizes = [] if rest else [2**k for k in range(share.bit_length()) if share % 2**k == 0]
    for recompute in ("none", "full") if job.model.supports_recompute else ("none",):
        for stage in (0, 1, 2, 3):
            if sizes:
                yield [_rung(job, context, stage, size, recompute) for size in sizes]


def _rung(job: Job, context: Context, stage: int, micro_batch: int, recompute: str) -> Candidate:
    """A candidate of the ladder: knobs that it does not choose are at the engine's defaults."""
    chosen: dict[str, KnobValue] = {
        "zero.stage": stage,
        "tp": 1,
        "sp": 1,
        "ep": 1,
        "micro_batch": micro_batch,
        "recompute": recompute,
        "offload.optimizer": "none",
        "offload.param": "none",
    }
    return Candidate.of(canonical(chosen, context), world=job.world, global_batch=job.global_batch)


def _model_type(job: Job) -> str:
    return str(job.model.source.get("config", {}).get("model_type", ""))


def _plain(knobs: Mapping[str, KnobValue]) -> dict[str, dict[str, KnobValue]]:
    """Section -> its keys that hold a knob's value as it is; dotted, and empty at the top."""
    sections: dict[str, dict[str, KnobValue]] = {section: {} for section, _, _ in _PLAIN}
    for section, key, name in _PLAIN:
        if name in knobs:
            sections[section][key] = knobs[name]
    return sections


def _governed(tuned: Mapping[str, Any], candidate: Candidate) -> list[str]:
    """Keys of the base that give way even where the rendered configuration is silent.

    They are the keys of the layout, of the candidate's knobs, and of knobs that cannot act at its
    stage; another key that merely changes nothing here stays as the user wrote it.
    """
    stage = KNOBS["zero.stage"].read(tuned)
    governing = [
        knob
        for name, knob in KNOBS.items()
        if name in candidate.values or stage not in knob.when.get("zero.stage", (stage,))
    ]
    return [*_LAYOUT, *(key for knob in governing for key in knob.keys)]


def _micro_batch(config: Mapping[str, Any], job: Job, tp: int, sp: int, path: Path) -> int:
    """Samples per rank and forward pass, as DeepSpeed would work them out of the batch keys."""
    micro, accum, total = (_whole(config, key, path) for key in BATCH_KEYS)
    if job.world % (tp * sp):
        named = f"autotp_size {tp}" if sp == 1 else f"{tp} * sequence_parallel_size {sp}"
        row, world = "engines.deepspeed.degree_of_a_file", job.world
        raise JobError.of(row, path=path, named=named, world=world)
    dp = job.world // (tp * sp)
    if micro is None and accum is None and total is None:
        raise JobError(f"{path}: names no batch", "write train_micro_batch_size_per_gpu into it")
    if micro is None:
        # DeepSpeed without a micro batch: no accumulation unless the file says so.
        micro = job.global_batch // (dp * (accum or 1))
    if accum is None:
        accum = max(1, job.global_batch // max(1, micro * dp))
    if micro * accum * dp != job.global_batch or total not in (None, job.global_batch):
        product = f"{micro} * {accum} * {dp} = {micro * accum * dp}"
        stated = "" if total is None else f", its train_batch_size is {total}"
        sizes = {"path": path, "product": product, "stated": stated, "batch": job.global_batch}
        raise JobError.of("engines.deepspeed.batch_of_a_file", **sizes)
    return micro


def _whole(config: Mapping[str, Any], key: str, path: Path) -> int | None:
    value = config.get(key)
    if value is None or (type(value) is int and value >= 1):
        return value
    raise JobError(f"{path}: {key} is {value!r}, not a whole number from 1 up", "mend the value")


def _optimizer(job: Job, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A job that names no optimizer leaves the choice to the base configuration."""
    if given is None or job.optimizer != DEFAULT_OPTIMIZER:
        return job.optimizer
    return merge(job.optimizer, given) if _same_type(job.optimizer, given) else given


def _same_type(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return str(one.get("type", "")).lower() == str(other.get("type", one.get("type"))).lower()


def _chosen_by(job: Job) -> Mapping[str, KnobValue]:
    """The knobs that the job's own optimizer section chooses."""
    implementation = optimizer_implementation(job.optimizer.get("params"))
    return {} if implementation is None else {"optimizer.implementation": implementation}


def _check_obeyed(tuned: Mapping[str, Any], candidate: Candidate) -> None:
    """A template that ignores a knob would make two candidates the same run."""
    for knob, asked in candidate.knobs:
        if not KNOBS[knob].key or (knob, asked) == ("compile", "torch"):  # a call, no key
            continue
        if knob == "tp" and candidate.pp > 1:  # the transformer's, in its script
            continue
        if (written := config_value(tuned, knob)) != asked:
            named = {"key": KNOBS[knob].key, "written": written, "knob": knob, "asked": asked}
            raise RenderError.of("engines.deepspeed.template_ignores", template=TEMPLATE, **named)
    if tuned.get("gradient_accumulation_steps") != candidate.grad_accum:
        row, accum = "engines.deepspeed.template_accumulates", candidate.grad_accum
        raise RenderError.of(row, template=TEMPLATE, accum=accum)


def _refuse_auto(section: Mapping[str, Any], prefix: str = "") -> None:
    for key, value in section.items():
        if value == "auto":
            row, at = "engines.deepspeed.template_leaves_auto", f"{prefix}{key}"
            raise RenderError.of(row, template=TEMPLATE, key=at)
        if isinstance(value, dict):
            _refuse_auto(value, f"{prefix}{key}.")
