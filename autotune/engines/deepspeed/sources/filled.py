"""The configuration that DeepSpeed gets: what Trainer and accelerate make of a user's."""

from collections.abc import Mapping
from typing import Any

from autotune.base.nested import dotted, look_up
from autotune.engines.deepspeed.rules.base import changed, patch
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.sources.consumers import (
    FILLED,
    HIDDEN_SIZES,
    Consumer,
    autos,
    inserted,
    is_known_value,
    known_values,
    precision_of,
)
from autotune.engines.deepspeed.sources.reading import Source
from autotune.space.rule import Patch


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
    after |= inserted(config, source.consumer, asked_precision(source))
    # accelerate switches off what nobody asked for: an old `bfloat16` is not read beside it.
    after |= {name: {"enabled": False} for name in ("fp16", "bf16") if name not in after}
    known = known_of(source)
    for path in autos(config):
        key = dotted(path)
        if key not in FILLED[source.consumer] or known.get(key) is None:
            unknown.add(path)
        else:
            after = changed(after, at_key(key, known[key]))
    return after, unknown


def with_hidden_sizes(
    config: Mapping[str, Any], consumer: Consumer, hidden: int
) -> dict[str, Any]:
    """The configuration with the sizes that a consumer takes from the model's, where it is "auto".

    Args:
        config: The configuration.
        consumer: Who hands it to DeepSpeed.
        hidden: Hidden size of the model.
    """
    after: dict[str, Any] = dict(config)
    for key, size in HIDDEN_SIZES.items() if consumer is not Consumer.DEEPSPEED else ():
        if look_up(config, key) == AUTO:
            after = changed(after, at_key(key, size(hidden)))
    return after


def asked_precision(source: Source) -> str | None:
    """What accelerate, or Trainer by its arguments, is told to train in; None: nobody says."""
    asked = source.mixed_precision or precision_of(source.arguments)
    return None if asked is None else asked.lower()


def known_of(source: Source) -> dict[str, Any]:
    """Key, dotted -> what the consumer puts there, as far as that is known."""
    if source.consumer is Consumer.TRAINER:
        arguments = {
            name: value for name, value in source.arguments.items() if is_known_value(name, value)
        }
        return known_values(arguments, source.world)
    known: dict[str, Any] = {}
    asked = asked_precision(source)
    if asked in ("no", "fp16", "bf16"):
        known = {f"{name}.enabled": asked == name for name in ("fp16", "bf16")}
    return {"gradient_clipping": 1.0, **known}


def at_key(dotted: str, value: Any) -> Patch:
    """The change of one key, by its dotted name."""
    section, _, name = dotted.rpartition(".")
    return patch(section, {name: value})
