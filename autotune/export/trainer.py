"""What the Hugging Face family is told: TrainingArguments, and a ds_config with its "auto".

Source: transformers/integrations/deepspeed.py (trainer_config_process), accelerate/accelerator.py
(_prepare_deepspeed).
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.nested import look_up, merge
from autotune.contract import read_bounded
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.knobs.situation import recompute_interval
from autotune.engines.deepspeed.rules.base import BATCH_KEYS
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.export.base import Handout
from autotune.trial.engines.deepspeed import CONFIG_FILE

OWNED: Mapping[str, tuple[str, ...]] = {
    "train_micro_batch_size_per_gpu": ("per_device_train_batch_size",),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "gradient_clipping": ("max_grad_norm",),
    "optimizer.params.lr": ("learning_rate",),
    "optimizer.params.betas": ("adam_beta1", "adam_beta2"),
    "optimizer.params.eps": ("adam_epsilon",),
    "optimizer.params.weight_decay": ("weight_decay",),
    "scheduler.params.warmup_num_steps": ("warmup_steps",),
    "bf16.enabled": ("bf16",),
    "fp16.enabled": ("fp16",),
}
"""Key that Trainer compares with its arguments -> those arguments."""
SIZES = {key: OWNED[key][0] for key in BATCH_KEYS[:2]}
"""Key of the batch -> the argument for it."""
TUNED = (
    *("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    *("bf16.enabled", "fp16.enabled"),
)
"""Those that a candidate decides; the others are the user's."""
ADAMS = tuple(f"optimizer.params.{name}" for name in ("lr", "betas", "eps", "weight_decay"))
"""Keys that Trainer fills in for Adam, and passes over where the file lacks them."""
FOLLOWING = (
    *("scheduler.params.warmup_max_lr", "scheduler.params.warmup_min_lr"),
    "scheduler.params.total_num_steps",
)
"""Keys that Trainer works out from its other arguments."""
_RECOMPUTE = ("activation_checkpointing", "gradient_checkpointing")
"""The name of the argument, the newest first."""


class Setting(StrEnum):
    """What a configuration may ask of a script besides the keys of DeepSpeed's file."""

    TP = "tp"
    PP = "pp"
    SP = "sp"
    EP = "ep"
    SOME_LAYERS = "recompute"
    """Recomputation of every K-th layer alone."""
    ATTENTION = "attention"
    LOSS_CHUNKS = "loss_chunk_tokens"
    MLP_CHUNKS = "mlp_chunk_tokens"
    INPUTS_ON_HOST = "offload.activations"
    COMPILE = "compile"
    ADAPTERS = "adapters"
    FACTORY = "model"
    """A model that a function of the user's builds."""
    CORES = "core_binding"


_OF_THE_SCRIPT = (
    *(Setting.ATTENTION, Setting.COMPILE, Setting.LOSS_CHUNKS, Setting.MLP_CHUNKS),
    Setting.INPUTS_ON_HOST,
)
"""Knobs that the trials' own script brings into force."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A configuration in Trainer's words."""

    config: dict[str, Any]
    """DeepSpeed's, with "auto" where Trainer owns the key."""
    arguments: dict[str, Any]
    """Fields of TrainingArguments that the candidate decides, recomputation and compilation
    apart."""
    of_the_run: dict[str, Any]
    """Those that it does not: a user keeps their own."""


def trained(handout: Handout) -> Trained:
    """What Trainer is told, each value in one place."""
    config = family_config(handout)
    # One that the user's own file leaves to Trainer.
    schedule, instead = handout.overridden.get("scheduler", (None, None))
    if schedule is not None and instead is None:
        config["scheduler"] = schedule
    tuned: dict[str, Any] = {}
    of_the_run: dict[str, Any] = {}
    for key, names in OWNED.items():
        value = look_up(config, key)
        if value in (None, AUTO):
            continue
        values = value if isinstance(value, list) else [value]
        arguments = tuned if key in TUNED else of_the_run
        arguments |= dict(zip(names, values, strict=True))
        config = with_autos(config, [key])
    config = with_autos(config, [key for key in FOLLOWING if look_up(config, key) is not None])
    if _has_adam(config):
        config = with_autos(config, [key for key in ADAMS if is_open(handout, key)])
    of_the_run["seed"] = handout.workload.seed
    return Trained(config=config, arguments=tuned, of_the_run=of_the_run)


