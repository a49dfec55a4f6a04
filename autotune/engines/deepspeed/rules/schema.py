"""Is it a ds_config at all: types, ranges, spelling, keys that DeepSpeed would not read.

Numbers written as text, booleans written as numbers and `zero_optimization: true` are refused
although DeepSpeed converts them: whatever else reads the file may not.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from autotune.base.nested import merge
from autotune.base.secrecy import HIDDEN, holds_secret
from autotune.engines.deepspeed.rules.base import (
    Setup,
    as_section,
    converted,
    ignored,
    offload,
    params,
    patch,
    raised,
    removal,
    zero,
)
from autotune.engines.deepspeed.rules.keys import DEPRECATED, SECTIONS, SPELLINGS
from autotune.engines.deepspeed.rules.sections import PARAMS, dotted, is_auto, meaning, sections
from autotune.engines.deepspeed.rules.zenflow import zenflow_config
from autotune.space.rule import Finding, listed, rule

_ALL_KEYS: Mapping[str, tuple[str, ...]] = {
    path: tuple(name for name, key in section.keys.items() if not key.removed_in)
    for path, section in SECTIONS.items()
}

_LIKENESS = 0.75
"""Likeness from which on a key is taken for a misspelt one; `comms_config` and `comms_logger` are
less alike."""


_RENAMED = {"topk": None, "topk_ratio": 0.1}


def _wrong_values(setup: Setup, *, top_level: bool) -> Finding | None:
    told: list[str] = []
    open_questions: list[str] = []
    changes: dict[str, Any] = {}
    is_taken = True
    for path, content, section in sections(setup.ds_config):
        if top_level == bool(path):
            continue
        for name, value in content.items():
            key = section.keys.get(name)
            if key is None or key.accepts(value) or is_auto(value):
                continue
            shown = HIDDEN if holds_secret(name, value) else repr(value)
            told.append(f"{dotted(path, name)}: {shown} is not {key.wants}")
            meant = meaning(key, value)
            if meant is None:
                open_questions.append(f"set {dotted(path, name)} to {key.wants}, or leave it out")
            else:
                changes = merge(changes, patch(path, {name: meant}))
                # The top level is read as it is: 16.0 does what 16 does, "16" does not.
                is_taken = is_taken and (not top_level or meant == value)
    if not told:
        return None
    # If a part of the change leaves the rule broken, somebody has to look anyway.
    return Finding(
        message=listed(told, "; "),
        changes={} if open_questions else changes,
        advice=listed(open_questions, "; "),
        consequence="raised" if open_questions or not is_taken else "converted",
    )


@rule(
    "runtime/zero/config.py, offload_config.py, precision_config.py: pydantic fields",
    raised("stage\n.*Input should be 0, 1, 2", zero("two"), zero(2)),
    raised("stage\n.*Input should be 0, 1, 2", zero(4), zero(3)),
    *(
        raised(f"{name}\n.*{what}", zero(stage, **{name: bad}), zero(**{name: good}))
        for name, what, stage, bad, good in (
            ("reduce_bucket_size", "greater than 0", 2, 0, 1),
            ("reduce_bucket_size", "fractional part", 2, 1.5, 2e3),
            ("stage3_prefetch_bucket_size", "greater than or equal to 0", 3, -1, 0),
            ("overlap_comm", "valid boolean", 2, "maybe", True),
        )
    ),
    raised(
        "offload_optimizer.device\n.*'none', 'cpu' or 'nvme'", offload(2, device="gpu"), offload()
    ),
    raised(
        "ValidationError: .*DeepSpeedFP16Config\nloss_scale",
        {"fp16": {"loss_scale": -1}},
        {"fp16": {"loss_scale": 0}},
    ),
    raised(
        "zenflow.topk_ratio\n.*less than 1",
        zenflow_config(topk_ratio=7),
        zero(zenflow={"topk_ratio": 0.1}),
    ),
    raised(
        "zenflow\n.*select_strategy must be one of",
        zenflow_config(select_strategy="steps"),
        zero(zenflow={"select_strategy": "step"}),
    ),
    raised(
        "leaf_module.names\n.*valid list",
        zero(3, leaf_module={"names": 1}),
        zero(leaf_module={"names": ["lm_head"]}),
    ),
    raised(
        "ValueError: 'fp8' is not a valid DtypeEnum",
        {"data_types": {"grad_accum_dtype": "fp8"}},
        {"data_types": {"grad_accum_dtype": "fp32"}},
    ),
    converted(
        zero(2, reduce_bucket_size="2000", overlap_comm="true", reduce_scatter=0),
        zero(2, reduce_bucket_size=2000, overlap_comm=True, reduce_scatter=False),
    ),
)
def _section_value(setup: Setup) -> Finding | None:
    return _wrong_values(setup, top_level=False)


@rule(
    "runtime/config.py: read without a check, used where it hurts or as it is",
    raised("TypeError: '>' not supported", {"train_micro_batch_size_per_gpu": "1"}),
    raised("TypeError: '>' not supported", {"gradient_clipping": "1.0"}),
    *(
        raised(f"ValueError: Invalid {name}", {name: bad}, {name: good})
        for name, bad, good in (
            ("communication_data_type", "fp8", "fp32"),
            ("gradient_allreduce_op", "max", "mean"),
        )
    ),
    raised("TypeError: .* must be a mapping", {"zero_optimization": "stage 2"}, zero(2)),
    converted(
        {"wall_clock_breakdown": 1, "steps_per_print": 1e5, "train_batch_size": 4.0},
        {"wall_clock_breakdown": True, "steps_per_print": 100_000, "train_batch_size": 4},
    ),
)
def _top_level_value(setup: Setup) -> Finding | None:
    return _wrong_values(setup, top_level=True)


def _auto(setup: Setup, *, strict: bool) -> list[tuple[str, str]]:
    """Section and name of every "auto", in the strict sections or in the others.

    But for keys where DeepSpeed gives the word a meaning, or that it does not know anyway.
    """
    found = [
        (path, str(name))
        for path, content, section in sections(setup.ds_config)
        if section.is_strict(setup.version) == strict
        for name, value in content.items()
        if is_auto(value) and (key := section.keys.get(name)) and not key.accepts("auto")
    ]
    for path in () if strict else PARAMS:
        given = as_section(setup.section(path.partition(".")[0]).get("params"))
        found += [(path, str(name)) for name, value in given.items() if str(value) == "auto"]
    return found


@rule(
    "runtime/config.py:596: compares the text with 0; runtime/lr_schedules.py",
    raised(
        "TypeError: '>' not supported",
        {"train_micro_batch_size_per_gpu": "auto"},
        {"train_micro_batch_size_per_gpu": 1},
    ),
    raised("TypeError", params(lr="auto"), params(lr=1e-3)),
    raised(
        "ValueError: warmup_num_steps must be a positive integer, got auto",
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}},
        {"scheduler": {"params": {"warmup_num_steps": 10}}},
    ),
)
def _auto_unresolved(setup: Setup) -> Finding | None:
    found = [dotted(path, name) for path, name in _auto(setup, strict=False)]
    if not found:
        return None
    return Finding(
        message=f'"auto" at {", ".join(found)}: DeepSpeed takes it for a value; only Hugging Face '
        "Trainer and accelerate fill it in",
        advice=f"write the value of {' and '.join(found)}",
    )


@rule("runtime/config_utils.py:54-57", ignored(zero(2, reduce_bucket_size="auto")))
def _auto_dropped(setup: Setup) -> Finding | None:
    found = _auto(setup, strict=True)
    if not found:
        return None
    return Finding(
        message=f'"auto" at {", ".join(dotted(*where) for where in found)}: DeepSpeed drops it '
        "and uses its own default",
        changes=removal(found),
        advice="or write the value",
    )


def _unknown(setup: Setup, *, strict: bool, top_level: bool) -> Finding | None:
    told = []
    changes: dict[str, Any] = {}
    for path, content, section in sections(setup.ds_config):
        if section.is_strict(setup.version) != strict or top_level == bool(path):
            continue
        here: dict[str, Any] = {}
        for name in content:
            if name in section.keys or (not strict and _is_remark(name)):
                continue
            near = get_close_matches(str(name), _ALL_KEYS[path], n=1, cutoff=_LIKENESS)
            guess = f"did you mean {near[0]}?" if near else "nothing that is known is like it"
            told.append(f"{dotted(path, name)} is not a key of DeepSpeed's: {guess}")
            here[name] = None
            if near and near[0] not in content and section.keys[near[0]].accepts(content[name]):
                here[near[0]] = content[name]
        changes = merge(changes, patch(path, here)) if here else changes
    return Finding(message=listed(told, "; "), changes=changes) if told else None


def _is_remark(name: object) -> bool:
    """Whether a key is there for readers: JSON has no comments."""
    return str(name).startswith(("_", "//", "#")) or name == "comment"


@rule(
    "runtime/config_utils.py: extra=forbid in DeepSpeed's pydantic sections",
    *(
        raised(f"{name}\n.*Extra inputs are not permitted", ds_config, fix)
        for name, ds_config, fix in (
            ("overlap_com", zero(2, overlap_com=True), None),
            ("offload_optimizer.pin_mem", offload(2, pin_mem=True), None),
            ("zenflow.topk", zenflow_config(topk=0.1), zero(zenflow=_RENAMED)),
            ("leaf_module.topk", zero(3, leaf_module={"topk": 0.1}), None),
        )
    ),
)
def _unknown_key(setup: Setup) -> Finding | None:
    return _unknown(setup, strict=True, top_level=False)


@rule(
    "runtime/config.py: reads the keys that it knows",
    ignored({"gradient_cliping": 0.01}, {"gradient_cliping": None}),
)
def _unknown_top_level_key(setup: Setup) -> Finding | None:
    return _unknown(setup, strict=False, top_level=True)


@rule(
    "runtime/config.py: reads the keys that it knows",
    ignored(zero(1) | {"data_types": {"grad_acum_dtype": "bf16"}}, {"data_types": None}),
)
def _unknown_plain_key(setup: Setup) -> Finding | None:
    return _unknown(setup, strict=False, top_level=False)


@rule(
    "runtime/config_utils.py:90",
    *(
        raised(
            f"AssertionError: Cannot provide deprecated parameter '{old}'",
            zero(3, **{old: True}, **new),
        )
        for old, new in (
            ("cpu_offload", {"offload_optimizer": {"device": "cpu"}}),
            ("cpu_offload_param", {"offload_param": {"device": "cpu"}}),
            (
                "stage3_gather_fp16_weights_on_model_save",
                {"stage3_gather_16bit_weights_on_model_save": True},
            ),
        )
    ),
)
def _deprecated_with_new(setup: Setup) -> Finding | None:
    found = [(old, new) for old, new in DEPRECATED.items() if {old, new} <= setup.zero.keys()]
    if not found:
        return None
    pairs = "; ".join(f"zero_optimization.{old} beside {new}" for old, new in found)
    return Finding(
        message=f"{pairs}: the first is the deprecated name of the second",
        changes=zero(**{old: None for old, _ in found}),
    )


@rule(
    "runtime/zero/config.py: field name and alias",
    raised(
        "prefetch_bucket_size\n.*Extra inputs are not permitted",
        zero(3, prefetch_bucket_size=10, stage3_prefetch_bucket_size=20),
    ),
)
def _spelled_twice(setup: Setup) -> Finding | None:
    given = setup.zero
    found = [(b, a) for b, a in SPELLINGS.items() if {a, b} <= given.keys()]
    if not found:
        return None
    pairs = "; ".join(
        f"zero_optimization.{first}={given[first]!r} and {second}={given[second]!r}"
        for second, first in found
    )
    return Finding(
        message=f"{pairs} are the same key", changes=zero(**{second: None for second, _ in found})
    )


BLOCKING = (_section_value, _top_level_value, _auto_unresolved, _auto_dropped)
"""Rules after which the others would read nonsense: where one of these refuses, only these do."""

KEY_RULES = (
    *(_unknown_key, _unknown_top_level_key, _unknown_plain_key),
    *(_deprecated_with_new, _spelled_twice),
)
