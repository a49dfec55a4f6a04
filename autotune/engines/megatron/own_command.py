"""A user's own command that starts pretrain_gpt.py of a checkout: the job that it is."""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.base.data import table_beside
from autotune.base.errors import JobError
from autotune.engines.base import CommandJob
from autotune.engines.megatron.arguments import DECIDED
from autotune.engines.megatron.flags import known_release, null_vocab, release_of
from autotune.engines.megatron.launched import MegatronLaunch, launch_of_line
from autotune.engines.megatron.pretrain_gpt import SCRIPT

_IMPORTS = re.compile(r"^\s*(from|import) megatron\.training\b", re.MULTILINE)
_NOT_IN_TRIALS = re.compile(r"(save|load|tensorboard|wandb|exit|profile|one_logger)(_\w+)?")
"""Arguments of a long training, which a trial leaves out."""
_DEFAULTS_THAT_STAY = (
    *("lr_decay_style", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps", "clip_grad"),
    *("seed", "norm_epsilon", "attention_dropout", "hidden_dropout", "init_method_std"),
    "rotary_base",
)
"""Arguments for which a job would give other values than Megatron's defaults."""
_VOCAB_OF_GPT2 = 50257
_FAMILIES: Mapping[str, Mapping[str, Any]] = table_beside(__file__, "own_command.json")
"""Family of a model -> what its arguments are, and key of its config -> what says it."""
_OTHER = "experts or other layers"


def is_megatrons(command: Sequence[str], folder: Path) -> bool:
    """True for a command that starts a script of a Megatron-LM checkout."""
    script = _script_of(command, folder)
    if script is None or not (script.parent / "megatron/training").is_dir():
        return False
    try:
        return _IMPORTS.search(script.read_text(encoding="utf-8")) is not None
    except (OSError, ValueError):
        return False


def read_command(command: Sequence[str], folder: Path) -> CommandJob:
    """The job that a command is; `folder` is where it is started.

    Raises:
        JobError: It starts no pretrain_gpt.py of a checkout, or its model cannot be told.
    """
    script = _script_of(command, folder)
    if script is None or script.name != SCRIPT:
        raise JobError.of("engines.megatron.no_such_script", script=SCRIPT)
    release = known_release(release_of(script.parent), where=str(script.parent))
    launch = launch_of_line(shlex.join(command), release=release)
    for problem in launch.problems:
        raise JobError(f"the command: {problem.message}", problem.fix)
    words, left_out = _without_data(command[_script_at(command) + 1 :], folder)
    keys = {
        "seq_len": launch.get("seq_length"),
        "global_batch": launch.get("global_batch_size") or _batch(launch),
        "precision": next((name for name in ("bf16", "fp16") if launch.get(name)), "fp32"),
        "world": launch.world,
    }
    return CommandJob(
        keys={
            **{name: value for name, value in keys.items() if value is not None},
            "engine": "megatron",
            "megatron_path": str(script.parent),
            "megatron_arguments": [*words, *_stated(launch)],
        },
        model=_config(launch, _vocab(launch)),
        left_out=left_out,
    )


def _script_at(command: Sequence[str]) -> int:
    return next((n for n, word in enumerate(command) if word.endswith(".py")), len(command))


def _script_of(command: Sequence[str], folder: Path) -> Path | None:
    at = _script_at(command)
    return Path(os.path.abspath(folder / command[at])) if at < len(command) else None


def _without_data(words: Sequence[str], folder: Path) -> tuple[list[str], list[str]]:
    """Words that stay, files among them by absolute paths, and flags that are left out."""
    words_left: list[str] = []
    left_out: list[str] = []
    stays = True
    for word in words:
        if word.startswith("--"):
            name = word.partition("=")[0].removeprefix("--").replace("-", "_")
            is_long = _NOT_IN_TRIALS.fullmatch(name) is not None
            stays = name not in DECIDED and not is_long
            if is_long:
                left_out.append(word)
        if stays:
            found = [folder / f"{word}{ending}" for ending in ("", ".bin")]
            words_left.append(str(folder / word) if any(map(Path.exists, found)) else word)
    return words_left, left_out


def _stated(launch: MegatronLaunch) -> Iterator[str]:
    """Megatron's defaults in words, where a job's would come before them."""
    for name in _DEFAULTS_THAT_STAY:
        value = launch.get(name)
        if name not in launch.given and value is not None:
            yield from (f"--{name.replace('_', '-')}", str(value))


def _batch(launch: MegatronLaunch) -> int | None:
    """Megatron's default of the global batch: a micro-batch for each replica."""
    size, world = launch.get("micro_batch_size"), launch.world
    if not size or not world:
        return None
    split = 1
    for name in ("tensor_model", "pipeline_model", "context"):
        split *= launch.get(f"{name}_parallel_size")
    return int(size * (world // split))


def _vocab(launch: MegatronLaunch) -> int:
    """Token ids before padding.

    Raises:
        JobError: They are in a tokenizer's files.
    """
    kind, given = launch.get("tokenizer_type"), launch.get("vocab_size")
    if given is not None:
        has_extra = kind == "NullTokenizer" and null_vocab(1, launch.release) == 0
        return int(given) + has_extra
    if kind in (None, "GPT2BPETokenizer"):
        return _VOCAB_OF_GPT2
    raise JobError.of("engines.megatron.vocab_in_files", kind=kind)


def _config(launch: MegatronLaunch, vocab: int) -> dict[str, Any]:
    """The model as a Hugging Face config.

    Raises:
        JobError: It is neither GPT-2's nor Llama's.
    """
    get = launch.get
    facts = {
        "--position-embedding-type": get("position_embedding_type"),
        "--normalization": get("normalization"),
        "--swiglu": bool(get("swiglu")),
        "--disable-bias-linear": get("add_bias_linear") is False,
        _OTHER: any(map(get, ("num_experts", "qk_layernorm", "add_qkv_bias"))),
    }
    # Where one is not told, the reader of the config says which.
    hidden, heads = get("hidden_size") or 0, get("num_attention_heads") or 0
    width = get("ffn_hidden_size")
    sizes = {
        "width": width or 4 * hidden,
        "gated_width": width or int(4 * hidden * 2 / 3 / 64) * 64,
        "kv_heads": get("num_query_groups") if get("group_query_attention") else heads,
        "head_dim": get("kv_channels") or hidden // max(heads, 1),
        # From 0.16 on it is kept under another name.
        "epsilon": get("norm_epsilon") or get("layernorm_epsilon"),
    }
    for family, row in _FAMILIES.items():
        if facts == {**row["is"], _OTHER: False}:
            return {
                "model_type": family,
                "architectures": row["architectures"],
                "vocab_size": vocab,
                **{key: sizes.get(name) or get(name) for key, name in row["keys"].items()},
                "tie_word_embeddings": not get("untie_embeddings_and_output_weights"),
            }
    summary = ", ".join(f"{name} {value}" for name, value in facts.items())
    raise JobError.of("engines.megatron.unknown_model", summary=summary)
