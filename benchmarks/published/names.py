"""Names of models as tables spell them."""

import functools
import re

from autotune.job.published import (
    PUBLISHED,
    STAGES_OF_TRAINING,
    letters,
    preset_of_repository,
)

_NO_SIZES = re.compile(r"\b(moe|mla|truncated|reduced|nvidia|meta)\b", re.I)
"""Words of tables' names that say nothing of which model it is."""
_TOTAL = re.compile(r"(?<![\dx.])(\d+(?:\.\d+)?)b", re.I)


def preset_spelled(text: str) -> str | None:
    """The preset that a table's `model` or `model_name` means, however it spells it; None: none.

    `DeepSeek-V3-671B`, `Qwen3_30B_a3B`, `GPT OSS 120B` and `meta-llama/Llama-3.1-8B-Instruct` are
    names of presets; a name with a word more than these is none.
    """
    if found := preset_of_repository(text):
        return found
    name = _NO_SIZES.sub(" ", STAGES_OF_TRAINING.sub("", text.rpartition("/")[2]))
    presets = _spellings()
    if found := presets.get(letters(name)):
        return found
    for size in _TOTAL.finditer(name):
        rest = letters(name[: size.start()] + " " + name[size.end() :])
        found = presets.get(rest)
        if found and abs(float(size[1]) * 1e9 / PUBLISHED[found].n_params - 1) < 0.05:
            return found
    return None


@functools.cache
def _spellings() -> dict[str, str]:
    """Letters and digits of every name of a preset -> the preset."""
    found: dict[str, str] = {}
    for preset, it in PUBLISHED.items():
        for name in (preset, STAGES_OF_TRAINING.sub("", it.repository.partition("/")[2])):
            # What is active of a mixture is often left out: Qwen3-30B for Qwen3-30B-A3B.
            for spelled in (name, re.sub(r"-a\d+(\.\d+)?b$", "", name, flags=re.I)):
                found.setdefault(letters(_NO_SIZES.sub(" ", spelled)), preset)
    return found
