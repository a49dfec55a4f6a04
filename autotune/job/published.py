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


def _published(rows: str) -> dict[str, Published]:
    split = (line.split() for line in rows.strip().splitlines())
    return {
        name: Published(repository=repository, n_params=int(count.replace(",", "")))
        for name, repository, count in split
    }


PUBLISHED = _published("""
deepseek-67b       deepseek-ai/deepseek-llm-67b-base  67,425,001,472
deepseek-7b        deepseek-ai/deepseek-llm-7b-base   6,910,365,696
deepseek-v2        deepseek-ai/DeepSeek-V2            235,741,434,880
deepseek-v2-lite   deepseek-ai/DeepSeek-V2-Lite       15,706,484,224
deepseek-v3        deepseek-ai/DeepSeek-V3            671,026,404,352
glm-4.5            zai-org/GLM-4.5                    352,797,814,784
glm-4.5-air        zai-org/GLM-4.5-Air                106,852,245,504
gemma-2-27b        google/gemma-2-27b                 27,227,128,320
gemma-2-2b         google/gemma-2-2b                  2,614,341,888
gemma-2-9b         google/gemma-2-9b                  9,241,705,984
gpt2               openai-community/gpt2              124,439,808
gpt2-large         openai-community/gpt2-large        774,030,080
gpt2-medium        openai-community/gpt2-medium       354,823,168
gpt2-xl            openai-community/gpt2-xl           1,557,611,200
gpt-oss-120b       openai/gpt-oss-120b                116,829,156,672
gpt-oss-20b        openai/gpt-oss-20b                 20,914,757,184
kimi-k2            moonshotai/Kimi-K2-Instruct        1,026,408,209,408
llama-2-13b        meta-llama/Llama-2-13b-hf          13,015,864,320
llama-2-70b        meta-llama/Llama-2-70b-hf          68,976,648,192
llama-2-7b         meta-llama/Llama-2-7b-hf           6,738,415,616
llama-3-70b        meta-llama/Meta-Llama-3-70B        70,553,706,496
llama-3-8b         meta-llama/Meta-Llama-3-8B         8,030,261,248
llama-3.1-405b     meta-llama/Llama-3.1-405B          405,853,388,800
llama-3.1-70b      meta-llama/Llama-3.1-70B           70,553,706,496
llama-3.1-8b       meta-llama/Llama-3.1-8B            8,030,261,248
llama-3.2-1b       meta-llama/Llama-3.2-1B            1,235,814,400
llama-3.2-3b       meta-llama/Llama-3.2-3B            3,212,749,824
llama-3.3-70b      meta-llama/Llama-3.3-70B-Instruct  70,553,706,496
llama-4-maverick   meta-llama/Llama-4-Maverick-17B-128E-Instruct  400,711,848,960
llama-4-scout      meta-llama/Llama-4-Scout-17B-16E   107,769,861,120
minimax-m2         MiniMaxAI/MiniMax-M2               228,689,748,992
mistral-7b         mistralai/Mistral-7B-v0.1          7,241,732,096
mistral-7b-v0.3    mistralai/Mistral-7B-v0.3          7,248,023,552
mistral-nemo-12b   mistralai/Mistral-Nemo-Base-2407   12,247,782,400
mistral-small-24b  mistralai/Mistral-Small-24B-Base-2501  23,572,403,200
mixtral-8x22b      mistralai/Mixtral-8x22B-v0.1       140,620,634,112
mixtral-8x7b       mistralai/Mixtral-8x7B-v0.1        46,702,792,704
moonlight-16b-a3b  moonshotai/Moonlight-16B-A3B       15,960,108,544
olmo-2-13b         allenai/OLMo-2-1124-13B            13,716,198,400
olmo-2-1b          allenai/OLMo-2-0425-1B             1,484,916,736
olmo-2-32b         allenai/OLMo-2-0325-32B            32,234,279,936
olmo-2-7b          allenai/OLMo-2-1124-7B             7,298,617,344
phi-3-mini         microsoft/Phi-3-mini-4k-instruct   3,821,079,552
phi-4              microsoft/phi-4                    14,659,507,200
qwen1.5-moe-a2.7b  Qwen/Qwen1.5-MoE-A2.7B             14,315,784,192
qwen2-57b-a14b     Qwen/Qwen2-57B-A14B                57,408,658,944
qwen2.5-0.5b       Qwen/Qwen2.5-0.5B                  494,032,768
qwen2.5-1.5b       Qwen/Qwen2.5-1.5B                  1,543,714,304
qwen2.5-14b        Qwen/Qwen2.5-14B                   14,770,033,664
qwen2.5-32b        Qwen/Qwen2.5-32B                   32,763,876,352
qwen2.5-3b         Qwen/Qwen2.5-3B                    3,085,938,688
qwen2.5-72b        Qwen/Qwen2.5-72B                   72,706,203,648
qwen2.5-7b         Qwen/Qwen2.5-7B                    7,615,616,512
qwen3-0.6b         Qwen/Qwen3-0.6B                    596,049,920
qwen3-1.7b         Qwen/Qwen3-1.7B                    1,720,574,976
qwen3-14b          Qwen/Qwen3-14B                     14,768,307,200
qwen3-235b-a22b    Qwen/Qwen3-235B-A22B               235,093,634,560
qwen3-30b-a3b      Qwen/Qwen3-30B-A3B                 30,532,122,624
qwen3-32b          Qwen/Qwen3-32B                     32,762,123,264
qwen3-4b           Qwen/Qwen3-4B                      4,022,468,096
qwen3-8b           Qwen/Qwen3-8B                      8,190,735,360
""")
"""Preset -> what is published of it."""

