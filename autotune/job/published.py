"""What is published of the shipped models: the repository of their config.json, their size.

Sizes and dimensions are facts of each repository's config.json on huggingface.co, and the counts
those of its model card or of its weights' index, without what transformers does not build for
language: DeepSeek-V3's and GLM-4.5's layer for the prediction of further tokens, Llama 4's eyes,
scales of weights in 8 or 4 bits. A test holds the presets to them.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from autotune.base.data import table_beside
from autotune.base.errors import JobError
from autotune.base.names import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published model."""

    repository: str
    """Its name on huggingface.co."""
    n_params: int
    """Parameters, tied ones counted once."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A shipped model, as `autotune models` lists it."""

    name: str
    family: str
    """`model_type` of its config."""
    n_params: int | None
    """None for the small ones that are nobody's."""
    n_layers: int
    hidden: int
    longest: int
    """Tokens of the longest sequence that its config names."""
    repository: str
    """Repository of its config.json on huggingface.co; empty for those that are nobody's."""


PUBLISHED: dict[str, Published] = {
    name: Published(**row) for name, row in table_beside(__file__, "published.json").items()
}
"""Preset -> what is published of it."""

_NAMES = table_beside(__file__, "names.json")
_SAME_SHAPE: dict[str, str] = _NAMES["same_shape"]
"""Other repositories with the sizes of a preset, whose names do not show it: the owner and the
letters and digits of the name."""
STAGES_OF_TRAINING = re.compile(
    r"[-_ ](instruct|base|chat|it|hf|thinking|original|preview|fp8|bf16"
    r"|mcore|2[0-9](0[1-9]|1[0-2])|0324|0528|0905)"
    r"(?=[-_ ]|$)",
    re.I,
)
"""Parts of a name that say how a model was trained on, when, or how its weights are stored: its
sizes stay the same."""

_UNSAID: dict[str, str] = _NAMES["unsaid"]
"""How tables spell families whose layers a `ModelShape` cannot say -> what those have."""
AS_IF: dict[str, str] = _NAMES["as_if"]
"""Family with such layers -> the family with the same keys, whose attention is plain."""


def unsaid_layers(text: str) -> str:
    """What a named model's layers have that no shape here says; empty: nothing known."""
    found = (what for spelled, what in _UNSAID.items() if re.search(spelled, text, re.I))
    return next(found, "")


def preset_of_repository(repository: str) -> str | None:
    """The preset with the shape of a repository on huggingface.co; None: there is none.

    Repositories of the same owner that differ by the stage of training have the same shape. A
    name without an owner may be any owner's, or the preset's in another case.
    """
    owner, _, name = repository.rpartition("/")
    owner = "" if owner.lower() in _NAMES["owners_of_copies"] else owner  # on modelscope.cn
    wanted = _sizes_in(name)
    if preset := _SAME_SHAPE.get(f"{owner.lower()}/{wanted}"):
        return preset
    for preset, it in PUBLISHED.items():
        its_owner, _, its_name = it.repository.lower().partition("/")
        if owner.lower() in ("", its_owner) and wanted in (_sizes_in(its_name), letters(preset)):
            return preset
    return None


def _sizes_in(name: str) -> str:
    """A repository's name without what leaves its sizes as they are; Meta-Llama is Llama."""
    return letters(STAGES_OF_TRAINING.sub("", name)).removeprefix("meta")


def letters(name: str) -> str:
    """The letters, digits and points of a name, in lower case."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def find_presets(part: str) -> list[Preset]:
    """Shipped models whose name, or repository, holds a part, in any case.

    Raises:
        JobError: There is none.
    """
    every = sorted(_presets(), key=lambda preset: preset.name)
    wanted = part.lower()
    found = [it for it in every if wanted in it.name or wanted in it.repository.lower()]
    if not found:
        guess = did_you_mean(part, [it.name for it in every])
        raise JobError(f"models: none is named {part!r}", f"{guess}`autotune models` lists all")
    return found


def _presets() -> Iterator[Preset]:
    """Every shipped model; nothing is built."""
    for file in (resources.files("autotune.job") / "presets").iterdir():
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        name = file.name.removesuffix(".json")
        known = PUBLISHED.get(name)
        yield Preset(
            name=name,
            family=config["model_type"],
            n_params=None if known is None else known.n_params,
            n_layers=config.get("num_hidden_layers") or config["n_layer"],
            hidden=config.get("hidden_size") or config["n_embd"],
            longest=config.get("max_position_embeddings") or config["n_positions"],
            repository="" if known is None else known.repository,
        )
