"""Fields of Megatron-Bridge's configuration, read off its sources and Megatron Core's.

python -m tests.record_bridge_fields BRIDGE MEGATRON

BRIDGE is a checkout of Megatron-Bridge, MEGATRON one of Megatron-LM of about the same day. Writes
`autotune/export/bridge_fields.json`: section of its ConfigContainer -> the names of its fields.
Nothing is imported: Megatron-Bridge needs CUDA's packages.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.export.dialects.megatron_bridge import FIELDS_FILE
from tests.recorded_json import as_text

_SECTIONS = {
    "train": "TrainingConfig",
    "validation": "ValidationConfig",
    "model": "GPTModelProvider",
    "latent_model": "MLAModelProvider",
    "optimizer": "OptimizerConfig",
    "scheduler": "SchedulerConfig",
    "ddp": "DistributedDataParallelConfig",
    "dataset": "GPTDatasetConfig",
    "logger": "LoggerConfig",
    "tokenizer": "TokenizerConfig",
    "checkpoint": "CheckpointConfig",
    "rng": "RNGConfig",
    "dist": "DistributedInitConfig",
}
_FOLDERS = (
    *("src/megatron/bridge/training", "src/megatron/bridge/models", "src/megatron/bridge/data"),
    *("megatron/core/transformer", "megatron/core/optimizer", "megatron/core/datasets"),
    *("megatron/core/distributed", "megatron/training/config", "megatron/core"),
)
_FILES = ("*config.py", "base.py", "gpt_provider.py", "mla_provider.py", "gpt_dataset.py")
_RENAMED = ("MCore", "MTrain")
"""Beginnings of the names by which Megatron-Bridge imports a class of the same name."""


def fields_of(bridge: Path, megatron: Path) -> dict[str, list[str]]:
    """Names of the fields of every section, in alphabetical order."""
    theirs, core = _classes(bridge), _classes(megatron)
    return {
        section: sorted(set(_fields(name, theirs, core))) for section, name in _SECTIONS.items()
    }


def _classes(checkout: Path) -> dict[str, ast.ClassDef]:
    found: dict[str, ast.ClassDef] = {}
    for folder in _FOLDERS:
        for pattern in _FILES:
            for path in sorted((checkout / folder).rglob(pattern)):
                for node in ast.parse(path.read_text(encoding="utf-8")).body:
                    if isinstance(node, ast.ClassDef):
                        found.setdefault(node.name, node)
    return found


def _fields(
    name: str, theirs: Mapping[str, ast.ClassDef], core: Mapping[str, ast.ClassDef]
) -> Iterator[str]:
    """Fields of a class and those that it inherits: Megatron-Bridge's, else Megatron Core's."""
    node = theirs.get(name) or core.get(name)
    if node is None:
        return
    yield from own_fields(node)
    for base in node.bases:
        above = base.id if isinstance(base, ast.Name) else ""
        plain = next((above.removeprefix(p) for p in _RENAMED if above.startswith(p)), above)
        yield from _fields(plain, {} if plain != above else theirs, core)


def own_fields(node: ast.ClassDef) -> Iterator[str]:
    """Names of a dataclass's own fields, without those that it inherits."""
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            yield line.target.id


if __name__ == "__main__":
    FIELDS_FILE.write_text(as_text(fields_of(Path(sys.argv[1]), Path(sys.argv[2])), 1), "utf-8")
