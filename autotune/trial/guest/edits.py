"""A candidate of a user's script, as edits of what the script hands to DeepSpeed.

They stand in the trial's `config/edits.json`. A baseline has none: it runs as it is.
"""

import base64
import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.contract import CONFIG_DIR, read_json

EDITS_FILE = "edits.json"
"""File below `CONFIG_DIR`."""
DESCRIPTION_FILE = "description.json"
"""File below `RANKS_DIR`: what the command trains, as its first rank saw it."""


@dataclass(frozen=True)
class Edits:
    """What a candidate changes of what the user's command runs with."""

    configuration: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key of DeepSpeed's configuration -> its value; None: the key is removed."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Name of a field of TrainingArguments -> its value."""
    rows_per_sample: int = 1
    """Rows of the engine's input for a sample of the user's; 0: nobody can tell."""
    observes: bool = False
    """Whether the run is the first one: nobody knows yet what it has to be compared with."""

    @classmethod
    def of_trial(cls, folder: Path) -> "Edits":
        """Read those of the trial in a folder."""
        return cls(**read_json(folder / CONFIG_DIR / EDITS_FILE))

    def apply(self, config: dict[str, Any], *, drops_product: bool) -> None:
        """Change a configuration in place; a second time changes nothing.

        Args:
            config: DeepSpeed's.
            drops_product: Leave out `train_batch_size` where the micro-batch is changed: a Hugging
                Face script has zero.Init read the file before there are ranks, with a world of 1,
                and it would refuse the product.
        """
        for key, value in self.configuration.items():
            *sections, name = key.split(".")
            section: Any = config
            for each in sections:
                if not isinstance(section.get(each), dict):
                    if value is None:
                        break
                    section[each] = {}
                section = section[each]
            else:
                if value is None:
                    section.pop(name, None)
                else:
                    section[name] = copy.deepcopy(value)
        if drops_product and "train_micro_batch_size_per_gpu" in self.configuration:
            config.pop("train_batch_size", None)


def configuration_of(given: Any) -> tuple[dict[str, Any], str]:
    """A configuration as `deepspeed.initialize` takes it, as a dict of its own; and its file.

    Raises:
        TypeError: It is neither a dict nor text.
        ValueError: It is no JSON.
        OSError: Its file cannot be read.
    """
    if isinstance(given, Mapping):
        return copy.deepcopy(dict(given)), ""
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"a configuration of type {type(given).__name__}")
    path = os.fspath(given)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            return _parsed(file.read()), os.path.abspath(path)
    try:
        return _parsed(path), ""
    except ValueError:
        return _parsed(base64.urlsafe_b64decode(path).decode("utf-8")), ""


def _parsed(text: str) -> dict[str, Any]:
    import hjson  # what DeepSpeed reads its file with; installed with it

    return dict(json.loads(json.dumps(hjson.loads(text))))
