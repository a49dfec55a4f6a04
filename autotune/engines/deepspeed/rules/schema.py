"""Is it a ds_config at all: types, ranges, spelling, keys that DeepSpeed would not read.

What DeepSpeed converts ("yes", "2000", `zero_optimization: true`) is a note, and the other rules
judge what it takes it for; what it refuses is an error.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from autotune.base.data import table_beside
from autotune.base.names import misspelt
from autotune.base.nested import look_up
from autotune.engines.deepspeed.rules.base import (
    BATCH_KEYS,
    Setup,
    as_section,
    moved,
    patch,
    removal,
    section_at,
    zero,
)
from autotune.engines.deepspeed.rules.constructors import (
    TAKEN_OUT,
    optimizer_of,
    schedule_decides,
    scheduler_of,
)
from autotune.engines.deepspeed.rules.rows import fact_of
from autotune.engines.deepspeed.rules.sections import (
    ACCELERATES,
    AUTO,
    DEPRECATED,
    PARAMS,
    REFUSED,
    SECTIONS,
    SPELLINGS,
    Key,
    Section,
    as_pydantic,
    as_read,
    dotted,
    is_auto,
    known_items,
    known_values,
    sections,
    shown,
)
from autotune.engines.deepspeed.rules.words import finding
from autotune.space.rule import (
    Choice,
    Finding,
    Moves,
    UnknownFactError,
    condition_of,
    rule,
)

_MOST_COMPARED = 50
"""Unknown keys of a section that are compared with known ones: a file that is no ds_config at all
may have thousands."""
_MOST_ALONE = 10
"""Unknown keys of a section, like no known one, that get a finding each; of more, which are some
application's, one finding tells."""
_MOST_NAMED = 30


_HOME_SECTIONS = (
    *("", "zero_optimization", "zero_optimization.offload_optimizer"),
    *("zero_optimization.offload_param", "zero_optimization.zenflow", "fp16", "bf16"),
    *("activation_checkpointing", "tensor_parallel", "compile"),
)
"""Sections whose keys are known again in another place."""


def _homes() -> Mapping[str, str]:
    """Name of a key -> the one section that has it; telling names alone."""
    held = Counter(
        name for path, section in SECTIONS.items() if path != "bfloat16" for name in section.keys
    )
    return {
        name: path
        for path in _HOME_SECTIONS
        for name in SECTIONS[path].keys
        if held[name] == 1 and name not in SPELLINGS and ("_" in name or not path)
    } | {"stage": "zero_optimization", "hysteresis": "fp16"}


HOMES = _homes()
"""Name of a key that tells -> the section that it belongs to, wherever it stands."""

_OTHERS: Mapping[str, tuple[str, str]] = {
    name: (key.rpartition(".")[0], key.rpartition(".")[2])
    for name, key in ACCELERATES.items()
    if name != key
} | {
    "max_grad_norm": ("", "gradient_clipping"),
    "per_device_train_batch_size": ("", "train_micro_batch_size_per_gpu"),
}
"""Names of accelerate's YAML and of Trainer's arguments -> section and name of the same key in a
ds_config. Whoever reads the file besides may read them there, so nobody moves them unasked."""

_RENAMED = {("aio", "thread_count"): "intra_op_parallelism"}
"""Section and name that older releases read -> the name since."""

_PRECISIONS = ("fp16", "bf16", "bfloat16")


def _wrong_values(setup: Setup, *, top_level: bool) -> list[Finding]:
    return [
        _tried(path, name, content[name])
        if _is_tried(setup, path, name, content[name], key)
        else _wrong_value(path, name, content[name], key)
        for path, content, section in sections(setup.ds_config)
        if top_level != bool(path)
        for name, key, value in known_items(content, section)
        if not key.accepts(value)
        and (not is_auto(value) or _is_taken_as_text(key, section, setup))
    ]


