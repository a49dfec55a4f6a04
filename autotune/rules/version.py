"""Keys and optimizers that the installed release of DeepSpeed no longer has, or not yet."""

from collections.abc import Mapping
from typing import Any

from autotune.rules.base import Case, Finding, Rule, Setup, Witness, overlay, patch, raised
from autotune.rules.keys import (
    ADAM_PARAMS,
    LAMB_PARAMS,
    SECTIONS,
    is_at_least,
    missing_keys,
    removed_keys,
)
from autotune.rules.schema import dotted, sections

REMOVED_OPTIMIZERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "onebitadam": ("AdamW", ADAM_PARAMS),
    "zerooneadam": ("AdamW", ADAM_PARAMS),
    "onebitlamb": ("Lamb", LAMB_PARAMS),
}
"""Optimizer -> the one that it is without its compression (both 1-bit Adams decay weights as AdamW
does: ops of 0.19.6, runtime/fp16/onebit), and the parameters of that."""
_OPTIMIZERS_REMOVED_IN = "0.19.7"


def _removed_key(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    gone = removed_keys(version)
    told = []
    changes: dict[str, Any] = {}
    for path, content, section in sections(setup.ds_config) if gone else ():
        for name in gone.get(path, frozenset()).intersection(content):
            key = section.keys[name]
            told.append(f"{dotted(path, name)} is gone since {key.removed_in}: {key.why_removed}")
            changes = overlay(changes, patch(path, {name: None}))
    if not told:
        return None
    return Finding(
        message=f"refused by DeepSpeed {version}, whatever the value: {'; '.join(sorted(told))}",
        changes=changes,
    )


def _missing_key(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    missing = missing_keys(version)
    told, raises = [], False
    changes: dict[str, Any] = {}
    for path, content, section in sections(setup.ds_config) if missing else ():
        for name in missing.get(path, frozenset()).intersection(content):
            key = section.keys[name]
            what = "raises on it" if section.strict else "ignores it"
            told.append(
                f"{dotted(path, name)} is not known to DeepSpeed {key.absent_through} and before, "
                f"{version} {what}"
            )
            changes = overlay(changes, patch(path, {name: None}))
            raises = raises or section.strict
    if not told:
        return None
    return Finding(
        message="; ".join(sorted(told)),
        changes=changes,
        advice="or install a newer DeepSpeed",
        consequence="raised" if raises else "ignored",
    )


def is_removed(deepspeed_version: str) -> bool:
    """Whether a release of DeepSpeed has none of `REMOVED_OPTIMIZERS` any more."""
    return is_at_least(deepspeed_version, _OPTIMIZERS_REMOVED_IN)


def _removed_optimizer(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    if setup.optimizer not in REMOVED_OPTIMIZERS:
        return None
    if not is_removed(version):
        return None
    message = (
        f"optimizer.type={setup.section('optimizer')['type']} is gone from DeepSpeed "
        f"{_OPTIMIZERS_REMOVED_IN} on; this is {version}"
    )
    heir, known = REMOVED_OPTIMIZERS[setup.optimizer]
    if heir == "Lamb" and setup.environment.accelerator == "cpu":
        return Finding(message=message, advice="choose another optimizer.type, such as AdamW")
    params = dict.fromkeys(name for name in setup.optimizer_params if name not in known)
    changes = {"type": heir, "params": params} if params else {"type": heir}
    return Finding(message=message, changes={"optimizer": changes})


def _optimizer(kind: str) -> dict[str, Any]:
    return {"optimizer": {"type": kind}}


KEY_RULES = (
    Rule(
        name="version.removed_key",
        check=_removed_key,
        source="runtime/config.py:80-141, DeepSpeed issue 8489",
        witnesses=tuple(
            raised(
                f"DeepSpeedConfigError: .*{'has been' if not path else name}",
                {path: {"stage": 3, name: 1}} if path else {name: {"enabled": False}},
                {path: {name: None}} if path else {name: None},
            )
            for path, section in SECTIONS.items()
            for name, key in section.keys.items()
            if key.removed_in
        ),
    ),
    Rule(
        name="version.missing_key",
        check=_missing_key,
        source="the same fields, read off the releases that autotune.rules.keys names",
        witnesses=(
            Witness(
                broken=Case(
                    ds_config={"zero_optimization": {"stage": 1, "parameter_alignment": True}}
                ),
                repaired=Case(ds_config={"zero_optimization": {"stage": 1}}),
                consequence="raised",
                raises="Extra inputs are not permitted",
                deepspeed="0.19.6",
            ),
        ),
    ),
)
"""About keys: `autotune.rules.schema.is_plain` answers for them."""

RULES = (
    Rule(
        name="version.removed_optimizer",
        check=_removed_optimizer,
        source="runtime/engine.py:2018",
        witnesses=tuple(
            raised(
                f"AssertionError: {kind} is not a supported DeepSpeed Optimizer",
                _optimizer(kind),
                _optimizer("AdamW"),
            )
            for kind in ("OneBitAdam", "ZeroOneAdam", "OneBitLamb")
        ),
    ),
)
