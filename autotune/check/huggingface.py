"""How Hugging Face Trainer and accelerate change a configuration before DeepSpeed sees it."""

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.base.flags import flag
from autotune.base.names import misspelt
from autotune.base.nested import dotted, look_up, merge, path_of, value_at
from autotune.engines.deepspeed.rules.base import moved, patch
from autotune.engines.deepspeed.rules.schema import HOMES
from autotune.engines.deepspeed.rules.sections import ACCELERATES, AUTO, SECTIONS, shown
from autotune.engines.deepspeed.sources import accelerate
from autotune.engines.deepspeed.sources.accelerate import FLAGS
from autotune.engines.deepspeed.sources.consumers import (
    ARGUMENTS,
    BETAS,
    FILLED,
    Consumer,
    autos,
    inserted,
)
from autotune.engines.deepspeed.sources.file_rules import violation_of
from autotune.engines.deepspeed.sources.filled import asked_precision, known_of
from autotune.engines.deepspeed.sources.programs import PROGRAMS
from autotune.engines.deepspeed.sources.reading import Source
from autotune.engines.deepspeed.sources.refusals import of_stage
from autotune.engines.deepspeed.sources.training import defaults_of
from autotune.space.rule import Consequence, NotJudged, Violation

_MICRO, _ACCUM = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def violations(config: Mapping[str, Any], source: Source) -> list[Violation]:
    """Violations that a consumer finds or overwrites; none for raw DeepSpeed."""
    if source.consumer is Consumer.DEEPSPEED:
        return []
    found = [*_not_filled(config, source), *_sections(config, source)]
    if source.consumer is Consumer.TRAINER:
        compared = _compared_config(config, source)
        found += [*_mismatches(compared, source), *_defaults(compared, source)]
        found += [*_overruled(config, source), *_unmapped(config, source)]
        found += [*_replaced(config, source), *of_stage(config, source)]
    found += [*_old_bf16(config, source), *_accumulation(config, source), *_flags(config, source)]
    return [*found, *_precision(config, source), *of_accelerates_file(source)]