def _is_tried(setup: Setup, path: str, name: str, value: Any, key: Key) -> bool:
    """Whether DeepSpeed's autotuner, which is switched on, takes it for values to try.

    autotuning/autotuner.py: `all` of the stages; autotuning/utils.py: get_all_configs of any list.
    """
    if not _may_be_tuned(setup):
        return False
    if (path, name, value) == ("zero_optimization", "stage", "all"):
        return True
    is_list = isinstance(value, list) and bool(value)
    return is_list and all(key.taken(one) is not REFUSED for one in value)


def _may_be_tuned(setup: Setup) -> bool:
    return setup.is_tuned is not False and setup.section("autotuning").get("enabled") is True


def _tried(path: str, name: str, value: Any) -> Finding:
    where = dotted(path, name)
    return finding("tried", where=where, value=shown(name, value))


_ACTS_IF: Mapping[str, str] = table_beside(__file__, "acts_if.json")
"""Keys, or beginnings of them, that are read without a check -> where they are used at all: a
condition as of a row."""
_SAFE_MODULES = "torch_autocast.lower_precision_safe_modules"
"""A key each part of which is asked for text (runtime/config.py), and imported where it acts."""


def _where_it_acts(setup: Setup, found: list[Finding]) -> list[Finding]:
    """The same, ignored where DeepSpeed does not come to use the value."""
    if not found:
        return found
    read = setup.with_config(as_read(setup.ds_config, setup.version))
    return [
        finding
        if _acts(read, setup.ds_config, finding)
        else replace(finding, consequence="ignored")
        for finding in found
    ]


def _acts(setup: Setup, written: Mapping[str, Any], found: Finding) -> bool:
    key = found.at[0]
    if key.startswith(_SAFE_MODULES) and not isinstance(look_up(written, key), str):
        return True
    with suppress(UnknownFactError):
        return found.consequence != "raised" or all(
            condition_of(when, fact_of)(setup)
            for start, when in _ACTS_IF.items()
            if key.startswith(start)
        )
    return True


def _is_taken_as_text(key: Key, section: Section, setup: Setup) -> bool:
    """Whether DeepSpeed takes "auto" for some value of a key that it reads as it is."""
    return not section.is_strict(setup.version) and key.taken(AUTO) is not REFUSED


def _wrong_value(path: str, name: str, value: Any, key: Key) -> Finding:
    where, taken, meant = dotted(path, name), key.taken(value), key.meant(value)
    facts: dict[str, Any] = {"where": where, "written": shown(name, value), "wants": key.wants}
    if meant is REFUSED:
        meant = _section_of(where, value)
    # An empty section is none.
    changes = {} if meant is REFUSED else patch(path, {name: None if meant == {} else meant})
    if taken is REFUSED:
        leave = Choice(changes=removal([(path, name)]), words=f"remove {where}")
        facts["way"] = "" if changes else f"set {where} to {key.wants}, or leave it out"
        return finding("refused_value", changes=changes, choices=(leave,), **facts)
    if taken == meant and not is_auto(value):
        return finding("converted_value", changes=changes, taken=json.dumps(taken), **facts)
    facts |= {"taken": shown(name, taken), "way": ""}
    if is_auto(value):
        changes, facts["way"] = {}, f"write the value of {where}"
    return finding("other_value", changes=changes, **facts)


def _section_of(where: str, value: Any) -> Any:
    """The section that its switch or its device stands for, as `true` for `{"enabled": true}`."""
    keys = SECTIONS[where].keys if where in SECTIONS else {}
    found = (name for name in ("enabled", "device") if name in keys and keys[name].accepts(value))
    return next(({name: value} for name in found), REFUSED)


@rule("runtime/zero/config.py, offload_config.py, precision_config.py: pydantic fields")
def _section_value(setup: Setup) -> list[Finding]:
    return _where_it_acts(setup, _wrong_values(setup, top_level=False))


@rule("runtime/config.py: read without a check, used where it hurts or as it is")
def _top_level_value(setup: Setup) -> list[Finding]:
    return _where_it_acts(setup, _wrong_values(setup, top_level=True))


