"""Places in a file where a DeepSpeed configuration stands, or is named."""

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.engines.deepspeed.rules.keys import SECTIONS
from autotune.engines.deepspeed.rules.schema import HOMES
from autotune.engines.deepspeed.rules.spelling import guesses
from autotune.engines.deepspeed.rules.values import REFUSED

SECTION_NAMES = (
    *("deepspeed", "deepspeed_config", "deepspeed_cfg", "ds_config", "ds_cfg", "ds"),
    *("deepspeed_config_file", "deepspeed_config_path", "ds_config_path", "hf_ds_config"),
)
"""Keys of others under which a DeepSpeed configuration stands, or the name of its file."""

_KNOWN = frozenset(SECTIONS[""].keys)

_OF_OTHERS = frozenset(
    (
        *(
            "aio",
            "amp",
            "autotuning",
            "bf16",
            "bfloat16",
            "checkpoint",
            "comet",
            "compile",
            "data_types",
        ),
        *("elasticity", "expert_parallel", "fp16", "gradient_accumulation_steps"),
        *("gradient_clipping", "log_level", "nebula", "optimizer", "pipeline", "scheduler"),
        *("tensor_parallel", "tensorboard", "timers", "train_batch_size", "wandb"),
        *("data_parallel_size", "sequence_parallel_size", "vocabulary_size"),
    )
)
"""Keys that other programs have, too: one of them tells nothing."""

_TELLING = _KNOWN - _OF_OTHERS
_MISSPELT = sorted(
    _TELLING | {"train_batch_size", "gradient_clipping", "gradient_accumulation_steps"}
)
_MOST_COMPARED = 200
"""Keys that are compared with DeepSpeed's by their letters: a configuration has dozens."""
_ALIKE = 0.85
_MOST_SECTIONS = 100


def is_ds_config(data: Mapping[Any, Any], *, is_json: bool) -> bool:
    """Whether a mapping is meant as a ds_config: by its keys, or by one that is misspelt.

    DeepSpeed reads no YAML itself, so a YAML is some program's, which may have a
    `train_batch_size` of its own.
    """
    if is_json and "train_batch_size" in data:
        return True
    if not data or any(_tells(name, value) for name, value in data.items()):
        return True
    n_known = sum(name in _KNOWN for name in data)
    is_most = is_json and 2 * n_known >= len(data)
    return is_most or any(map(_is_misspelt, list(data)[:_MOST_COMPARED]))


def own_keys(data: Mapping[Any, Any]) -> dict[str, Any]:
    """DeepSpeed's part of a mapping in which somebody else has keys as well.

    A key that is like one of DeepSpeed's is meant as that one, and one of a section, with a value
    that it takes there, as misplaced.
    """
    few = len(data) <= _MOST_COMPARED
    return {
        name: value
        for name, value in data.items()
        if name in _KNOWN or (few and (_is_misspelt(name) or _is_misplaced(name, value)))
    }


def _is_misplaced(name: Any, value: Any) -> bool:
    home = HOMES.get(name) if isinstance(name, str) else None
    return bool(home) and SECTIONS[str(home)].keys[name].taken(value) is not REFUSED


def sections_inside(data: Mapping[Any, Any]) -> list[tuple[tuple[str, ...], Any]]:
    """Sections at any depth, and names of files, by the keys under which they stand.

    A place in a list is a key such as `[0]`. A section without a name that tells holds what is
    DeepSpeed's of it alone.
    """
    found: list[tuple[tuple[str, ...], Any]] = []
    for one in _inside(data, ()):
        found.append(one)
        if len(found) == _MOST_SECTIONS:
            break
    return found


def _inside(value: Any, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _inside(item, (*at, f"[{index}]"))
        return
    if not isinstance(value, Mapping):
        is_name = isinstance(value, str) and value.endswith(".json") and "$" not in value
        if is_name and _is_name(at):
            yield at, value
        return
    if value.get("name") == "deepspeed" and isinstance(value.get("config_file"), str):
        yield (*at, "config_file"), value["config_file"]  # LLaMA-Factory 1.0: dist_config
        return
    if at and _is_name(at) and (not _KNOWN.isdisjoint(value) or _is_telling(value)):
        yield at, value
    elif at and _is_telling(value):
        yield at, own_keys(value)
    else:
        for name, inner in value.items():
            yield from _inside(inner, (*at, str(name)))


def _is_name(at: tuple[str, ...]) -> bool:
    """Whether a path of keys ends in a name for a section: a sweep has its values below it."""
    names = [name for name in at if name not in ("value", "values") and not name.startswith("[")]
    return bool(names) and names[-1].lower().replace("-", "_") in SECTION_NAMES


def _is_telling(value: Mapping[Any, Any]) -> bool:
    return isinstance(value.get("zero_optimization"), Mapping) or (
        "train_micro_batch_size_per_gpu" in value
    )


def _tells(name: Any, value: Any) -> bool:
    if name in ("fp16", "bf16"):
        return isinstance(value, Mapping) and "enabled" in value
    if name in ("optimizer", "scheduler"):
        return isinstance(value, Mapping) and {"type", "params"} <= value.keys()
    return name in _TELLING


def _is_misspelt(name: Any) -> bool:
    """Whether a key is none of DeepSpeed's, and like one, or the beginning of one."""
    if not isinstance(name, str) or name in _KNOWN:
        return False
    begins = "_" in name and any(known.startswith(name) for known in _MISSPELT)
    return begins or bool(guesses(name, _MISSPELT, alike=_ALIKE))