def untuned(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Keys of a configuration that no trial chose, with the values that they have in numbers."""
    found = ((key, look_up(config, key)) for key in OWNED if key not in TUNED)
    return [(key, value) for key, value in found if value not in (None, AUTO)]


def is_open(handout: Handout, key: str) -> bool:
    """True if a user's own file leaves a value to its consumer, or there is no such file."""
    if handout.job.base_config is None and handout.job.baseline is None:
        return True
    user_value, _ = handout.overridden.get(key, (None, None))
    return isinstance(user_value, str) and user_value == AUTO


def _has_adam(config: Mapping[str, Any]) -> bool:
    return str(look_up(config, "optimizer.type")).lower() in ("adam", "adamw")


def family_config(handout: Handout) -> dict[str, Any]:
    """DeepSpeed's configuration without what nobody of the family takes from it.

    The global batch follows from the micro-batch, the accumulation and the ranks. Written, even as
    "auto", it is refused at stage 3: zero.Init multiplies them for a world of 1, before the
    process group is there (transformers 5.23, DeepSpeed 0.19.8: "8 != 2 * 2 * 1"). accelerate
    overwrites `steps_per_print` with infinity.
    """
    config: dict[str, Any] = json.loads(handout.exported[CONFIG_FILE])
    for key in ("train_batch_size", "steps_per_print"):
        config.pop(key, None)
    return config


def with_autos(config: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """A configuration with "auto" under some dotted keys."""
    found = dict(config)
    for key in keys:
        value: Any = AUTO
        for name in reversed(key.split(".")):
            value = {name: value}
        found = merge(found, value)
    return found


def config_in_numbers(handout: Handout) -> dict[str, Any]:
    """DeepSpeed's configuration for consumers that own no key of it."""
    config = family_config(handout)
    config["train_micro_batch_size_per_gpu"] = handout.candidate.micro_batch
    return config


def trainer_values(handout: Handout, consumer: str) -> dict[str, Any]:
    """Fields of TrainingArguments, by who decides them: see templates/hf/fields.yaml.j2.

    Raises:
        RenderError: The installed transformers cannot recompute every K-th layer.
    """
    found, settings = trained(handout), handout.workload.settings
    is_fp32 = handout.workload.precision == "fp32"  # consumers have defaults of their own
    switches = {
        "torch_compile": settings.get("compile", "none") != "none",
        "use_cpu": handout.environment.accelerator == "cpu",
    }
    return {
        "tuned": found.arguments,
        "arguments": {
            "deepspeed": CONFIG_FILE,
            **found.arguments,
            **({"bf16": False, "fp16": False} if is_fp32 else {}),
        },
        "recomputation": recompute_arguments(handout, consumer),
        "switches": {name: True for name, is_on in switches.items() if is_on},
        "of_the_run": found.of_the_run,
    }


def recompute_arguments(handout: Handout, consumer: str) -> dict[str, Any]:
    """Recomputation under the names that the installed transformers has.

    Of machines that nobody saw, the older names are written: newer releases take them, too.

    Raises:
        RenderError: It cannot recompute every K-th layer.
    """
    recompute = handout.workload.settings.get("recompute", "none")
    name, takes_every = recompute_names()
    if handout.is_described:
        name, takes_every = _RECOMPUTE[-1], True
    if recompute == "none":
        return {name: False}
    kwargs: dict[str, Any] = {"use_reentrant": False}
    if recompute != "full":
        if not takes_every:
            raise RenderError(
                f"recompute={recompute}: {consumer} of the installed transformers recomputes all "
                "layers or none",
                "name a trial with recompute none or full by --trial, or upgrade transformers",
            )
        kwargs["every_n_layers"] = recompute_interval(recompute)
    return {name: True, f"{name}_kwargs": kwargs}


@cache
def recompute_names() -> tuple[str, bool]:
    """The installed transformers' name of recomputation, and whether it takes every K-th layer.

    Read off its source: importing it would take seconds.
    """
    spec = find_spec("transformers")
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    text = "".join(
        read_bounded(path).decode("utf-8")
        for place in places
        if (path := Path(place) / "training_args.py").is_file()
    )
    name = next((known for known in _RECOMPUTE if f"\n    {known}: " in text), _RECOMPUTE[-1])
    return name, "every_n_layers" in text


def refuse_unsaid(handout: Handout, consumer: str, *, says: Collection[Setting]) -> None:
    """Refuse a configuration with settings that a consumer's files cannot say.

    Raises:
        RenderError: There is such a setting; all of them are named.
    """
    unsaid = [f"{name}={value}" for name, value in _asked(handout).items() if name not in says]
    if unsaid:
        raise RenderError(
            f"{consumer} has no setting for {', '.join(unsaid)}",
            "export with `--to deepspeed`, whose script does it, or name a trial without it by "
            "--trial",
        )


def _asked(handout: Handout) -> dict[Setting, Any]:
    """What a configuration asks for besides the keys of the file."""
    layout, settings, source = handout.layout, handout.workload.settings, handout.job.model.source
    asked: dict[Setting, Any] = {
        Setting.TP: layout.tp,
        Setting.PP: layout.pp,
        Setting.SP: layout.sp,
        Setting.EP: handout.candidate.get("ep", 1),
    }
    found = {name: value for name, value in asked.items() if value != 1}
    recompute = str(settings.get("recompute", "none"))
    if recompute.startswith("every_"):
        found[Setting.SOME_LAYERS] = recompute
    for setting in _OF_THE_SCRIPT:
        neutral = KNOBS[setting].default
        if settings.get(setting, neutral) != neutral:
            found[setting] = settings[setting]
    if "lora" in source:
        found[Setting.ADAPTERS] = "lora"
    if "factory" in source:
        found[Setting.FACTORY] = source["factory"]
    if handout.environment.accelerator != "cpu" and handout.settings["binds_cores"]:
        found[Setting.CORES] = "ranks"
    return found
