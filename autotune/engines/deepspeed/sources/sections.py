"""Places in a file where a DeepSpeed configuration stands, or is named."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from autotune.base.names import near_names
from autotune.engines.deepspeed.rules.schema import HOMES, holds_its_keys
from autotune.engines.deepspeed.rules.sections import REFUSED, SECTIONS
from autotune.engines.deepspeed.sources.programs import PROGRAMS

SECTION_NAMES = frozenset(PROGRAMS["files"]["section_names"])
"""Keys of others under which a DeepSpeed configuration stands, or the name of its file."""

_FILE = re.compile(r"config|path|file", re.IGNORECASE)
"""What the key of a file has in it, below the name of a section."""

_KNOWN = frozenset(SECTIONS[""].keys)

_OF_OTHERS = frozenset(PROGRAMS["files"]["keys_of_others"])
"""Keys that other programs have, too: one of them tells nothing."""
_OF_TRAINING = frozenset(PROGRAMS["files"]["keys_of_training_scripts"])
"""Keys of everybody's training scripts that no DeepSpeed has: where one of them stands, the file
is the script's, unless a key that DeepSpeed alone has stands there as well."""

_TELLING = _KNOWN - _OF_OTHERS
_MISSPELT = {
    False: sorted(_TELLING),
    True: sorted(
        _TELLING | {"train_batch_size", "gradient_clipping", "gradient_accumulation_steps"}
    ),
}
"""Keys that are known again when they are misspelt: where others have them too, in JSON alone."""
_NAMED_SO = re.compile(r"(?<![a-z])(?:ds|deepspeed|zero)(?![a-z])", re.IGNORECASE)
"""What the name of a ds_config has in it."""
_MOST_COMPARED = 200
"""Keys that are compared with DeepSpeed's by their letters: a configuration has dozens."""
_ALIKE = 0.85
_MOST_SECTIONS = 100


def is_named_so(name: str) -> bool:
    """Whether a file is called as one that is DeepSpeed's: `ds_config.json`, `zero2.json`."""
    return _NAMED_SO.search(name) is not None


def is_ds_config(data: Mapping[Any, Any], *, is_json: bool, is_named: bool = True) -> bool:
    """Whether a mapping is meant as a ds_config: by its keys, or by one that is misspelt.

    Args:
        data: The mapping.
        is_json: Whether it is JSON. DeepSpeed reads no YAML itself, so a YAML is some program's,
            which may have a `train_batch_size` of its own.
        is_named: Whether the file has the name of one, or none at all. In another one, keys that
            others have too tell nothing beside those of a training script.
    """
    if any(_tells(name, value) for name, value in data.items()):
        return True
    is_weak = not is_named and not _OF_TRAINING.isdisjoint(data)
    pairs = (data.get(name) for name in ("optimizer", "scheduler"))
    has_pair = any(isinstance(one, Mapping) and {"type", "params"} <= one.keys() for one in pairs)
    if is_json and "train_batch_size" in data and (has_pair or not is_weak):
        return True
    if not data or is_weak:
        return not data and is_named
    if has_pair:
        return True
    n_known = sum(name in _KNOWN for name in data)
    is_most = is_json and 2 * n_known >= len(data)
    few = list(data.items())[:_MOST_COMPARED]
    if not is_json and not is_named:  # of any program's YAML one such key tells nothing
        return False
    return is_most or any(_is_misspelt(name, value, is_json=is_json) for name, value in few)


def own_keys(data: Mapping[Any, Any]) -> dict[str, Any]:
    """DeepSpeed's part of a mapping in which somebody else has keys as well.

    A key that is like one of DeepSpeed's is meant as that one, and one of a section, with a value
    that it takes there, as misplaced.
    """
    few = len(data) <= _MOST_COMPARED
    return {
        name: value
        for name, value in data.items()
        if name in _KNOWN or (few and (_is_misspelt(name, value) or _is_misplaced(name, value)))
    }


def _is_misplaced(name: Any, value: Any) -> bool:
    home = HOMES.get(name) if isinstance(name, str) else None
    return bool(home) and SECTIONS[str(home)].keys[name].taken(value) is not REFUSED


def sections_inside(data: Mapping[Any, Any]) -> list[tuple[tuple[str, ...], Any]]:
    """Sections at any depth, and names of files, by the keys under which they stand.

    A place in a list is a key such as `[0]`. A section without a name that tells holds what is
    DeepSpeed's of it alone.
    """
    return list(islice(_inside(data, ()), _MOST_SECTIONS))


def _inside(value: Any, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _inside(item, (*at, f"[{index}]"))
        return
    if not isinstance(value, Mapping):
        is_name = isinstance(value, str) and value.endswith(".json") and "$" not in value
        if is_name and (_is_name(at) or (_is_name(at[:-1]) and _FILE.search(at[-1]))):
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
    if name not in _TELLING:
        return False
    if name == "zero_optimization":
        return True
    # `activation_checkpointing: true` is some script's.
    if name in SECTIONS:
        return isinstance(value, Mapping) and holds_its_keys(name, value)
    return True


def _is_misspelt(name: Any, value: Any, *, is_json: bool = True) -> bool:
    """Whether a key is none of DeepSpeed's, and like one, or the beginning of one.

    A section that holds nothing of the one that it is like is somebody else's.
    """
    if not isinstance(name, str) or name in _KNOWN:
        return False
    words = _MISSPELT[is_json]
    begun = (known for known in words if "_" in name and known.startswith(name))
    like = next(begun, None) or next(iter(near_names(name, words, alike=_ALIKE)), None)
    return like is not None and holds_its_keys(like, value)
