"""The setup that DeepSpeed's rules judge, and the cases that prove them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autotune.base.names import near_names
from autotune.base.nested import Unknown, as_written, merge, nested
from autotune.devices.hardware import Environment
from autotune.engines.communication.rules import Communication
from autotune.engines.deepspeed.bf16_optimizer import is_bf16_optimizer
from autotune.engines.deepspeed.rules.sections import CANONICAL, ELEMENTS
from autotune.engines.deepspeed.rules.words import finding
from autotune.engines.releases import is_at_least
from autotune.job.model_shape import ModelShape
from autotune.space.rule import Finding, Patch, UnknownFactError

BATCH_KEYS = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")

_CLIPS_BY_DEFAULT_SINCE = "0.19.3"
_ELASTIC_BEFORE = "0.19.8"

_NO_SECTION: Mapping[str, Any] = {}
_ALIKE = 0.6
"""Least likeness, from 0 to 1, of a type that may have been meant."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A run to judge: rendered configuration, layout, environment and engine version.

    The same rules serve the lattice, a user's own ds_config and the renderer, so they see this
    and never a candidate. The properties answer for any configuration, well-formed or not: a value
    of the wrong type reads as DeepSpeed's default there (the rules of `schema.py` name it).
    """

    ds_config: Mapping[str, Any]
    ranks: int | Unknown
    """Ranks of the whole run, which rules ask for as `world`."""
    tp: int
    tp_follows_file: bool = False
    """Whether `tp` is what the configuration says, so that a change there changes the layout."""
    pp: int
    global_batch: int | None = None
    """Samples per optimizer step that the user wants; None where unknown (a bare ds_config)."""
    seq_len: int | None = None
    """Tokens per sample; None where unknown."""
    recompute: str = "none"
    precision: str | None = None
    """Precision of the job; None where the configuration decides it."""
    model: ModelShape | None = None
    """Shape of the model; None where unknown."""
    model_type: str = ""
    """transformers' name of the model's architecture; empty where unknown."""
    has_adapters: bool = False
    """Whether adapters train beside frozen weights (LoRA)."""
    balances_routers: bool = False
    """Whether a loss of the routers is added to that of the model."""
    expert_blocks: tuple[str, ...] = ()
    """Classes of the model's blocks whose experts are modules of their own."""
    supports_tp: bool = True
    supports_recompute: bool = True
    environment: Environment
    attention: str = "default"
    """Attention implementation that the script builds the model with; `default`: transformers'."""
    attentions: str = ""
    """Those that train the model, `eager or sdpa`."""
    has_attention: bool = True
    """Whether the one asked for is among them."""
    loss_chunk_tokens: int = 0
    """Tokens of a chunk of the training script's loss; 0: it is not chunked."""
    mlp_chunk_tokens: int = 0
    """Tokens of a chunk of the training script's MLPs; 0: they are not chunked."""
    offload_activations: str = "none"
    """Where the training script lets the inputs of recomputed layers wait: `none` or `cpu`."""
    deepep_ranks: int | None = None
    """The most ranks among which DeepEP's kernels send tokens; None: nobody knows."""
    compile: str = "none"
    """Whether the training script calls `engine.compile()`: `none`, `torch` or `deepcompile`."""
    supports_loss_chunks: bool = True
    """Whether the model's loss is known to be plain cross entropy over its output head."""
    supports_mlp_chunks: bool = True
    """Whether each of its MLPs is known to be a module that takes one token after the other."""
    pipeline_refusal: str = ""
    """Why the pipeline's transformer cannot be this model; empty where it can, or is not asked."""
    sp_by_script: int = 1
    """Ranks over which the training script splits each sequence, handing DeepSpeed the groups
    (Ulysses); 1: it splits none."""
    supports_sp: bool = True
    """Whether the model's attention is known to be split right by Ulysses."""
    brings_cpu_adam: bool | None = None
    """Whether whoever calls DeepSpeed hands it an optimizer for the CPU where the optimizer is
    offloaded, as accelerate does (accelerate/utils/deepspeed.py); None: nobody says."""
    is_part: bool = False
    """Whether the configuration stands in some program's own file, which may add to it."""
    is_tuned: bool | None = None
    """Whether DeepSpeed's own autotuner starts it; None: nobody says."""
    communication: Communication | None = None
    """Knobs of NCCL and gloo; None: they are left to themselves."""

    @property
    def world(self) -> int:
        """Ranks of the whole run; raises UnknownFactError where nobody knows."""
        if isinstance(self.ranks, Unknown):
            raise UnknownFactError("world")
        return self.ranks

    @property
    def accelerator(self) -> str:
        """`cpu`, `cuda` or another kind of device."""
        return self.environment.accelerator

    @property
    def version(self) -> str:
        return self.environment.deepspeed_version

    def is_at_least(self, release: str, *, before: str = "") -> bool:
        """Whether DeepSpeed is of the release named, or of a later one that is before another."""
        is_late = bool(before) and is_at_least(self.version, before)
        return is_at_least(self.version, release) and not is_late

    def with_config(self, ds_config: Mapping[str, Any]) -> "Setup":
        return replace(self, ds_config=ds_config)

    def section(self, name: str) -> Mapping[str, Any]:
        """A section of the configuration by its top-level name; empty where there is none."""
        return as_section(self.ds_config.get(name))

    def zero_section(self, name: str) -> Mapping[str, Any]:
        """A section of `zero_optimization`; empty where there is none."""
        return as_section(self.zero.get(name))

    @cached_property
    def zero(self) -> Mapping[str, Any]:
        """The `zero_optimization` section; empty where there is none."""
        return self.section("zero_optimization")

    @cached_property
    def stage(self) -> int:
        stage = self.zero.get("stage", 0)
        return int(stage) if stage in (0, 1, 2, 3) else 0

    @cached_property
    def optimizer_offload(self) -> str:
        """Device that optimizer states are offloaded to: `none`, `cpu` or `nvme`."""
        return self._offload("offload_optimizer", "cpu_offload")

    @cached_property
    def param_offload(self) -> str:
        """Device that parameters are offloaded to: `none`, `cpu` or `nvme`."""
        return self._offload("offload_param", "cpu_offload_param")

    @cached_property
    def optimizer(self) -> str:
        """Optimizer type in lower case; empty where the configuration names none."""
        kind = self.section("optimizer").get("type")
        return kind.lower() if isinstance(kind, str) else ""

    @cached_property
    def optimizer_params(self) -> Mapping[str, Any]:
        """`optimizer.params`; empty where there are none."""
        return as_section(self.section("optimizer").get("params"))

    @cached_property
    def dtype(self) -> str:
        """Precision that the configuration switches on: `fp16`, `bf16` or `fp32`."""
        if self.section("fp16").get("enabled") is True:
            return "fp16"
        return "bf16" if self.bf16.get("enabled") is True else "fp32"

    @cached_property
    def bf16_name(self) -> str:
        """Name of the section of bf16: the old one if that is the only one."""
        is_old = self.ds_config.get("bf16") is None and "bfloat16" in self.ds_config
        return "bfloat16" if is_old else "bf16"

    @cached_property
    def bf16(self) -> Mapping[str, Any]:
        """The section of bf16, under whichever name."""
        return self.section(self.bf16_name)

    @cached_property
    def sp(self) -> int:
        """Sequence parallel degree: the script's, or AutoSP's, or that of DeepSpeed's own mesh."""
        if self.sp_by_script > 1:
            return self.sp_by_script
        size = self._sequence_parallel_size
        if size == 1 or self.has_auto_sp or type(self.ds_config.get("data_parallel_size")) is int:
            return size
        return 1

    @cached_property
    def elasticity(self) -> Mapping[str, Any]:
        """The section `elasticity`; empty where it is off, or the release has none."""
        section = self.section("elasticity")
        is_on = section.get("enabled") is True and not self.is_at_least(_ELASTIC_BEFORE)
        return section if is_on else _NO_SECTION

    @cached_property
    def clipping(self) -> Any:
        """Largest norm of the gradient, 0: none; a silent file's is its release's default."""
        default = 1.0 if self.is_at_least(_CLIPS_BY_DEFAULT_SINCE) else 0.0
        return self.ds_config.get("gradient_clipping", default)

    @cached_property
    def ep(self) -> int:
        """Ranks over which AutoEP spreads the experts of a layer; 1: it is off."""
        section = self.section("expert_parallel")
        size = section.get("autoep_size")
        return size if section.get("enabled") is True and type(size) is int and size > 1 else 1

    @cached_property
    def has_auto_sp(self) -> bool:
        """Whether DeepCompile splits the sequence, over groups that it makes (compile/init_sp)."""
        passes = self.section("compile").get("passes")
        return isinstance(passes, list) and "autosp" in passes

    @cached_property
    def autotp_size(self) -> int:
        """Tensor parallel degree that the configuration switches on."""
        return autotp_size(self.ds_config)

    @property
    def tp_asked(self) -> int:
        """The same, or the layout's where it is more."""
        return max(self.tp, self.autotp_size)

    @cached_property
    def uses_bf16_optimizer(self) -> bool:
        """Whether DeepSpeed takes its BF16_Optimizer, and with it none of ZeRO's settings."""
        accumulates = self.section("data_types").get("grad_accum_dtype")
        return is_bf16_optimizer(
            stage=self.stage,
            precision=self.dtype,
            grad_accum_dtype=CANONICAL.get(str(accumulates), self.dtype),
            optimizer_offload=self.optimizer_offload,
        )

    @property
    def uses_cpu_adam(self) -> bool:
        """Whether an offloaded optimizer is DeepSpeedCPUAdam.

        Without an optimizer section the script brings its own, which cannot be known here: the
        answer is yes. ZenFlow's is a subclass, and DeepSpeed asks for the exact type.
        Source: engine.py, _configure_basic_optimizer.
        """
        if not self.optimizer:
            return True
        is_adam = self.optimizer in ("adam", "adamw") and self.zero.get("zenflow") is None
        return is_adam and not self.optimizer_params.get("torch_adam", False)

    @property
    def bf16_masters(self) -> bool:
        """Whether master weights in bf16 are asked for."""
        return self.bf16.get("bf16_master_weights_and_grads") is True

    @property
    def bf16_states(self) -> bool:
        """Whether optimizer states in bf16 are asked for."""
        return self.bf16.get("bf16_optimizer_states") is True

    @property
    def training_precision(self) -> str:
        """The job's precision, or that of the configuration."""
        return self.precision or self.dtype

    @property
    def reduces_by(self) -> str:
        """How gradients of ranks are put together: `mean` or `sum`."""
        return str(self.ds_config.get("gradient_allreduce_op", "mean")).lower()

    @property
    def whole_nodes(self) -> int | None:
        """Nodes that the ranks fill; None where the devices of a node are not known."""
        devices = self.environment.n_devices
        return self.world // devices if devices else None

    @property
    def pipeline_layers(self) -> int | None:
        """Layers that stages are made of (autotune/trial/scripts/transformer.py: layer_specs).

        The blocks, the embeddings and the output head; learned positions, and the last norm where
        the head is the embeddings' weight, are layers of their own.
        """
        model = self.model
        if model is None:
            return None
        return model.n_layers + 2 + (model.max_seq_len is not None) + model.tied_embeddings

    @property
    def runs_zenflow(self) -> bool:
        return self.stage < 3 or self.accelerator == "cuda"

    @cached_property
    def batch_ranks(self) -> int:
        """Ranks that DeepSpeed divides the batch by (runtime/config.py).

        In a pipeline they are the data-parallel axis of its grid. Else they are the world, also
        under tensor parallelism, divided by sequence_parallel_size, even if that splits nothing.
        """
        if self.pp > 1:
            return max(1, self.world // (self.pp * self.tp))
        return max(1, self.world // self._sequence_parallel_size)

    @property
    def model_ranks(self) -> int:
        """Ranks that one copy of the model is split over."""
        return self.tp * self.pp

    @property
    def split(self) -> int:
        """The same, with those over which the script splits sequences."""
        return self.model_ranks * self.sp_by_script

    @property
    def leaves_ranks_over(self) -> bool:
        """Whether the degrees do not divide the world, which rules about the world refuse."""
        return self.world % self.split > 0

    @cached_property
    def dp(self) -> int:
        """Data parallel degree: world / (tp * pp * sp), rounded down."""
        return max(1, self.world // (self.tp * self.pp * self.sp))

    @cached_property
    def batch(self) -> tuple[int, int, int] | None:
        """micro_batch, grad_accum and train_batch_size as DeepSpeed fills in what is left out.

        Raises:
            UnknownFactError: Elasticity, of an older release, makes sizes of its own.

        It divides, rounding down, by `batch_ranks`, also where tensor parallelism leaves fewer
        replicas (runtime/config.py: _set_batch_related_parameters). None where there is nothing
        to fill in from, or a size is not a whole number above 0.
        """
        if self.elasticity:
            raise UnknownFactError("elasticity")
        micro, accum, total = given = [self.ds_config.get(name) for name in BATCH_KEYS]
        if any(size is not None and (type(size) is not int or size < 1) for size in given):
            return None
        world = self.batch_ranks
        if micro is not None:
            if total is None:
                accum = accum or 1
                return micro, accum, micro * accum * world
            return micro, accum or total // micro // world, total
        if total is None:
            return None
        accum = accum or 1
        return total // world // accum, accum, total

    @cached_property
    def _sequence_parallel_size(self) -> int:
        size = self.ds_config.get("sequence_parallel_size")
        return size if type(size) is int and size > 0 else 1

    def _offload(self, name: str, deprecated: str) -> str:
        device = self.zero_section(name).get("device")
        if device in ("cpu", "nvme"):
            return str(device)
        return "cpu" if self.zero.get(deprecated) is True else "none"


def autotp_size(ds_config: Mapping[str, Any]) -> int:
    """Tensor parallel degree that a configuration switches on; 1 for what is no size."""
    size: Any = as_section(ds_config.get("tensor_parallel")).get("autotp_size")
    return max(1, int(size)) if ELEMENTS.accepts(size) else 1


def zero(**keys: Any) -> dict[str, Any]:
    """The `zero_optimization` section alone."""
    return {"zero_optimization": keys}


def params(**keys: Any) -> dict[str, Any]:
    """The `optimizer.params` section alone."""
    return {"optimizer": {"params": keys}}


def unknown_type(section: str, given: str, known: Iterable[str], usual: str, of: str) -> Finding:
    """Finding about a type that neither DeepSpeed has nor, to the letter, a module of torch."""
    spelled = {name.lower(): name for name in known}
    # FusedAdam is what DeepSpeed makes of Adam.
    within = sorted((name for name in spelled if name in given.lower()), key=len)
    near = within[-1:] or near_names(given, spelled, most=1, alike=_ALIKE)
    best = spelled[near[0]] if near else usual
    is_same = given.lower() in spelled
    changes = {section: {"type": best}} if is_same else {}
    way = "" if is_same else f"set {section}.type to one, such as {best}"
    facts: dict[str, Any] = {"section": section, "given": given, "of": of, "way": way}
    return finding("unknown_type", changes=changes, **facts)


def patch(path: str, keys: Patch) -> dict[str, Any]:
    """Changes of keys of one section, by its dotted path; the empty path is the whole file."""
    return nested([(path.split("."), dict(keys))]) if path else dict(keys)


def moved(old: tuple[str, str], new: tuple[str, str], value: Any) -> dict[str, Any]:
    """The entries of a finding, or a choice, that takes a key with its value to another place.

    Args:
        old: Path of its section, and its name.
        new: The same of the place.
        value: It.
    """
    changes = merge(removal([old]), patch(new[0], {new[1]: as_written(value)}))
    return {"changes": changes, "moves": {_path(old): _path(new)}}


def _path(place: tuple[str, str]) -> tuple[str, ...]:
    section, name = place
    return (*(section.split(".") if section else ()), name)


def removal(where: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Changes that take keys away, told by the path of their section and by their name."""
    changes: dict[str, Any] = {}
    for path, name in where:
        changes = merge(changes, patch(path, {name: None}))
    return changes


def as_section(value: Any) -> Mapping[str, Any]:
    """A value that may be a section; empty where it is none.

    Most values are dicts or missing. To check for these two first saves most of the time, since
    the check of the abstract class is slow.
    """
    if type(value) is dict:
        return value
    if value is None:
        return _NO_SECTION
    return value if isinstance(value, Mapping) else _NO_SECTION


def section_at(config: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The section under a dotted path, the empty one the whole; empty where there is none."""
    for part in path.split(".") if path else ():
        config = as_section(config.get(part))
    return config


def changed(config: Mapping[str, Any], changes: Patch) -> dict[str, Any]:
    """A configuration after changes; its own nulls stay."""
    after = dict(config)
    for name, value in changes.items():
        if isinstance(value, Mapping):
            after[name] = changed(as_section(after.get(name)), value)
        elif value is None:
            after.pop(name, None)
        else:
            after[name] = value
    return after
