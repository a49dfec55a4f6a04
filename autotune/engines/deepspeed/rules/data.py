"""Data efficiency: what a switched-on part of it cannot do without."""

from autotune.engines.deepspeed.rules.base import Setup, patch, section_at
from autotune.space.rule import Choice, Finding, rule

_SAMPLING = "data_efficiency.data_sampling"
_CURRICULUM = f"{_SAMPLING}.curriculum_learning"
_BATCHING = f"{_SAMPLING}.dynamic_batching"
_LTD = "data_efficiency.data_routing.random_ltd"
_LTD_NEEDS = ("total_layer_num", "random_ltd_layer_num", "random_ltd_schedule")


def _lacks(setup: Setup, path: str, needed: tuple[str, ...], what: str) -> Finding | None:
    section = section_at(setup.ds_config, path)
    missing = [name for name in needed if name not in section]
    if not section.get("enabled") or not missing:
        return None
    return Finding(
        message=f"{path} is switched on without {', '.join(missing)}: DeepSpeed asks for it",
        at=(f"{path}.enabled",),
        choices=(Choice(changes=patch(path, {"enabled": False})),),
        advice=f"set {' and '.join(f'{path}.{name}' for name in missing)}, {what}",
    )


@rule("runtime/data_pipeline/config.py: get_curriculum_learning")
def _curriculum(setup: Setup) -> Finding | None:
    return _lacks(setup, _CURRICULUM, ("curriculum_metrics",), "a section for every metric")


@rule("runtime/data_pipeline/config.py: get_dynamic_batching")
def _dynamic_batching(setup: Setup) -> Finding | None:
    return _lacks(setup, _BATCHING, ("max_tokens",), "the most tokens of a micro-batch")


@rule("runtime/data_pipeline/data_routing/scheduler.py: RandomLTDScheduler")
def _random_ltd(setup: Setup) -> Finding | None:
    return _lacks(setup, _LTD, _LTD_NEEDS, "as the model's layers say")