_SAME_SHAPE = {
    "deepseek-ai/deepseekr1": "deepseek-v3",
    "deepseek-ai/deepseekv3.1": "deepseek-v3",
    "deepseek-ai/deepseekv3.1terminus": "deepseek-v3",
}
"""Other repositories with the sizes of a preset, whose names do not show it: the owner and the
letters and digits of the name."""
STAGES_OF_TRAINING = re.compile(
    r"[-_ ](instruct|base|chat|it|hf|thinking|original|preview|fp8|bf16"
    r"|2[0-9](0[1-9]|1[0-2])|0324|0528|0905)"
    r"(?=[-_ ]|$)",
    re.I,
)
"""Parts of a name that say how a model was trained on, when, or how its weights are stored: its
sizes stay the same."""

_UNSAID = (
    (r"nemotron.?(h\b|v?3(?!\d)|nano.*v2)", "Mamba layers"),
    (r"qwen.?3.?next|qwen.?3\.5|kimi.?linear|minimax.?(m1|text)", "layers of linear attention"),
    (r"jamba|bamba|zamba|falcon.?(h1|mamba)|mamba|granite.?4.*(\bh\b|tiny)", "Mamba layers"),
    (r"deepseek.?v(3\.2|4)|glm.?5", "sparse attention"),
)
"""How tables spell families whose layers a `ModelShape` cannot say -> what those have."""


def unsaid_layers(text: str) -> str:
    """What a named model's layers have that no shape here says; empty: nothing known."""
    found = (what for spelled, what in _UNSAID if re.search(spelled, text, re.I))
    return next(found, "")


def preset_of_repository(repository: str) -> str | None:
    """The preset with the shape of a repository on huggingface.co; None: there is none.

    Repositories of the same owner that differ by the stage of training have the same shape.
    """
    owner, _, name = repository.partition("/")
    wanted = letters(STAGES_OF_TRAINING.sub("", name))
    if preset := _SAME_SHAPE.get(f"{owner.lower()}/{wanted}"):
        return preset
    return next(
        (
            preset
            for preset, it in PUBLISHED.items()
            if it.repository.partition("/")[0].lower() == owner.lower()
            and letters(STAGES_OF_TRAINING.sub("", it.repository.partition("/")[2])) == wanted
        ),
        None,
    )


def letters(name: str) -> str:
    """The letters, digits and points of a name, in lower case."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def preset_table() -> list[Preset]:
    """Every shipped model, by name; nothing is built."""
    return sorted(_presets(), key=lambda preset: preset.name)


def find_presets(part: str) -> list[Preset]:
    """Shipped models whose name, or repository, holds a part, in any case.

    Raises:
        JobError: There is none.
    """
    every = preset_table()
    wanted = part.lower()
    found = [it for it in every if wanted in it.name or wanted in it.repository.lower()]
    if not found:
        guess = did_you_mean(part, [it.name for it in every])
        raise JobError(f"models: none is named {part!r}", f"{guess}`autotune models` lists all")
    return found


def _presets() -> Iterator[Preset]:
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
