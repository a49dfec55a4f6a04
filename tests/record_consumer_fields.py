"""Fields that verl, NeMo-RL, ms-swift and SkyPilot know, read off their sources.

python -m tests.record_consumer_fields VERL NEMO_RL MS_SWIFT SKYPILOT

Each is a folder with the package in it: a checkout, or what a wheel holds. Writes
`autotune/export/consumer_fields.json`. Nothing is imported: they need CUDA's packages.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune.export.dialects.settings import FIELDS_FILE
from tests.record_bridge_fields import own_fields
from tests.recorded_json import as_text

_CLASSES = {
    "verl": {"engine": "McoreEngineConfig", "optim": "McoreOptimizerConfig"},
    "nemo-rl": {
        "megatron": "MegatronConfig",
        "optimizer": "MegatronOptimizerConfig",
        "ddp": "MegatronDDPConfig",
        "policy": "PolicyConfig",
    },
    "ms-swift": {"megatron": "MegatronSftArguments", "sft": "SftArguments"},
}
"""Consumer -> kind of its settings -> the class that has them."""
_FILES = {
    "verl": ("verl/workers/config/*.py", "verl/base_config.py"),
    "nemo-rl": ("nemo_rl/models/policy/__init__.py",),
    "ms-swift": (
        "swift/arguments/**/*.py",
        "swift/megatron/arguments/*.py",
        "swift/trainers/*.py",
    ),
}
_VERSIONS = {
    "verl": ("verl/version/version", r"(\S+)"),
    "nemo-rl": ("nemo_rl/package_info.py", r"MAJOR = (\d+)\nMINOR = (\d+)\nPATCH = (\d+)"),
    "ms-swift": ("swift/version.py", r"__version__ = '(\S+)'"),
    "skypilot": ("sky/__init__.py", r"__version__ = '(\S+)'"),
}
_NAMES = {"verl": "verl", "nemo-rl": "NeMo-RL", "ms-swift": "ms-swift", "skypilot": "SkyPilot"}


def fields_of(folders: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Consumer -> its release, and the names of its fields in alphabetical order."""
    found: dict[str, dict[str, Any]] = {}
    for consumer, folder in folders.items():
        name, pattern = _VERSIONS[consumer]
        match = re.search(pattern, (folder / name).read_text(encoding="utf-8"))
        assert match is not None, f"{folder / name}: says no version"
        found[consumer] = {"source": f"{_NAMES[consumer]} {'.'.join(match.groups())}"}
        classes = _classes(folder, _FILES.get(consumer, ()))
        for kind, of in _CLASSES.get(consumer, {}).items():
            found[consumer][kind] = sorted(set(_fields(of, classes)))
    # What the recipes of NeMo-RL have besides, and its code reads.
    recipe = yaml.safe_load((folders["nemo-rl"] / "examples/configs/sft.yaml").read_text("utf-8"))
    known = {*found["nemo-rl"]["megatron"], *recipe["policy"]["megatron_cfg"]}
    found["nemo-rl"]["megatron"] = sorted(known)
    schemas = ast.parse((folders["skypilot"] / "sky/utils/schemas.py").read_text("utf-8"))
    found["skypilot"]["task"] = _properties(schemas, "get_task_schema")
    found["skypilot"]["resources"] = _properties(schemas, "_get_single_resources_schema")
    return found


def _classes(folder: Path, patterns: tuple[str, ...]) -> dict[str, ast.ClassDef]:
    found: dict[str, ast.ClassDef] = {}
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name, node)
    return found


def _fields(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """Fields of a class and those that it inherits from its own package."""
    if name in classes:
        yield from (field for field in own_fields(classes[name]) if not field.startswith("_"))
        for base in classes[name].bases:
            if isinstance(base, ast.Name) and base.id != name:
                yield from _fields(base.id, classes)


def _properties(schemas: ast.Module, function: str) -> list[str]:
    """Keys of the properties that a function of SkyPilot's schemas returns."""
    (made,) = (n for n in schemas.body if isinstance(n, ast.FunctionDef) and n.name == function)
    (returned,) = (node.value for node in made.body if isinstance(node, ast.Return))
    assert isinstance(returned, ast.Dict)
    schema = dict(zip((ast.unparse(k) for k in returned.keys if k), returned.values, strict=True))
    properties = schema["'properties'"]
    assert isinstance(properties, ast.Dict)
    return sorted(ast.literal_eval(key) for key in properties.keys if key is not None)


if __name__ == "__main__":
    named = dict(zip(_NAMES, map(Path, sys.argv[1:]), strict=True))
    FIELDS_FILE.write_text(as_text(fields_of(named), 2), "utf-8")
