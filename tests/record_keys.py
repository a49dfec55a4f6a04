"""What keys DeepSpeed's configuration classes have: asked of the installed release.

python -m tests.record_keys [--check]

Brings `autotune/engines/deepspeed/rules/keys.json` up to the installed release, or says by its
exit status whether it is. A row of a strict section stays as it is where it takes every sample as
the class does, and is made of the class's schema where not; a key that is new is marked with the
last release that was read, one that is gone with this one. Sections that DeepSpeed reads without
a class are told by hand.
"""

import importlib
import json
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from autotune.engines.deepspeed import rules
from autotune.engines.deepspeed.rules.releases import READ
from autotune.engines.deepspeed.rules.sections import REFUSED, Key, as_pydantic, key_of
from autotune.engines.releases import is_at_least
from tests.recorded_json import as_text

DATA_FILE = Path(rules.__file__).with_name("keys.json")
_ZERO = "zero_optimization"
_CLASSES = {
    _ZERO: "runtime.zero.config.DeepSpeedZeroConfig",
    f"{_ZERO}.offload_optimizer": (
        "runtime.zero.offload_config.DeepSpeedZeroOffloadOptimizerConfig"
    ),
    f"{_ZERO}.offload_param": "runtime.zero.offload_config.DeepSpeedZeroOffloadParamConfig",
    f"{_ZERO}.zenflow": "runtime.zenflow.zenflow_config.ZenFlowConfig",
    f"{_ZERO}.leaf_module": "runtime.zero.leaf_module_config.DeepSpeedZeroLeafModuleConfig",
    "fp16": "runtime.precision_config.DeepSpeedFP16Config",
    "bf16": "runtime.precision_config.DeepSpeedBF16Config",
    "bfloat16": "runtime.precision_config.DeepSpeedBF16Config",
    "tensor_parallel": "runtime.tensor_parallel.config.TPTrainingConfig",
    "tensor_parallel.tp": "runtime.tensor_parallel.config.TPConfig",
    "compile": "compile.config.CompileConfig",
    "comms_logger": "comm.config.CommsLoggerConfig",
    "hybrid_engine": "runtime.config.HybridEngineConfig",
    "timers.throughput": "utils.config.DeepSpeedThroughputTimerConfig",
    "weight_quantization": "inference.config.WeightQuantConfig",
    "tensorboard": "monitor.config.TensorBoardConfig",
    "wandb": "monitor.config.WandbConfig",
    "csv_monitor": "monitor.config.CSVConfig",
    "comet": "monitor.config.CometConfig",
}
"""Section -> DeepSpeed's class of it; older releases lack some."""
_SAMPLES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 3, 7, -1, 10**6, 0.0, 1.0, 2.0, 0.5, 1.5, -0.5, 5e8, 1e30),
    *(float("inf"), float("nan")),
    *("", "0", "1", "2", "7", "-1", " 3 ", "1.0", "0.5", "1_000", "+1", "5e8", "1e-4", "inf"),
    *("true", "True", "TRUE", "t", "yes", "Y", "on", "ON", "false", "f", "no", "n", "off"),
    *(" true", "maybe", "two", "cpu", "CPU", "nvme", "gpu", "llama", "asymmetric", "torch"),
    *([], [1], ["z1"], ["lm_head"], {}, {"enabled": True}),
)
_BESIDE_OTHERS = {("compute_grad_norm", False), ("bf16_optimizer_states", True)}
"""Values that are legal only beside others, which other rules ask."""


def main(arguments: list[str]) -> int:
    """Write the file; with `--check` compare it instead."""
    shipped = json.loads(DATA_FILE.read_text(encoding="utf-8"))
    found = recorded(shipped)
    if "--check" in arguments:
        return 0 if found == shipped else 1
    DATA_FILE.write_text(as_text(found, 3), encoding="utf-8")
    return 0


