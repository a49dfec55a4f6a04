"""How Hugging Face Trainer and accelerate change a configuration before DeepSpeed sees it."""

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.base.nested import dotted, look_up, merge, path_of, value_at
from autotune.engines.deepspeed.rules.base import patch
from autotune.engines.deepspeed.rules.keys import SECTIONS
from autotune.engines.deepspeed.rules.schema import HOMES
from autotune.engines.deepspeed.rules.sections import AUTO, shown
from autotune.engines.deepspeed.rules.spelling import misspelt
from autotune.engines.deepspeed.sources import accelerate_fields
from autotune.engines.deepspeed.sources.accelerate_names import FLAGS, KEYS
from autotune.engines.deepspeed.sources.consumers import (
    ARGUMENTS,
    BETAS,
    FILLED,
    Consumer,
    autos,
    inserted,
)
from autotune.engines.deepspeed.sources.filled import asked_precision, at_key, known_of
from autotune.engines.deepspeed.sources.source import Source
from autotune.space.rule import Choice, NotJudged, Violation


def violations(config: Mapping[str, Any], source: Source) -> list[Violation]:
    """Violations that a consumer finds or overwrites; none for raw DeepSpeed."""
    if source.consumer is Consumer.DEEPSPEED:
        return []
    found = [*_not_filled(config, source), *_no_zero(config), *_overwritten(config)]
    if source.consumer is Consumer.TRAINER:
        compared = _compared_config(config, source)
        found += [*_mismatches(compared, source), *_defaults(compared, source)]
        found += [*_overruled(config, source), *_unmapped(config, source)]
        found += _replaced(config, source)
    found += [*_without_type(config, source.consumer), *_old_bf16(config, source)]
    found += [*_null_accumulation(config, source.consumer)]
    found += [*_accumulation(config, source), *_flags(config, source)]
    found += _switched_on(config, source)
    return [*found, *_precision(config, source), *_yaml_file(source)]


