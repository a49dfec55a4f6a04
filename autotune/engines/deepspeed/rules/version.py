"""Features that the installed release of DeepSpeed no longer has, or not yet."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from autotune.engines.deepspeed.rules.base import Setup, as_section, moved, removal
from autotune.engines.deepspeed.rules.constructors import TAKEN_OUT, takes
from autotune.engines.deepspeed.rules.sections import SECTIONS, Key, dotted, known_items, sections
from autotune.engines.deepspeed.rules.words import finding
from autotune.engines.releases import is_at_least
from autotune.space.rule import Choice, Finding, Patch, rule

REMOVED_OPTIMIZERS: Mapping[str, str] = {
    **dict.fromkeys(("onebitadam", "zerooneadam"), "AdamW"),
    "onebitlamb": "Lamb",
}
"""Optimizer -> the one without compression that takes its place. Both 1-bit Adams decay weights as
AdamW does (0.19.6, runtime/fp16/onebit)."""
OPTIMIZERS_REMOVED_IN = "0.19.7"


def _given(setup: Setup, is_odd: Callable[[Key, str], bool]) -> Iterator[tuple[str, str, Any]]:
    """Path, name and value of the keys of a configuration that are odd in its release."""
    for path, content, section in sections(setup.ds_config):
        for name, key, value in known_items(content, section):
            if is_odd(key, setup.version):
                yield path, name, value


def removed_later(config: Mapping[str, Any], version: str) -> Iterator[str]:
    """What a configuration uses of a release that later ones removed: no rule knows what it does.

    Keys, dotted, that are not off, and `optimizer.type`.
    """
    for path, content, section in sections(config):
        for name, key, value in known_items(content, section):
            if key.removed_in and not key.is_removed(version) and not _is_off(value):
                yield dotted(path, name)
    kind = as_section(config.get("optimizer")).get("type")
    is_of_others = isinstance(kind, str) and kind.lower() in REMOVED_OPTIMIZERS
    if is_of_others and not is_at_least(version, OPTIMIZERS_REMOVED_IN):
        yield "optimizer.type"


def _is_off(value: Any) -> bool:
    if isinstance(value, Mapping):
        return not value or value.get("enabled") is False
    return value in (None, False, -1)


@rule("runtime/config.py:80-141, DeepSpeed issue 8489")
def _removed_key(setup: Setup) -> list[Finding]:
    return [
        _removed(setup, path, name, value) for path, name, value in _given(setup, Key.is_removed)
    ]


def _removed(setup: Setup, path: str, name: str, value: Any) -> Finding:
    where, key = dotted(path, name), SECTIONS[path].keys[name]
    gone = removal([(path, name)])
    facts: dict[str, Any] = {"where": where, "since": key.removed_in, "why": key.why_removed}
    tell = partial(finding, "removed_key", version=setup.version, **facts)
    if _is_off(value):
        return tell(changes=gone, way="")
    then = ": it trains in fp32 then" if name == "amp" and setup.dtype == "fp32" else ""
    leave = Choice(changes=gone, words=f"remove {where}{then}")
    choices = (*_heirs(setup, name, value), leave)
    return tell(choices=choices, way=f"remove {where}, and train without it")


def _heirs(setup: Setup, name: str, value: Any) -> Iterator[Choice]:
    """Feature that replaces one that is gone, where it does about the same."""
    if name == "amp":
        for dtype, other in (("bf16", "fp16"), ("fp16", "bf16")):
            if setup.section(other).get("enabled") is not True:
                yield Choice(changes={"amp": None, dtype: {"enabled": True}})
    if name == "mics_shard_size" and type(value) is int and value > 1:
        section = "zero_optimization"
        yield Choice(**moved((section, name), (section, "zero_hpz_partition_size"), value))


@rule("the same fields, read off the releases of READ")
def _missing_key(setup: Setup) -> list[Finding]:
    return [_missing(setup, path, name) for path, name, _ in _given(setup, Key.is_missing)]


def _missing(setup: Setup, path: str, name: str) -> Finding:
    where, section, version = dotted(path, name), SECTIONS[path], setup.version
    row = "missing_strict_key" if section.is_strict(version) else "missing_key"
    through = section.keys[name].absent_through
    remove = Choice(changes=removal([(path, name)]), words=f"remove {where}")
    return finding(row, choices=(remove,), where=where, version=version, through=through)


@rule("runtime/engine.py:2018")
def _removed_optimizer(setup: Setup) -> Finding | None:
    if setup.optimizer not in REMOVED_OPTIMIZERS or not setup.is_at_least(OPTIMIZERS_REMOVED_IN):
        return None
    changes, name = _uncompressed(setup), setup.section("optimizer")["type"]
    way = "" if changes else "choose another optimizer.type, such as AdamW"
    facts = {"name": name, "since": OPTIMIZERS_REMOVED_IN, "version": setup.version, "way": way}
    return finding("removed_optimizer", changes=changes, **facts)


def _uncompressed(setup: Setup) -> Patch:
    """The change to the optimizer that it is without compression; empty where none trains here."""
    heir = REMOVED_OPTIMIZERS[setup.optimizer]
    if heir == "Lamb" and setup.accelerator == "cpu":
        return {}
    known = {*takes(f"Fused{heir.removesuffix('W')}"), *(TAKEN_OUT if heir == "AdamW" else ())}
    params = dict.fromkeys(name for name in setup.optimizer_params if name not in known)
    return {"optimizer": {"type": heir, "params": params} if params else {"type": heir}}


KEY_RULES = (_removed_key, _missing_key)
"""Rules about keys: `autotune.engines.deepspeed.rules.sections.is_plain` answers for them."""