def _auto(setup: Setup, *, strict: bool) -> Iterator[tuple[str, str]]:
    """Section and name of every "auto", in the strict sections or in the others.

    But for keys where DeepSpeed takes the word for a value, or that it does not know anyway.
    """
    for path, content, section in sections(setup.ds_config):
        is_strict = section.is_strict(setup.version)
        for name, key, value in known_items(content, section):
            drops = is_strict and not key.is_raw
            if not is_auto(value) or drops != strict:
                continue
            if not path and name in BATCH_KEYS and _may_be_tuned(setup):
                continue  # autotuning/autotuner.py: it writes a number of its own
            if not key.accepts(value) if drops else key.taken(value) is REFUSED:
                yield path, str(name)
    for path in () if strict else PARAMS:
        given = as_section(setup.section(path.partition(".")[0]).get("params"))
        yield from ((path, str(name)) for name, value in given.items() if is_auto(value))


@rule("runtime/config.py:596: compares the text with 0; runtime/lr_schedules.py")
def _auto_unresolved(setup: Setup) -> list[Finding]:
    found = [
        finding("auto_unresolved", where=where, consequence="differs" if is_word else "raised")
        for path, name in _auto(setup, strict=False)
        for where, is_word in [(dotted(path, name), _is_word(setup, path, name))]
    ]
    return _where_it_acts(setup, found)


def _is_word(setup: Setup, path: str, name: str) -> bool:
    """Whether what is built takes the word as good as any: a truth to a switch, as nesterov."""
    if path not in PARAMS:
        return False
    is_optimizers = path == PARAMS[0]
    made = optimizer_of(setup) if is_optimizers else scheduler_of(setup)
    if is_optimizers and setup.optimizer in ("adam", "adamw") and name in TAKEN_OUT:
        if made is None or setup.optimizer == "adamw":
            return True
        return not made.refusal(name, AUTO, accelerator=setup.accelerator)
    if made is None or name not in made.takes or not made.refuses:
        return False
    if is_optimizers and name == "lr" and schedule_decides(setup, made):
        return True
    return not made.refusal(name, AUTO, accelerator=setup.accelerator)


@rule("runtime/config_utils.py:54-57", consequence="ignored")
def _auto_dropped(setup: Setup) -> list[Finding]:
    return [
        finding("auto_dropped", where=dotted(*found), changes=removal([found]))
        for found in _auto(setup, strict=True)
    ]


def _unknown(setup: Setup, *, strict: bool, top_level: bool) -> Iterator[Finding]:
    for path, content, section in sections(setup.ds_config):
        if section.is_strict(setup.version) != strict or top_level == bool(path):
            continue
        unknown = [
            name
            for name, _ in known_values(content)
            if name not in section.keys and (strict or not _is_remark(name))
        ]
        compared, rest = unknown[:_MOST_COMPARED], unknown[_MOST_COMPARED:]
        meant = {name: _meant_key(setup, path, content, name) for name in compared}
        strange = [name for name in compared if meant[name] is None] + rest
        is_wall = len(strange) > _MOST_ALONE
        for name, other in meant.items():
            if other is not None:
                yield _unknown_one(setup, path, content, name, other)
            elif not is_wall:
                yield _strange_one(path, name)
        if is_wall:
            yield _strange_ones(path, strange)


def _strange_one(path: str, name: Any) -> Finding:
    where = dotted(path, name)
    remove = Choice(changes=removal([(path, name)]), words=f"remove {where}")
    return finding("strange_key", where=where, choices=(remove,))


def _strange_ones(path: str, names: Sequence[Any]) -> Finding:
    shown_, more = names[:_MOST_NAMED], len(names) - _MOST_NAMED
    named = ", ".join(map(str, shown_)) + (f" and {more} more" if more > 0 else "")
    facts: dict[str, Any] = {"n": len(names), "path": path or "the file", "named": named}
    where = tuple(dotted(path, name) for name in shown_)
    return finding("strange_keys", where=where, **facts)


