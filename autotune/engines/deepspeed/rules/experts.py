"""Expert parallelism (AutoEP): over which ranks the experts of each layer are spread."""

from dataclasses import replace
from typing import Any

from autotune.engines.deepspeed.mixtures import AUTOEP_PRESETS
from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.words import finding
from autotune.space.rule import Finding, rule

DEFAULT_LEAF_BLOCKS = frozenset(
    {"MixtralSparseMoeBlock", "Qwen2MoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock"}
)
"""Blocks whose experts DeepSpeed gathers at once by itself.

Source: runtime/zero/leaf_module_config.py.
"""
_OFF: dict[str, Any] = {"expert_parallel": None}


def as_list(value: Any) -> list[Any]:
    """A list or one of its items, as DeepSpeed takes either."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _undivided(setup: Setup, total: int, of_what: str) -> Finding | None:
    ep = setup.ep
    if ep == 1 or total % ep == 0:
        return None
    size = max(d for d in range(1, ep) if total % d == 0)
    changes = _OFF if size == 1 else {"expert_parallel": {"autoep_size": size}}
    return finding("undivided_ep", changes=changes, ep=ep, total=total, of=of_what)


@rule("module_inject/auto_ep_folding.py: build_folding_spec")
def _world(setup: Setup) -> Finding | None:
    if setup.ep == 1:
        return None
    return _undivided(setup, setup.world // max(1, setup.pp), "ranks")


@rule("module_inject/auto_ep_config.py: validate_autoep_post_detection")
def _count(setup: Setup) -> Finding | None:
    experts = setup.model.n_experts if setup.model is not None else 0
    return _undivided(setup, experts, "experts of a layer")


@rule("module_inject/auto_ep_presets/registry.py: resolve_preset_candidates tries every preset")
def _family(setup: Setup) -> Finding | None:
    section = setup.section("expert_parallel")
    if setup.ep == 1 or not setup.model_type or setup.model is None or not setup.model.n_experts:
        return None
    if section.get("preset_model") or section.get("moe_layer_pattern"):
        return None  # the user says which
    preset = AUTOEP_PRESETS.get(setup.model_type)
    if preset == "":
        return None
    is_gpt_oss = setup.model_type == "gpt_oss"
    what = "warns and spreads nothing" if is_gpt_oss else "finds several presets that match"
    changes = {"expert_parallel": {"preset_model": preset}} if preset else _OFF
    found = finding(
        "unknown_family", changes=changes, ep=setup.ep, family=setup.model_type, what=what
    )
    return replace(found, consequence="ignored" if is_gpt_oss else "raised")


@rule(
    "runtime/zero/parameter_offload.py: ranks that route to other experts gather other weights, "
    "and wait for one another; utils/z3_leaf_module.py"
)
def _leaf_modules(setup: Setup) -> Finding | None:
    if setup.stage != 3 or not setup.expert_blocks or setup.world == 1:
        return None
    section = setup.zero_section("leaf_module")
    given = section.get("classes", ())
    names = {str(block).rpartition(".")[2] for block in as_list(given)} | (
        DEFAULT_LEAF_BLOCKS if "classes" not in section else set()
    )
    missing = [block for block in setup.expert_blocks if block not in names]
    if not missing or section.get("names") or section.get("name_suffixes"):
        return None
    classes = [*as_list(given), *missing]
    return finding("leaf_modules", missing=", ".join(missing), classes=classes)
