"""Fields of what NeMo 2 trains with, read off its sources and Megatron Core's.

python -m tests.record_nemo_fields NEMO MEGATRON

NEMO is a checkout of NeMo, MEGATRON one of Megatron-LM at the commit that NeMo's
requirements/manifest.json names. Writes `autotune/export/nemo_fields.json`: section -> names of
the fields or arguments of its class. Nothing is imported: NeMo needs CUDA's packages.
"""

import ast
import sys
from pathlib import Path

from autotune.export.dialects.nemo import FIELDS_FILE
from tests.record_bridge_fields import as_text, own_fields

_LLM, _LIGHTNING = "nemo/collections/llm", "nemo/lightning/pytorch"
_ARGUMENTS = {
    "strategy": (f"{_LIGHTNING}/strategies/megatron_strategy.py", "MegatronStrategy"),
    "precision": (f"{_LIGHTNING}/plugins/mixed_precision.py", "MegatronMixedPrecision"),
    "comm_overlap": (
        f"{_LIGHTNING}/callbacks/megatron_comm_overlap.py",
        "MegatronCommOverlapCallback",
    ),
    "data": (f"{_LLM}/gpt/data/mock.py", "MockDataModule"),
}
"""Section -> the file and the class whose arguments it has."""
_MODEL = (
    ("NEMO", f"{_LLM}/gpt/model/base.py", "GPTConfig"),
    ("NEMO", f"{_LLM}/gpt/model/llama.py", "Llama31Config"),
    ("MEGATRON", "megatron/core/transformer/transformer_config.py", "TransformerConfig"),
    ("MEGATRON", "megatron/core/model_parallel_config.py", "ModelParallelConfig"),
)
_OF_CORE = {
    "ddp": (
        "megatron/core/distributed/distributed_data_parallel_config.py",
        "DistributedDataParallelConfig",
    ),
    "optimizer": ("megatron/core/optimizer/optimizer_config.py", "OptimizerConfig"),
}
_OF_OTHERS = {
    # What train.py hands to Lightning's Trainer, to get_nmt_tokenizer and to seed_everything.
    "trainer": [
        *("devices", "limit_val_batches", "log_every_n_steps", "max_steps", "num_nodes"),
        "num_sanity_val_steps",
    ],
    "tokenizer": ["vocab_size"],
    "seed": ["seed"],
}


def nemo_fields(nemo: Path, megatron: Path) -> dict[str, list[str]]:
    """Names of the fields of every section, in alphabetical order."""
    folders = {"NEMO": nemo, "MEGATRON": megatron}
    model = [name for where, *rest in _MODEL for name in fields(folders[where], *rest)]
    return {
        "model": sorted(set(model)),
        **{section: arguments(nemo, *where) for section, where in _ARGUMENTS.items()},
        **{section: fields(megatron, *where) for section, where in _OF_CORE.items()},
        **_OF_OTHERS,
    }


def fields(checkout: Path, path: str, name: str) -> list[str]:
    """Names of a dataclass's own fields."""
    return sorted(own_fields(_class(checkout / path, name)))


def arguments(checkout: Path, path: str, name: str) -> list[str]:
    """Names of what a class is made with."""
    (made,) = (
        line
        for line in _class(checkout / path, name).body
        if isinstance(line, ast.FunctionDef) and line.name == "__init__"
    )
    return sorted(each.arg for each in (*made.args.args[1:], *made.args.kwonlyargs))


def _class(path: Path, name: str) -> ast.ClassDef:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return found


if __name__ == "__main__":
    FIELDS_FILE.write_text(as_text(nemo_fields(Path(sys.argv[1]), Path(sys.argv[2]))), "utf-8")