def _unknown_one(
    setup: Setup, path: str, content: Mapping[str, Any], name: Any, other: tuple[str, str]
) -> Finding:
    where = dotted(path, name)
    home, meant = other
    target = dotted(home, meant)
    is_there = meant in section_at(setup.ds_config, home)
    is_others = (home, meant) == _OTHERS.get(name)
    is_useless = home in _PRECISIONS and path in _PRECISIONS and home != path
    guess = (
        f"did you mean {meant}?" if home == path else f"it belongs to {home or 'the top level'}"
    )
    if is_others:
        guess = f"DeepSpeed calls it {target}"
    move = {} if is_there or is_useless else moved((path, name), other, content[name])
    leave = Choice(changes=removal([(path, name)]), words=f"remove {where}")
    advice = f"remove {where}" + (", or decide which of the two counts" if is_there else "")
    if is_others and move:
        advice = f"write {target}, or remove {where}"
    guess += f" ({target} is there already)" if is_there else ""
    choices = (*([Choice(**move)] if is_others and move else []), leave)
    way = "" if move and not is_others else advice
    moving: dict[str, Any] = {} if is_others else move
    return finding("unknown_key", choices=choices, where=where, guess=guess, way=way, **moving)


def _meant_key(
    setup: Setup, path: str, content: Mapping[str, Any], name: Any
) -> tuple[str, str] | None:
    """Section and name of the key that an unknown one must be, if it would take the value."""
    is_others = path in ("", "zero_optimization") and name in _OTHERS
    near = _RENAMED.get((path, name))
    if near is None and not is_others:
        near = misspelt(str(name), _names(path, setup.version))
    if near is None and name in _parameters(setup, path):
        home = f"{path}.params"
        return (home, name) if _can_hold(setup, home) else None
    if is_others:
        home, near = _OTHERS[name]
    elif str(name) in HOMES and near is None:
        home, near = HOMES[str(name)], str(name)
    else:
        home = path
    if near is None or not _can_hold(setup, home):
        return None
    value, key = content[name], SECTIONS[home].keys[near]
    if not holds_its_keys(dotted(home, near), value):
        return None
    if key.is_missing(setup.version) or key.is_removed(setup.version):
        return None
    return (home, near) if is_auto(value) or key.taken(value) is not REFUSED else None


def holds_its_keys(path: str, value: Any) -> bool:
    """Whether a value under another name may be meant as a section: it holds one of its keys.

    What is no section, or an empty one, may be.
    """
    if path not in SECTIONS or not isinstance(value, Mapping) or not value:
        return True
    names = SECTIONS[path].keys
    few = list(value)[:_MOST_COMPARED]
    return any(name in names or misspelt(str(name), names) is not None for name in few)


def _parameters(setup: Setup, path: str) -> Sequence[str]:
    """Keys that the optimizer or the scheduler of a section takes below `params`."""
    if path not in ("optimizer", "scheduler"):
        return ()
    made = optimizer_of(setup) if path == "optimizer" else scheduler_of(setup)
    return () if made is None else made.takes


@lru_cache(maxsize=256)
def _names(path: str, version: str) -> tuple[str, ...]:
    return tuple(
        name
        for name, key in SECTIONS[path].keys.items()
        if not key.is_removed(version) and not key.is_missing(version)
    )


def _can_hold(setup: Setup, path: str) -> bool:
    content: Any = setup.ds_config
    for part in path.split(".") if path else ():
        content = content.get(part)
        if content is None:
            return True
        if not isinstance(content, Mapping):
            return False
    return True


def _is_remark(name: object) -> bool:
    """Whether a key is there for readers: JSON has no comments."""
    return str(name).startswith(("_", "//", "#")) or name == "comment"


@rule("runtime/config_utils.py: extra=forbid in DeepSpeed's pydantic sections")
def _unknown_key(setup: Setup) -> list[Finding]:
    return list(_unknown(setup, strict=True, top_level=False))


