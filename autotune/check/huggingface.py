"""What Hugging Face Trainer and accelerate do with a configuration before DeepSpeed sees it."""

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from autotune.base.nested import look_up, merge
from autotune.check.consumers import (
    ARGUMENTS,
    AUTO,
    FILLED,
    Consumer,
    autos,
    inserted,
    is_known_value,
    known_values,
    precision_of,
)
from autotune.check.source import Source
from autotune.engines.deepspeed.rules.base import changed, patch
from autotune.space.rule import Patch, Violation


def filled(
    config: Mapping[str, Any], source: Source
) -> tuple[dict[str, Any], set[tuple[str, ...]]]:
    """The configuration that DeepSpeed gets, as far as it is known.

    Returns:
        The configuration with every "auto" replaced for which a value is known; and where it is
        the consumer that will put one that is not known, or refuse to.
    """
    after: dict[str, Any] = dict(config)
    unknown: set[tuple[str, ...]] = set(source.unknown)
    if source.consumer is Consumer.DEEPSPEED:
        return after, unknown  # DeepSpeed gets the word
    precision = source.mixed_precision or precision_of(source.arguments)
    after |= inserted(config, source.consumer, precision)
    known = _known(source)
    for path in autos(config):
        key = ".".join(path)
        if key not in FILLED[source.consumer] or known.get(key) is None:
            unknown.add(path)
        else:
            after = changed(after, _at_key(key, known[key]))
    return after, unknown


def violations(config: Mapping[str, Any], source: Source) -> list[Violation]:
    """What a consumer refuses or overwrites; nothing for raw DeepSpeed."""
    if source.consumer is Consumer.DEEPSPEED:
        return []
    found = [*_not_filled(config, source), *_no_zero(config), *_overwritten(config)]
    if source.consumer is Consumer.TRAINER:
        found += _mismatches(config, source)
    return [*found, *_precision(config, source), *_yaml_file(source)]


def _known(source: Source) -> dict[str, Any]:
    if source.consumer is Consumer.TRAINER:
        arguments = {
            name: value for name, value in source.arguments.items() if is_known_value(name, value)
        }
        return known_values(arguments, source.world)
    known: dict[str, Any] = {}
    if source.mixed_precision in ("no", "fp16", "bf16"):
        known = {f"{name}.enabled": source.mixed_precision == name for name in ("fp16", "bf16")}
    return {"gradient_clipping": 1.0, **known}


def _not_filled(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    names = [".".join(path) for path in autos(config)]
    wrong = [name for name in names if name not in FILLED[source.consumer]]
    if not wrong:
        return
    changes = reduce(merge, (_at_key(name, None) for name in wrong))
    yield Violation(
        rule="huggingface.auto_not_filled",
        message=f'"auto" at {", ".join(wrong)}: {source.consumer} fills in other keys, and '
        "refuses the word there",
        fix=f"remove {' and '.join(wrong)}, or write the value",
        changes=changes,
    )


def _no_zero(config: Mapping[str, Any]) -> Iterator[Violation]:
    tuned = look_up(config, "autotuning.enabled") is True  # the tuner writes one into each trial's
    if "zero_optimization" not in config and not tuned:
        yield Violation(
            rule="huggingface.no_zero_section",
            message="no zero_optimization: accelerate refuses a file without the section",
            fix="set zero_optimization.stage to 0",
            changes={"zero_optimization": {"stage": 0}},
        )


def _overwritten(config: Mapping[str, Any]) -> Iterator[Violation]:
    steps = config.get("steps_per_print")
    if steps not in (None, AUTO):
        yield Violation(
            rule="huggingface.overwritten",
            message=f"steps_per_print={steps!r}: accelerate overwrites it with infinity",
            fix="remove steps_per_print",
            changes={"steps_per_print": None},
            consequence="ignored",
        )


def _mismatches(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    known = _known(source)
    if source.arguments.get("auto_find_batch_size") is True:
        known = {key: value for key, value in known.items() if "batch_size" not in key}
    names = {argument.key: argument.name for argument in ARGUMENTS} | {
        "optimizer.params.betas": "adam_beta1 and adam_beta2",
        "train_batch_size": "world * per_device_train_batch_size * gradient_accumulation_steps",
    }
    told = []
    changes: dict[str, Any] = {}
    for key, wanted in known.items():
        value = look_up(config, key)
        if value is None or value in (AUTO, wanted):
            continue
        told.append(f"{key}={value!r} against {names[key]}={wanted!r}")
        changes = merge(changes, _at_key(key, AUTO))
    if told:
        yield Violation(
            rule="huggingface.mismatch",
            message=f"{'; '.join(told)}: Trainer refuses values that differ from its arguments",
            fix='write "auto" there, or the same value',
            changes=changes,
        )


def _precision(config: Mapping[str, Any], source: Source) -> Iterator[Violation]:
    asked = source.mixed_precision
    if source.consumer is not Consumer.ACCELERATE or asked not in ("fp16", "bf16", "fp8"):
        return
    other = "bf16" if asked == "fp16" else "fp16"
    if look_up(config, f"{other}.enabled") is True:
        yield Violation(
            rule="huggingface.mixed_precision",
            message=f"mixed_precision={asked} with {other}.enabled=true: accelerate refuses it",
            fix=f"set {other}.enabled to {AUTO}",
            changes={other: {"enabled": AUTO}},
        )


def _yaml_file(source: Source) -> Iterator[Violation]:
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


def _at_key(dotted: str, value: Any) -> Patch:
    """The change of one key, by its dotted name."""
    section, _, name = dotted.rpartition(".")
    return patch(section, {name: value})