def recorded(shipped: Mapping[str, Any]) -> dict[str, Any]:
    """The table of keys, brought up to the installed release."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)  # it warns of every deprecated key
    release = deepspeed.__version__.partition("+")[0]
    found = {path: {**section, "keys": {**section["keys"]}} for path, section in shipped.items()}
    for path, config_class in _installed():
        section = found.setdefault(path, {"strict": True, "keys": {}})
        keys, spellings = section["keys"], section.get("spellings", {})
        names = {field.alias or name: name for name, field in config_class.model_fields.items()}
        for name, field in names.items():
            row = keys.get(name)
            if row is None:
                before = [known for known in READ if not is_at_least(known, release)]
                row = {**_row_of(config_class.model_fields[field]), "absent_through": before[-1]}
            elif not _is_alike(key_of(row), config_class, name):
                kept = {"absent_through"} & ({*row} if isinstance(row, dict) else set())
                row = {
                    **_row_of(config_class.model_fields[field]),
                    **{mark: row[mark] for mark in kept},
                }
            keys[name] = row
            if field != name:
                spellings[field] = name
        for name in keys.keys() - names.keys() - {*names.values()}:
            key = key_of(keys[name])
            if not key.is_removed(release) and not key.is_missing(release):
                keys[name] = {"removed_in": release, "why_removed": f"{release} lacks it"}
    return found


def _installed() -> Iterator[tuple[str, type[BaseModel]]]:
    for path, name in _CLASSES.items():
        module, _, attribute = name.rpartition(".")
        try:
            yield path, getattr(importlib.import_module(f"deepspeed.{module}"), attribute)
        except (ModuleNotFoundError, AttributeError):
            continue


def _row_of(field: FieldInfo) -> dict[str, Any]:
    """A row as the field's schema says it; what it does not say, people mend."""
    annotated: Any = Annotated[(field.annotation, *field.metadata, "of a row")]
    schema = TypeAdapter(annotated).json_schema()
    kinds = schema.get("anyOf", [schema])
    row: dict[str, Any] = {"null": True} if {"type": "null"} in kinds else {}
    kind: dict[str, Any] = next((one for one in kinds if one.get("type") != "null"), {})
    if reference := kind.get("$ref", ""):
        kind = schema["$defs"][reference.rpartition("/")[2]]
    if "enum" in kind:
        return {"one_of": kind["enum"], **row}
    least = kind.get("minimum", kind.get("exclusiveMinimum", -1) + 1)
    of_type = {
        "boolean": {"type": "bool"},
        "integer": {"type": "integer", "minimum": least} if least >= 0 else {"type": "integer"},
        "number": {"type": "number", "minimum": least},
        "string": {"type": "text"},
        "array": {"type": "list"},
        "object": {"type": "section"},
    }
    return {**of_type.get(kind.get("type", ""), {"type": "any"}), **row}


def _is_alike(key: Key, config_class: type[BaseModel], name: str) -> bool:
    """Whether a key takes every sample as the class does, and makes the same of it."""
    if key.accepts("anything") and key.accepts(object()):
        return True  # not checked by the table
    return all(
        _takes_alike(key, config_class, name, sample)
        for sample in _SAMPLES
        if (name, as_pydantic("bool", sample)) not in _BESIDE_OTHERS
        # Sections of their own, and a model's name, which the engine looks up later.
        and not isinstance(sample, Mapping)
        and not (name == "preset_model" and isinstance(sample, str))
    )


def _takes_alike(key: Key, config_class: type[BaseModel], name: str, sample: Any) -> bool:
    taken = key.taken(sample)
    if key.is_raw and isinstance(sample, str):  # DeepSpeed fails before its class
        return taken is REFUSED
    made = _made_by(config_class, name, sample)
    if REFUSED in (made, taken):
        return taken is made
    if isinstance(made, Path):
        return str(made) == str(Path(taken))
    if isinstance(taken, list) and isinstance(made, tuple):
        return taken == list(made)
    # None stands for a section's default, a name for a list of one.
    return taken == made or taken is None or [taken] == made


def _made_by(config_class: type[BaseModel], name: str, sample: Any) -> Any:
    """What a class makes of a value; REFUSED where it raises."""
    try:
        made = config_class(**{name: sample})
    except (ValidationError, TypeError):
        return REFUSED
    fields = config_class.model_fields
    field = next(ours for ours, field in fields.items() if name in (ours, field.alias))
    # A deprecated field is gone once it was read.
    return getattr(made, field, None if sample is None else as_pydantic("bool", sample))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
