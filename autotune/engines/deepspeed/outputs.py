"""Outputs that a configuration has DeepSpeed write: every trial leaves them out.

A user's file is made for the real training: its profiles, samples and copies go to that run's
places, and a trial would write over them. Without a file of its own, what a profiler says stands
in the trial's log. What is left out is told as every key is that does not run as written.

No list of DeepSpeed's keys is complete: releases add some, and plug-ins have their own. So a key
is judged by its name and its value.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from autotune.base.secrecy import HIDDEN
from autotune.engines.deepspeed.ds_config_file import MONITORS, Note

_SECTIONS = (*MONITORS, "autotuning", "nebula")
"""Sections that do nothing but write; with autotuning on, DeepSpeed ends the program after it."""

_STAY = re.compile(
    # Where the user has a disk to swap to: a trial without it is another one.
    r"zero_optimization\.offload_(param|optimizer)\.nvme_path"
    # What is only read.
    r"|(.*\.)?(index_to_sample_path|index_to_metric_path|metrics_path|load_path)"
    # Names of modules: `attention.out` is none of a file.
    r"|(.*\.)?(modules|related_modules|layer_name)"
    r"|tensor_parallel\.partition_config\.layer_specs|expert_parallel\.\w+_pattern"
    r"|zero_optimization\.leaf_module\.\w+"
)
_NAMES = re.compile(
    r"(^|_)(\w*(path|(?<!pro)file|dir|folder)s?|pathname|filename|\w*director(y|ies)|outputs?"
    r"|location|destination|(save|write|export|dump|log|trace|copy)_to)(_|$)"
    r"|(^|_)(root|cache|storage|dump|snapshot|log|trace|socket|ur[il])s?$",
    re.IGNORECASE,
)
"""Names of keys whose text is a path, whatever it looks like."""
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|-")
"""Between the words of a name, besides underscores."""
_VALUES = re.compile(
    r"\s*([~$%@|>&]|\.{1,2}\s*$|(file|data|mem|fd|unix|[a-z0-9]+fs|s3|gs|https?):)|.*[/\\]"
    r"|.*\.(json|jsonl|txt|csv|tsv|log|out|pt|pth|ckpt|pkl|pickle|bin|prof|trace|html|xml|md|db|sqlite"
    r"|npy|npz|h5|hdf5|arrow|safetensors|parquet|distcp|onnx|so|ya?ml|toml|ini|gz|tgz|tar|zip|xz|bz2"
    r"|zst|tmp|bak|lock|sock|svg|png|pdf|dot|etl|tfevents|nsys-rep|ncu-rep|qdrep)\s*$",
    re.IGNORECASE | re.DOTALL,
)
"""Texts that are a path, whatever their key is called."""


def without_outputs(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Note]]:
    """The configuration without what writes outside of a trial's folder, and what was left out."""
    notes: dict[str, Note] = {}
    without_writers = {}
    for key, value in config.items():
        if key in _SECTIONS and value is not None:
            notes[key] = (HIDDEN, None)
        else:
            without_writers[key] = value
    return _without_paths(without_writers, notes, ""), notes


def _without_paths(
    section: Mapping[str, Any], notes: dict[str, Note], prefix: str
) -> dict[str, Any]:
    without_paths: dict[str, Any] = {}
    for key, value in section.items():
        where = f"{prefix}{key}"
        if _looks_like_a_path(str(key)):  # a table of paths
            notes[where] = (value, None)
        elif isinstance(value, Mapping):
            without_paths[key] = _without_paths(value, notes, f"{where}.")
        elif _is_path(str(key), value) and not _STAY.fullmatch(where):
            notes[where] = (value, None)
        else:
            without_paths[key] = value
    return without_paths


def _is_path(key: str, value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_path(key, item) for item in value)
    if isinstance(value, Mapping):  # inside of a list
        return any(
            _looks_like_a_path(str(name)) or _is_path(str(name), item)
            for name, item in value.items()
        )
    if not isinstance(value, str) or not value.strip():
        return False
    return _names_a_path(key) or _looks_like_a_path(value)


# A lattice asks of the same keys and values by the thousand.
@lru_cache(maxsize=4096)
def _names_a_path(key: str) -> bool:
    return _NAMES.search(_WORDS.sub("_", key)) is not None


@lru_cache(maxsize=4096)
def _looks_like_a_path(text: str) -> bool:
    return _VALUES.match(text) is not None
