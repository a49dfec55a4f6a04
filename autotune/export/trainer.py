"""What the Hugging Face family is told: TrainingArguments, and a ds_config with its "auto".

Source: transformers/integrations/deepspeed.py (trainer_config_process), accelerate/accelerator.py
(_prepare_deepspeed).
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.nested import look_up, merge, nested
from autotune.contract import read_bounded
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.knobs.situation import recompute_interval
from autotune.engines.deepspeed.rules.base import BATCH_KEYS
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.sources.consumers import ARGUMENTS, BETAS
from autotune.export.base import Handout
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.guest.frameworks import RECOMPUTE_NAMES

FOLLOWING = (
    *("scheduler.params.warmup_max_lr", "scheduler.params.warmup_min_lr"),
    "scheduler.params.total_num_steps",
)
"""Keys that Trainer works out from its other arguments."""
OWNED: Mapping[str, tuple[str, ...]] = {
    **{one.key: (one.name,) for one in ARGUMENTS if one.key not in FOLLOWING},
    "optimizer.params.betas": BETAS,
}
"""Key that Trainer compares with its arguments -> those arguments."""
SIZES = {key: OWNED[key][0] for key in BATCH_KEYS[:2]}
"""Key of the batch -> the argument for it."""
TUNED = (*SIZES, "bf16.enabled", "fp16.enabled")
"""Those that a candidate decides; the others are the user's."""
ADAMS = tuple(f"optimizer.params.{name}" for name in ("lr", "betas", "eps", "weight_decay"))
"""Keys that Trainer fills in for Adam, and passes over where the file lacks them."""
_OF_THE_SCRIPT = (
    *("attention", "compile", "loss_chunk_tokens", "mlp_chunk_tokens", "offload.activations"),
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
    if str(look_up(config, "optimizer.type")).lower() in ("adam", "adamw"):
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
    return merge(config, nested((key.split("."), AUTO) for key in keys))


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
    # Consumers have defaults of their own.
    off = {"bf16": False, "fp16": False} if handout.workload.precision == "fp32" else {}
    switches = {
        "torch_compile": settings.get("compile", "none") != "none",
        "use_cpu": handout.environment.accelerator == "cpu",
    }
    return {
        "tuned": found.arguments,
        "arguments": {"deepspeed": CONFIG_FILE, **found.arguments, **off},
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
        name, takes_every = RECOMPUTE_NAMES[-1], True
    if recompute == "none":
        return {name: False}
    kwargs: dict[str, Any] = {"use_reentrant": False}
    if recompute != "full":
        if not takes_every:
            raise RenderError.of(
                "export.recompute_in_part", recompute=recompute, consumer=consumer
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
    known = (name for name in RECOMPUTE_NAMES if f"\n    {name}: " in text)
    return next(known, RECOMPUTE_NAMES[-1]), "every_n_layers" in text


def refuse_unsaid(handout: Handout, consumer: str, *, says: Collection[str]) -> None:
    """Refuse a configuration with settings that a consumer's files cannot say.

    Args:
        handout: The configuration.
        consumer: Its name for people.
        says: Knobs that its files say besides the keys of DeepSpeed's: `recompute` stands for that
            of some layers, `adapters` for LoRA, `model` for one that a function builds.

    Raises:
        RenderError: There is such a setting; all of them are named.
    """
    unsaid = {name: value for name, value in _asked(handout).items() if name not in says}
    if unsaid:
        raise RenderError(
            f"{consumer} has no setting for {', '.join(f'{n}={v}' for n, v in unsaid.items())}",
            "give `--to deepspeed`, whose script does it, or a configuration without "
            f"{', '.join(unsaid)}",
        )


def _asked(handout: Handout) -> dict[str, Any]:
    layout, settings, source = handout.layout, handout.workload.settings, handout.job.model.source
    ep = handout.candidate.get("ep", 1)
    degrees = {"tp": layout.tp, "pp": layout.pp, "sp": layout.sp, "ep": ep}
    recompute = str(settings.get("recompute", "none"))
    binds_cores = handout.environment.accelerator != "cpu" and handout.settings["binds_cores"]
    return {
        **{name: degree for name, degree in degrees.items() if degree != 1},
        **({"recompute": recompute} if recompute.startswith("every_") else {}),
        **{
            name: settings[name]
            for name in _OF_THE_SCRIPT
            if settings.get(name, KNOBS[name].default) != KNOBS[name].default
        },
        **({"adapters": "lora"} if "lora" in source else {}),
        **({"model": source["factory"]} if "factory" in source else {}),
        **({"core_binding": "ranks"} if binds_cores else {}),
    }
