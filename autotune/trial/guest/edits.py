"""A candidate of a user's script, as edits of what the script hands to DeepSpeed.

They stand in the trial's `config/edits.json`. A baseline has none: it runs as it is.
"""

import base64
import copy
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autotune.base.nested import look_up
from autotune.contract import CONFIG_DIR, read_json

EDITS_FILE = "edits.json"
"""File below `CONFIG_DIR`."""
DESCRIPTION_FILE = "description.json"
"""What the command trains, as its first rank saw it; below `RANKS_DIR`."""
MAX_TEXT = 2000
"""Characters of the longest text that stands in it."""

Changes = Sequence[tuple[Sequence[str], Any]]
"""Path of keys in a file, and the value there; None: the key goes."""


@dataclass(frozen=True)
class Edits:
    """What a candidate changes of what the user's command runs with."""

    configuration: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key of DeepSpeed's configuration -> its value; None: the key is removed."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Name of a field of TrainingArguments -> its value."""
    files: Mapping[str, Changes] = field(default_factory=dict)
    """Path of a file that the script takes its configuration from -> the edits in it."""
    trained_file: str = ""
    """File of the configuration that is edited; another one is of a frozen model. Empty: none."""
    rows_per_sample: int = 1
    """Rows of the engine's input for a sample of the user's; 0: nobody can tell."""
    recomputes: bool | None = None
    """Whether activations are recomputed, where a word of the command says; None: none does."""
    observes: bool = False
    """True for the first run, when there is nothing yet to compare with."""

    @classmethod
    def of_trial(cls, folder: Path) -> "Edits":
        return cls(**read_json(folder / CONFIG_DIR / EDITS_FILE))

    def written(self) -> dict[str, Any]:
        """What stands in the file. Older studies' have no other field that is at its default."""
        always, default = ("configuration", "arguments", "rows_per_sample"), asdict(Edits())
        return {k: v for k, v in asdict(self).items() if k in always or v != default[k]}

    def arrived_in(self, config: Mapping[str, Any]) -> list[str]:
        """Keys of the configuration's edits that it has already, be it by a file."""
        return [key for key, value in self.configuration.items() if look_up(config, key) == value]

    def apply(self, config: dict[str, Any]) -> None:
        """Change DeepSpeed's configuration in place; a second time changes nothing.

        `train_batch_size` goes where the micro-batch is changed: a Hugging Face script has
        zero.Init read the file before there are ranks, which refuses that for a world of 1.
        """
        for key, value in self.configuration.items():
            put(config, key.split("."), value)
        if "train_micro_batch_size_per_gpu" in self.configuration:
            config.pop("train_batch_size", None)


def put(data: dict[str, Any], at: Sequence[str], value: Any) -> None:
    """Set the value at a path of keys, its sections made where they are none; None: it goes."""
    *sections, name = at
    for section in sections:
        if not isinstance(data.get(section), dict):
            if value is None:
                return
            data[section] = {}
        data = data[section]
    if value is None:
        data.pop(name, None)
    else:
        data[name] = copy.deepcopy(value)


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
            return dict(parsed(file.read())), os.path.abspath(path)
    try:
        return dict(parsed(path)), ""
    except ValueError:
        return dict(parsed(base64.urlsafe_b64decode(path).decode("utf-8"))), ""


def parsed(text: str) -> Any:
    """The JSON of a text, or what DeepSpeed reads as JSON.

    Raises:
        ValueError: It is neither.
    """
    try:
        return json.loads(text)
    except ValueError:
        import hjson  # what DeepSpeed reads its file with; installed with it

        return json.loads(json.dumps(hjson.loads(text)))


def toml_of(data: Mapping[str, Any], header: str = "") -> str:
    """A mapping as TOML: its values, then its sections."""
    values, sections = f"\n[{header}]\n" * bool(header), ""
    for name, value in data.items():
        key = name if re.fullmatch("[A-Za-z0-9_-]+", name) else _toml_value(name)
        if isinstance(value, Mapping):
            sections += toml_of(value, f"{header}.{key}".lstrip("."))
        else:
            values += f"{key} = {_toml_value(value)}\n"
    return values + sections


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_toml_value(k)} = {_toml_value(v)}' for k, v in value.items())}}}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    # A moment; a number as Python and TOML spell it: inf and nan too.
    is_plain = hasattr(value, "isoformat") or isinstance(value, float)
    return str(value) if is_plain else json.dumps(value)