def _not_filled(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    for path in autos(config):
        name = dotted(path)
        if name in FILLED[source.consumer]:
            continue
        where = next(_meant(path, config, source.consumer), None)
        fix, guess = f"remove {name}, or write the value", ""
        entries: dict[str, Any] = {"changes": _gone(path)}
        if where is not None:
            old, new = where
            there = patch(".".join(new[:-1]), {new[-1]: value_at(config, old)})
            entries = {"changes": merge(_gone(old), there), "moves": {old: new}}
            fix = f"rename {dotted(old)} to {dotted(new)}"
            guess = f": did you mean {dotted(new)}?"
        entries |= {"key": name, "consumer": source.consumer, "guess": guess, "fix": fix}
        yield violation_of("huggingface.auto_not_filled", **entries)


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


def _sections(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    """Sections and keys that accelerate reads in another way than DeepSpeed."""
    tuned = look_up(config, "autotuning.enabled") is True  # the tuner writes one into each trial's
    if "zero_optimization" not in config and not tuned:
        yield violation_of("huggingface.no_zero_section")
    given = config.get("zero_optimization")
    if type(given) is bool:
        switch = str(given).lower()
        yield violation_of("huggingface.zero_switch", switch=switch, stage=int(given))
    stage = look_up(config, "zero_optimization.stage")
    if isinstance(stage, str) and stage.strip() == "3":
        yield violation_of("huggingface.stage_as_text", stage=stage)
    steps = config.get("steps_per_print")
    if steps not in (None, AUTO):
        yield violation_of("huggingface.overwritten", steps=steps)
    # A script of accelerate's may well train without a schedule.
    is_trainer = source.consumer is Consumer.TRAINER
    for name in ("optimizer", "scheduler") if is_trainer else ("optimizer",):
        section = config.get(name)
        if isinstance(section, Mapping) and section.get("type") is None:
            trainers = f"Trainer leaves its own {name} out for the section"
            other = f"accelerate wants no {name} of the script's beside the section"
            then = trainers if is_trainer else other
            yield violation_of("huggingface.section_without_type", name=name, then=then)


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
        if value is None or value in (AUTO, wanted) or path_of(key) in source.unknown:
            continue
        is_on = value is True and key.endswith("16.enabled")
        other = f"; or give {names[key]}=true and no other precision" if is_on else ""
        facts: dict[str, Any] = {"value": shown(key, value), "wanted": shown(key, wanted)}
        facts |= {"key": key, "names": names[key], "other": other}
        yield violation_of("huggingface.mismatch", **facts)


_TRAINERS = defaults_of()
_DEFAULTS: Mapping[str, Any] = {
    **{one.key: _TRAINERS[one.name] for one in ARGUMENTS if one.name in _TRAINERS},
    "optimizer.params.betas": [_TRAINERS[name] for name in BETAS],
    "scheduler.params.warmup_num_steps": 1,
}
"""Key -> what Trainer puts there where nobody gives its argument."""


def _known_and_batch(source: Source) -> dict[str, Any]:
    """`known_of`, and the batch; Trainer's own default stands for a size that nobody gives."""
    known, own_defaults = known_of(source), source.own_defaults
    if source.world is None or not _tells_arguments(source):
        return known
    samples = source.world
    for key in (_MICRO, _ACCUM):
        (name,) = _compared(key)
        is_default = name not in source.arguments and (
            name in source.lost or (own_defaults is not None and name not in own_defaults)
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
    if not isinstance(given, Mapping) or _MICRO not in given:
        yield violation_of("huggingface.arg_mappings")


_SEVERAL: Mapping[str, tuple[str, ...]] = {
    "train_batch_size": ("per_device_train_batch_size", "gradient_accumulation_steps"),
    "optimizer.params.betas": BETAS,
}
"""Key -> the arguments that Trainer compares it with, where they are several."""
_BY_LENGTH = ("scheduler.params.warmup_num_steps", "scheduler.params.total_num_steps")
"""Keys that Trainer compares with steps that it counts from the data, unless told."""


def _compared(key: str) -> tuple[str, ...]:
    return _SEVERAL.get(key) or tuple(one.name for one in ARGUMENTS if one.key == key)


def _given(key: str, source: Source) -> list[str]:
    """Names of the arguments that say what Trainer compares a key with, as far as given."""
    names = _compared(key)
    older = ("warmup_ratio",) if "warmup_steps" in names else ()
    return [name for name in (*names, *older) if name in source.arguments]


def not_compared(source: Source) -> Iterator[NotJudged]:
    """Values of a file that Trainer compares with arguments that nobody here knows."""
    section = source.accelerate.data.get("deepspeed_config")
    if source.is_trainers is None and look_up(section or {}, _ACCUM) == AUTO:
        yield NotJudged(
            what=f"{_ACCUM}=auto",
            why="Trainer fills it in, a script that calls accelerate itself ends with an "
            f"exception: give the line with {flag('launch')}",
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
        words = [one for one in given if isinstance(one, str)]
        decides = (
            f"{source.reader or 'the script'} decides" if AUTO in words else "only the shell knows"
        )
        why = f"{decides} {words[0]}" if words else ""
        if not why and key in _BY_LENGTH and source.arguments:
            why = "the length of the training decides"
        if key == "train_batch_size" and source.world is None and source.arguments:
            why = why or f"the number of ranks is not known: give it with {flag('world')}"
        why = why or source.arguments_unread
        by_reason.setdefault(why, []).append(key)
    for why, open_keys in by_reason.items():
        names = dict.fromkeys(name for key in open_keys for name in _compared(key))
        yield NotJudged(what=f"{', '.join(open_keys)} against {', '.join(names)}", why=why)


def _is_defaults(key: str, value: Any, source: Source) -> bool:
    """Whether Trainer's own default stands beside a value; `_defaults` judges those."""
    names, own_defaults = _compared(key), source.own_defaults
    if key not in _DEFAULTS or _given(key, source):
        return False
    if value == _DEFAULTS[key] or source.lost.issuperset(names):
        return True
    return own_defaults is not None and own_defaults.isdisjoint(names)


def _tells_arguments(source: Source) -> bool:
    return bool(source.arguments or source.own_defaults is not None) and not source.reader


def _defaults(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    """Values that differ from arguments that are not given.

    Scripts have defaults of their own, as TRL's have: a note, unless the script tells.
    """
    if not _tells_arguments(source):
        return
    known, own_defaults = known_of(source), source.own_defaults
    for key, default in _DEFAULTS.items():
        value, names = look_up(config, key), _compared(key)
        is_given = key in known or _given(key, source)
        is_open = value is None or path_of(key) in source.unknown
        if is_given or is_open or value in (AUTO, default):
            continue
        if own_defaults is None or own_defaults.isdisjoint(names):
            is_note = own_defaults is None and source.lost.isdisjoint(names)
            facts = {"key": key, "value": value, "name": " and ".join(names), "default": default}
            yield violation_of("huggingface.default_mismatch", is_note=is_note, **facts)


def _overruled(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    for argument, name in (("optim", "optimizer"), ("lr_scheduler_type", "scheduler")):
        given, section = source.arguments.get(argument), config.get(name)
        if given is not None and isinstance(section, Mapping):
            facts = {"name": name, "argument": argument, "given": given}
            facts["type"] = section.get("type")
            yield violation_of("huggingface.argument_ignored", **facts)


_KEPT_BESIDE_OFFLOAD = frozenset(PROGRAMS["accelerate"]["optimizers_for_the_cpu"])
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
    if is_offloaded and "$" not in optim:
        rule, ends = "huggingface.optimizer_replaced", "adafactor" in optim
        end = ", which its settings end with an exception" * ends
        yield violation_of(rule, consequence="raised" if ends else None, optim=optim, end=end)


def _old_bf16(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    if "bfloat16" not in config or "bf16" in config:
        return
    old = config["bfloat16"]
    if isinstance(old, Mapping) and AUTO in old.values():
        return  # refused, see `_not_filled`
    added = inserted(config, source.consumer, asked_precision(source)).get("bf16", {})
    is_on = bool(added.get("enabled"))
    is_other = isinstance(old, Mapping) and old.get("enabled", False) is not is_on
    entries = moved(("", "bfloat16"), ("", "bf16"), old) | {"switch": str(is_on).lower()}
    differs: Consequence | None = "differs" if is_other else None
    yield violation_of("huggingface.old_bf16", consequence=differs, **entries)


def _accumulation(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    # Without a micro-batch it does not multiply.
    if config.get(_ACCUM, AUTO) is None and config.get(_MICRO) is not None:
        yield violation_of("huggingface.null_accumulation", consumer=source.consumer)
    asked = {**source.line.plugin, **source.arguments}.get(_ACCUM)
    if _ACCUM not in config and type(asked) is int and asked != 1:
        yield violation_of("huggingface.accumulation_lost", asked=asked)


def _flags(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    if source.consumer is not Consumer.ACCELERATE or source.is_made:
        return
    for name in FLAGS:
        key = ACCELERATES[name]
        asked, value = source.line.plugin.get(name), look_up(config, key)
        if asked is None or value is None or value in (AUTO, asked):
            continue
        if name != "zero3_save_16bit_model":  # it only saves
            facts = {"flag": name, "asked": asked, "key": key, "value": value}
            yield violation_of("huggingface.flag_ignored", **facts)


def _precision(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    asked = asked_precision(source)
    added = inserted(config, source.consumer, asked)
    for name in () if source.is_made else ("fp16", "bf16"):
        if name in added:
            yield violation_of("huggingface.precision_added", name=name)
    if source.consumer is not Consumer.ACCELERATE or asked not in ("fp16", "bf16", "fp8"):
        return
    name, other = ("fp16", "bf16") if asked == "fp16" else ("bf16", "fp16")
    if look_up(config, f"{name}.enabled") is False:
        yield violation_of("huggingface.mixed_precision_lost", asked=asked, name=name)
    if look_up(config, f"{other}.enabled") is True:
        yield violation_of("huggingface.mixed_precision", asked=asked, name=other)


def of_accelerates_file(source: Source) -> Iterator[Violation]:
    """Violations of accelerate's YAML, by itself and beside the configuration."""
    if source.accelerate.path is not None:
        yield from accelerate.violations(
            source.accelerate.data,
            ranks=source.line.ranks.world or source.world,
            fills_in=source.is_trainers is not False,
        )
    if source.beside_file:
        at = (
            name if name in source.accelerate.data else f"{accelerate.SECTION}.{name}"
            for name in source.beside_file
        )
        named, file = ", ".join(source.beside_file), source.path.name
        yield violation_of("huggingface.accelerate_duplicate", *at, named=named, file=file)
    if source.not_for and source.has_deepspeed:
        yield violation_of("huggingface.not_deepspeed", kind=source.not_for)