@rule("runtime/config.py: reads the keys that it knows", consequence="ignored")
def _unknown_top_level_key(setup: Setup) -> list[Finding]:
    return list(_unknown(setup, strict=False, top_level=True))


@rule("runtime/config.py: reads the keys that it knows", consequence="ignored")
def _unknown_plain_key(setup: Setup) -> list[Finding]:
    return list(_unknown(setup, strict=False, top_level=False))


@rule("runtime/config_utils.py:90")
def _deprecated_with_new(setup: Setup) -> list[Finding]:
    found = [(old, new) for old, new in DEPRECATED.items() if {old, new} <= setup.zero.keys()]
    return [_either(setup.zero, old, new, "the deprecated name of") for old, new in found]


def _either(given: Mapping[str, Any], second: str, first: str, relation: str) -> Finding:
    """Two names of one key: the second goes where both say the same."""
    old, new = given[second], given[first]
    is_same = new == old or (
        isinstance(new, Mapping) and new.get("device", "none") == ("cpu" if old else "none")
    )
    at = (f"zero_optimization.{second}", f"zero_optimization.{first}")
    others = {} if isinstance(new, Mapping) else {first: old, second: None}
    renamed: Moves = {("zero_optimization", second): ("zero_optimization", first)}
    if isinstance(new, Mapping) and "device" not in new and type(old) is bool:
        # The section says how, and the old name whether.
        is_same, gone = True, {second: None, first: {"device": "cpu" if old else "none"}}
    else:
        gone = {second: None}
    return Finding(
        message=f"{at[0]}={shown(second, old)} beside {at[1]}={shown(first, new)}: the first is "
        f"{relation} the second, and DeepSpeed takes one of them alone",
        at=at,
        changes=zero(**gone) if is_same else {},
        choices=(
            *([] if is_same else [Choice(changes=zero(**{second: None}))]),
            *([Choice(changes=zero(**others), moves=renamed)] if others and not is_same else []),
        ),
        advice="" if is_same else f"remove {at[0]} or {at[1]}",
    )


@rule(
    "runtime/config_utils.py: _process_deprecated_field; precision_config.py: BFLOAT16_OLD",
    consequence="converted",
)
def _deprecated_name(setup: Setup) -> list[Finding]:
    keys = SECTIONS["zero_optimization"].keys
    found = [(old, new) for old, new in DEPRECATED.items() if old in setup.zero]
    return [
        finding("deprecated_name", old=old, new=new, **_renewed(old, new, setup.zero[old]))
        for old, new in found
        if new not in setup.zero and keys[old].taken(setup.zero[old]) is not REFUSED
    ] + list(_old_bf16(setup))


def _renewed(old: str, new: str, value: Any) -> dict[str, Any]:
    """The entries of a finding that takes the value of a deprecated key to the new one."""
    section, is_asked = "zero_optimization", as_pydantic("bool", value) is True
    if not new.startswith("offload"):
        return moved((section, old), (section, new), is_asked)
    return {"changes": zero(**{old: None}, **({new: {"device": "cpu"}} if is_asked else {}))}


def _old_bf16(setup: Setup) -> Iterator[Finding]:
    config = setup.ds_config
    if setup.bf16_name != "bfloat16" or not isinstance(config.get("bfloat16"), Mapping):
        return
    yield finding("old_bf16", **moved(("", "bfloat16"), ("", "bf16"), config["bfloat16"]))


@rule("runtime/zero/config.py: field name and alias")
def _spelled_twice(setup: Setup) -> list[Finding]:
    given = setup.zero
    found = [(b, a) for b, a in SPELLINGS.items() if {a, b} <= given.keys()]
    return [_either(given, second, first, "another name of") for second, first in found]


BLOCKING = (_section_value, _top_level_value, _auto_unresolved, _auto_dropped)
"""Rules about values, before those about keys."""

KEY_RULES = (
    *(_unknown_key, _unknown_top_level_key, _unknown_plain_key),
    *(_deprecated_with_new, _deprecated_name, _spelled_twice),
)