def _not_filled(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    for path in autos(config):
        name = dotted(path)
        if name in FILLED[source.consumer]:
            continue
        where = next(_meant(path, config, source.consumer), None)
        message = (
            f'"{AUTO}" at {name}: {source.consumer} fills in other keys, and refuses the word'
        )
        if where is None:
            changes, fix = _gone(path), f"remove {name}, or write the value"
            message += " there"
        else:
            old, new = where
            moved = patch(".".join(new[:-1]), {new[-1]: value_at(config, old)})
            changes, fix = merge(_gone(old), moved), f"rename {dotted(old)} to {dotted(new)}"
            message += f" there: did you mean {dotted(new)}?"
        yield Violation(
            rule="huggingface.auto_not_filled",
            message=message,
            fix=fix,
            at=(name,),
            changes=changes,
        )


def _meant(
    path: tuple[str, ...], config: Mapping[str, Any], consumer: Consumer
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """A key on the way to an "auto", and where it has to be for the "auto" to be filled in."""
    for depth, name in enumerate(path):
        above, below = path[:depth], path[depth + 1 :]
        section = SECTIONS.get(".".join(above))
        near = section and misspelt(name, [one for one in section.keys if one != name])
        places = [(*above, near)] if near else []
        if not above:
            places += [("bf16",)] if name == "bfloat16" else []
            places += [(*path_of(HOMES[name]), name)] if HOMES.get(name) else []
        elif path[0] in ("optimizer", "scheduler"):
            places.append((*above, "params", name))
        for new in places:
            is_free = look_up(config, dotted(new)) is None
            if is_free and dotted((*new, *below)) in FILLED[consumer]:
                yield (*above, name), new


def _gone(path: tuple[str, ...]) -> dict[str, Any]:
    return {path[0]: _gone(path[1:]) if path[1:] else None}


def _no_zero(config: Mapping[str, Any]) -> Iterator[Violation]:
    tuned = look_up(config, "autotuning.enabled") is True  # the tuner writes one into each trial's
    if "zero_optimization" not in config and not tuned:
        yield Violation(
            rule="huggingface.no_zero_section",
            message="no zero_optimization: accelerate refuses a file without the section",
            fix="set zero_optimization.stage to 0",
            changes={"zero_optimization": {"stage": 0}},
        )
    given = config.get("zero_optimization")
    if type(given) is bool:
        yield Violation(
            rule="huggingface.zero_switch",
            message=f"zero_optimization={str(given).lower()}: DeepSpeed takes it for a stage, "
            "accelerate asks it for one and raises",
            fix=f"set zero_optimization.stage to {int(given)}",
            at=("zero_optimization",),
            changes={"zero_optimization": {"stage": int(given)}},
        )
    stage = look_up(config, "zero_optimization.stage")
    if isinstance(stage, str) and stage.strip() == "3":
        yield Violation(
            rule="huggingface.stage_as_text",
            message=f'zero_optimization.stage="{stage}": DeepSpeed takes it for 3, accelerate and '
            "transformers do not see stage 3, and gather no parameters where they save",
            fix="set zero_optimization.stage to 3",
            at=("zero_optimization.stage",),
            changes={"zero_optimization": {"stage": 3}},
            consequence="differs",
        )


def _overwritten(config: Mapping[str, Any]) -> Iterator[Violation]:
    steps = config.get("steps_per_print")
    if steps not in (None, AUTO):
        yield Violation(
            rule="huggingface.overwritten",
            message=f"steps_per_print={steps!r}: accelerate overwrites it with infinity",
            fix="nothing needs to be done",
            at=("steps_per_print",),
            consequence="ignored",
            is_note=True,
        )


def _mismatches(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    known = _known_and_batch(source)
    if source.arguments.get("auto_find_batch_size") is True:
        known = {key: value for key, value in known.items() if "batch_size" not in key}
    names = {argument.key: argument.name for argument in ARGUMENTS} | {
        "optimizer.params.betas": "adam_beta1 and adam_beta2",
        "train_batch_size": "world * per_device_train_batch_size * gradient_accumulation_steps",
    }
    for key, wanted in known.items():
        value = look_up(config, key)
        if value is None or value in (AUTO, wanted):
            continue
        yield Violation(
            rule="huggingface.mismatch",
            message=f"{key}={shown(key, value)} against {names[key]}={shown(key, wanted)}: "
            "Trainer refuses values that differ from its arguments",
            fix=f"set {key} to {AUTO}, or to the same value",
            at=(key,),
            changes=at_key(key, AUTO),
        )


_DEFAULTS: Mapping[str, Any] = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "optimizer.params.lr": 5e-5,
    "optimizer.params.eps": 1e-8,
    "optimizer.params.weight_decay": 0.0,
    "optimizer.params.betas": [0.9, 0.999],
    "scheduler.params.warmup_max_lr": 5e-5,
    "scheduler.params.warmup_num_steps": 1,
    "fp16.enabled": False,
    "bf16.enabled": False,
}
"""Key -> what Trainer puts there where nobody gives its argument."""


def _known_and_batch(source: Source) -> dict[str, Any]:
    """`known_of`, and the batch; Trainer's own default stands for a size that nobody gives."""
    known, own = known_of(source), source.own_defaults
    if source.world is None or not source.arguments or source.reader:
        return known
    samples = source.world
    for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        (name,) = _compared(key)
        is_default = name not in source.arguments and (
            name in source.lost or (own is not None and name not in own)
        )
        if key not in known and not is_default:
            return known
        samples *= known.get(key, _DEFAULTS[key])
    return known | {"train_batch_size": samples}


def _compared_config(config: Mapping[str, Any], source: Source) -> Mapping[str, Any]:
    """What Trainer compares: accelerate has put its precision in before, where it starts it."""
    asked = source.mixed_precision
    if asked is None or isinstance(source.arguments.get("deepspeed"), str):
        return config
    for name in ("fp16", "bf16"):
        if look_up(config, f"{name}.enabled") in (None, AUTO) and name not in source.arguments:
            config = merge(config, {name: {"enabled": asked.lower() == name}})
    return config


def _unmapped(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    """DeepSpeed's autotuner, which writes sizes of its own into the file of each trial."""
    tuning = config.get("autotuning")
    if not source.is_tuned or not isinstance(tuning, Mapping) or tuning.get("enabled") is not True:
        return
    given = tuning.get("arg_mappings")
    if isinstance(given, Mapping) and "train_micro_batch_size_per_gpu" in given:
        return
    yield Violation(
        rule="huggingface.arg_mappings",
        message="autotuning without arg_mappings: DeepSpeed's autotuner writes a micro-batch of "
        "its own into the file of each trial, and Trainer, whose argument stays, refuses it",
        fix="set autotuning.arg_mappings as below: the autotuner then changes the arguments, too",
        at=("autotuning",),
        changes={
            "autotuning": {
                "arg_mappings": {
                    "train_micro_batch_size_per_gpu": "--per_device_train_batch_size",
                    "gradient_accumulation_steps": "--gradient_accumulation_steps",
                }
            }
        },
    )


_SEVERAL: Mapping[str, tuple[str, ...]] = {
    "train_batch_size": ("per_device_train_batch_size", "gradient_accumulation_steps"),
    "optimizer.params.betas": BETAS,
}
"""Key -> the arguments that Trainer compares it with, where they are several."""
_BY_LENGTH = ("scheduler.params.warmup_num_steps", "scheduler.params.total_num_steps")
"""Keys that Trainer compares with steps that it counts from the data, unless told."""


def _compared(key: str) -> tuple[str, ...]:
    """Names of the arguments that Trainer compares a key with."""
    return _SEVERAL.get(key) or tuple(one.name for one in ARGUMENTS if one.key == key)


def _given(key: str, source: Source) -> list[str]:
    """Names of the arguments that say what Trainer compares a key with, as far as given."""
    names = _compared(key)
    older = ("warmup_ratio",) if "warmup_steps" in names else ()
    return [name for name in (*names, *older) if name in source.arguments]


def not_compared(source: Source) -> Iterator[NotJudged]:
    """Values of a file that Trainer compares with arguments that nobody here knows."""
    section = (source.accelerate_file or {}).get("deepspeed_config")
    if (
        source.is_trainers is None
        and look_up(section or {}, accelerate_fields.ACCUMULATION) == AUTO
    ):
        yield NotJudged(
            what=f"{accelerate_fields.ACCUMULATION}=auto",
            why="Trainer fills it in, a script that calls accelerate itself ends with an "
            "exception: give the line with --launch",
        )
    if source.consumer is not Consumer.TRAINER:
        return
    known, config = _known_and_batch(source), _compared_config(source.config, source)
    is_searched = source.arguments.get("auto_find_batch_size") is True
    keys = [
        key
        for key in ("train_batch_size", *_DEFAULTS, "scheduler.params.total_num_steps")
        if key not in known
        and not (is_searched and "batch_size" in key)
        and look_up(config, key) not in (None, AUTO)
        and not _is_defaults(key, look_up(config, key), source)
    ]
    by_reason: dict[str, list[str]] = {}
    for key in keys:
        given = [source.arguments[name] for name in _given(key, source)]
        why = next((f"only the shell knows {one}" for one in given if isinstance(one, str)), "")
        if not why and key in _BY_LENGTH and source.arguments:
            why = "the length of the training decides"
        why = why or source.arguments_unread
        by_reason.setdefault(why, []).append(key)
    for why, those in by_reason.items():
        names = dict.fromkeys(name for key in those for name in _compared(key))
        yield NotJudged(what=f"{', '.join(those)} against {', '.join(names)}", why=why)


def _is_defaults(key: str, value: Any, source: Source) -> bool:
    """Whether Trainer's own default stands beside a value; `_defaults` judges those."""
    names, own = _compared(key), source.own_defaults
    if key not in _DEFAULTS or _given(key, source):
        return False
    if value == _DEFAULTS[key]:
        return True
    return source.lost.issuperset(names) or (own is not None and own.isdisjoint(names))


def _defaults(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    """Values that differ from arguments that are not given.

    Scripts have defaults of their own, as TRL's have: a note, unless the script tells.
    """
    if not source.arguments or source.reader:
        return
    known = known_of(source)
    own = source.own_defaults
    for key, default in _DEFAULTS.items():
        value, names = look_up(config, key), _compared(key)
        is_given = key in known or _given(key, source)
        if is_given or value is None or value in (AUTO, default):
            continue
        if own is not None and not own.isdisjoint(names):
            continue
        name = " and ".join(names)
        yield Violation(
            rule="huggingface.default_mismatch",
            message=f"{key}={value!r}, and {name} is not given: Trainer's own default is "
            f"{default!r}, and it refuses values that differ from its arguments",
            fix=f"give {name}={value!r}",
            at=(key,),
            is_note=own is None and source.lost.isdisjoint(names),
        )


def _without_type(config: Mapping[str, Any], consumer: Consumer) -> Iterator[Violation]:
    is_trainer = consumer is Consumer.TRAINER
    # A script of accelerate's may well train without a schedule.
    for name in ("optimizer", "scheduler") if is_trainer else ("optimizer",):
        section = config.get(name)
        if isinstance(section, Mapping) and section.get("type") is None:
            then = (
                f"Trainer leaves its own {name} out for the section"
                if is_trainer
                else f"accelerate wants no {name} of the script's beside the section"
            )
            yield Violation(
                rule="huggingface.section_without_type",
                message=f"{name} without a type: {then}, and DeepSpeed builds none",
                fix=f"set {name}.type, or remove {name}",
                at=(name,),
                choices=(Choice(changes={name: None}),),
            )


_OVERRULED = (("optim", "optimizer"), ("lr_scheduler_type", "scheduler"))


def _overruled(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    for argument, name in _OVERRULED:
        given = source.arguments.get(argument)
        section = config.get(name)
        if given is None or not isinstance(section, Mapping):
            continue
        yield Violation(
            rule="huggingface.argument_ignored",
            message=f"{argument}={given} beside a section {name} (type {section.get('type')}): "
            "the section counts, the argument does not",
            fix=f"remove {name}, or leave {argument} out",
            at=(name,),
            choices=(Choice(changes={name: None}),),
            consequence="ignored",
            is_note=True,
        )


_KEPT_BESIDE_OFFLOAD = frozenset(
    (
        *("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused"),
        *("paged_adamw_32bit", "adagrad", "lion_32bit", "paged_lion_32bit"),
    )
)
"""`optim` of which accelerate takes DeepSpeed's version for the CPU
(accelerate 1.15, utils/deepspeed.py: map_pytorch_optim_to_deepspeed)."""


def _replaced(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    """Another optimizer than AdamW beside an offload: accelerate takes DeepSpeed's Adam for it."""
    optim = source.arguments.get("optim")
    device = look_up(config, "zero_optimization.offload_optimizer.device")
    forces = config.get("zero_force_ds_cpu_optimizer", True)
    is_offloaded = device not in (None, "none") and bool(forces)
    if not isinstance(optim, str) or optim in _KEPT_BESIDE_OFFLOAD or "optimizer" in config:
        return
    if not is_offloaded or "$" in optim:
        return
    raises = "adafactor" in optim
    yield Violation(
        rule="huggingface.optimizer_replaced",
        message=f"optim={optim} beside offload_optimizer, and no section optimizer: accelerate "
        "trains with DeepSpeedCPUAdam in its place"
        + (", which its settings end with an exception" if raises else ""),
        fix="set optim to adamw_torch, or zero_force_ds_cpu_optimizer to false, which keeps it",
        at=("zero_optimization.offload_optimizer",),
        choices=(Choice(changes={"zero_force_ds_cpu_optimizer": False}),),
        consequence="raised" if raises else "differs",
    )


def _old_bf16(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    if "bfloat16" not in config or "bf16" in config:
        return
    old, name = config["bfloat16"], "bf16"
    if isinstance(old, Mapping) and AUTO in old.values():
        return  # refused, see `_not_filled`
    added = inserted(config, source.consumer, asked_precision(source)).get(name, {})
    is_on = bool(added.get("enabled"))
    is_other = isinstance(old, Mapping) and old.get("enabled", False) is not is_on
    yield Violation(
        rule="huggingface.old_bf16",
        message=f"bfloat16 is the old name of {name}: accelerate adds {name}.enabled="
        f"{str(is_on).lower()} beside it, and DeepSpeed reads that alone",
        fix=f"rename bfloat16 to {name}",
        at=("bfloat16",),
        changes={"bfloat16": None, name: old},
        consequence="differs" if is_other else "ignored",
    )


def _null_accumulation(config: Mapping[str, Any], consumer: Consumer) -> Iterator[Violation]:
    key = "gradient_accumulation_steps"
    # Without a micro-batch it does not multiply.
    if config.get(key, AUTO) is not None or config.get("train_micro_batch_size_per_gpu") is None:
        return
    yield Violation(
        rule="huggingface.null_accumulation",
        message=f"{key} is null: DeepSpeed computes it then, but {consumer} multiplies with it "
        "before, and raises",
        fix=f"set {key} to {AUTO}",
        at=(key,),
        changes={key: AUTO},
    )


def _accumulation(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    asked = {**source.flags, **source.arguments}.get("gradient_accumulation_steps")
    if "gradient_accumulation_steps" in config or type(asked) is not int or asked == 1:
        return
    yield Violation(
        rule="huggingface.accumulation_lost",
        message=f"gradient_accumulation_steps={asked} is asked for, and the file has no such key: "
        "accelerate writes 1 there, and DeepSpeed makes a step after every micro-batch",
        fix=f"set gradient_accumulation_steps to {AUTO}",
        at=("gradient_accumulation_steps",),
        changes={"gradient_accumulation_steps": AUTO},
        consequence="differs",
    )


def _switched_on(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    added = inserted(config, source.consumer, asked_precision(source))
    for name in [] if source.is_made else ("fp16", "bf16"):
        if name in added:
            yield Violation(
                rule="huggingface.precision_added",
                message=f"{name} is asked for, and the file has no such section: accelerate adds "
                f"{name}.enabled=true",
                fix=f"set {name}.enabled to {AUTO} to see it in the file",
                at=(name,),
                choices=(Choice(changes={name: {"enabled": AUTO}}),),
                consequence="differs",
                is_note=True,
            )


_COMPARED = [name for name in FLAGS if name != "zero3_save_16bit_model"]  # it only saves


def _flags(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    """Flags that the file overrules without a word."""
    if source.consumer is not Consumer.ACCELERATE or source.is_made:
        return
    for flag in _COMPARED:
        key = KEYS[flag]
        asked, value = source.flags.get(flag), look_up(config, key)
        if asked is None or value is None or value in (AUTO, asked):
            continue
        yield Violation(
            rule="huggingface.flag_ignored",
            message=f"--{flag} {asked} against {key}={value!r}: the file counts, the flag does "
            "not",
            fix=f"leave --{flag} out, or set {key} to {AUTO}",
            at=(key,),
            choices=(Choice(changes=at_key(key, AUTO)), Choice(changes=at_key(key, asked))),
            consequence="ignored",
        )


def _precision(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    asked = asked_precision(source)
    if source.consumer is not Consumer.ACCELERATE or asked not in ("fp16", "bf16", "fp8"):
        return
    own = "fp16" if asked == "fp16" else "bf16"
    if look_up(config, f"{own}.enabled") is False:
        yield Violation(
            rule="huggingface.mixed_precision_lost",
            message=f"mixed_precision={asked} with {own}.enabled=false: the file counts, and "
            "DeepSpeed trains in fp32",
            fix=f"set {own}.enabled to {AUTO}",
            at=(f"{own}.enabled",),
            choices=(Choice(changes={own: {"enabled": AUTO}}),),
            consequence="differs",
        )
    other = "bf16" if asked == "fp16" else "fp16"
    if look_up(config, f"{other}.enabled") is True:
        yield Violation(
            rule="huggingface.mixed_precision",
            message=f"mixed_precision={asked} with {other}.enabled=true: accelerate refuses it",
            fix=f"set {other}.enabled to {AUTO}",
            changes={other: {"enabled": AUTO}},
        )


def _yaml_file(source: Source) -> Iterator[Violation]:
    if source.accelerate_file is not None:
        yield from accelerate_fields.violations(
            source.accelerate_file,
            is_counted=source.world is not None,
            fills_in=source.is_trainers is not False,
        )
    if source.beside_file:
        named = ", ".join(source.beside_file)
        yield Violation(
            rule="huggingface.accelerate_duplicate",
            message=f"the accelerate file has deepspeed_config_file and {named}: accelerate "
            "refuses these beside a file",
            fix=f"remove {named} from the accelerate file; {source.path.name} decides",
        )
    if source.not_for:
        yield Violation(
            rule="huggingface.not_deepspeed",
            message=f"distributed_type={source.not_for} in the accelerate file: accelerate does "
            "not start DeepSpeed, and reads nothing of this",
            fix="set distributed_type to DEEPSPEED in the accelerate file",
            consequence="ignored",
        )
