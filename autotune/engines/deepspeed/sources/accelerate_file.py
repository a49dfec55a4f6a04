"""An accelerate YAML: what it says, and what accelerate hands to DeepSpeed because of it.

Source: accelerate 1.15: commands/config/config_args.py, commands/launch.py, utils/launch.py
(prepare_deepspeed_cmd_env) and utils/dataclasses.py (DeepSpeedPlugin). Its launcher hands the
section on as variables of the environment, so that each value becomes text and is read again:
PyYAML's text `1e-4` is a number at the end.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.sources.accelerate_fields import KINDS
from autotune.engines.deepspeed.sources.programs import PROGRAMS
from autotune.engines.launches.line import count, text_or_none

ACCELERATE_OWNED: tuple[str, ...] = tuple(PROGRAMS["accelerate"]["refused_beside_a_file"])
"""Fields of an accelerate YAML that it refuses beside a `deepspeed_config_file`
(DeepSpeedPlugin._deepspeed_config_checks)."""

ACCELERATE_ALONE: tuple[str, ...] = tuple(PROGRAMS["accelerate"]["fields_of_no_other"])
"""Fields of an accelerate YAML that no other program has (commands/config/config_args.py)."""

_AT_TOP = frozenset(PROGRAMS["accelerate"]["fields_that_tell"])
"""Fields beside the section that tell an accelerate YAML."""
_OF_DEEPSPEED = frozenset(PROGRAMS["accelerate"]["keys_of_no_section"])
"""Keys of a ds_config that no section of accelerate's has."""
_UNSAID = -1
"""`num_processes` that leaves it to the launch line (config_args.py)."""


def is_accelerate(data: Mapping[Any, Any]) -> bool:
    """Whether a file is accelerate's, for DeepSpeed."""
    if "zero_optimization" in data:
        return False
    is_deepspeed = str(data.get("distributed_type")).upper() == "DEEPSPEED"
    if "deepspeed_config" not in data:
        return is_deepspeed and "deepspeed" not in data
    if not _AT_TOP.isdisjoint(data):
        return True
    # The key is everybody's: others name a ds_config there, or hold one.
    section = data["deepspeed_config"]
    if isinstance(section, Mapping):
        return _OF_DEEPSPEED.isdisjoint(section)
    return not isinstance(section, str)


class AccelerateFile:
    """Settings of an accelerate YAML; none without a file.

    Raises:
        JobError: A value in it is none of those that are allowed there.
    """

    def __init__(self, data: Mapping[str, Any], path: Path | None) -> None:
        self.path, self.data = path, data
        section = data.get("deepspeed_config")
        if section is not None and not isinstance(section, Mapping):
            raise JobError.of("engines.deepspeed.no_section", path=path, section=section)
        self.section: Mapping[str, Any] = section or {}
        named = text_or_none(self.section.get("deepspeed_config_file"))
        self.file = None if named == "none" else named
        at = f"{path}: num_processes"
        self.n_processes = count(data.get("num_processes"), name=at, words=(_UNSAID,))
        machines = data.get("num_machines")
        # It asks whether there are more than one, and counts no further.
        is_one = type(machines) is int and machines < 1
        self.n_machines = 1 if is_one else count(machines, name=f"{path}: num_machines")
        self.mixed_precision = text_or_none(data.get("mixed_precision"))

    @property
    def owned(self) -> tuple[str, ...]:
        """Fields that accelerate refuses beside a ds_config."""
        fields = {*self.section, *({"mixed_precision"} & self.data.keys())}
        return tuple(name for name in ACCELERATE_OWNED if name in fields)

    @property
    def not_for(self) -> str:
        """Name of what accelerate starts instead of DeepSpeed; empty where it starts DeepSpeed."""
        kind = str(self.data.get("distributed_type", "DEEPSPEED"))
        return kind if kind in KINDS and kind != "DEEPSPEED" else ""


def config_of(file: AccelerateFile, flags: Mapping[str, Any]) -> dict[str, Any]:
    """What accelerate makes of a section without a file (DeepSpeedPlugin.__post_init__).

    A value that it cannot convert stays as it is: what it raises, the rules say as well.

    Args:
        file: The YAML.
        flags: Those of the launch line, which come first.
    """
    fields = {**file.section, **flags}
    texts = {name: str(value) for name, value in fields.items() if value is not None}
    accumulation = texts.get("gradient_accumulation_steps", AUTO)
    clipping: Any = texts.get("gradient_clipping", AUTO).lower()
    if clipping != AUTO:
        clipping = _converted(float, clipping)
    zero: dict[str, Any] = {"stage": _converted(int, texts.get("zero_stage", "2"))}
    for kind in ("optimizer", "param"):
        device = texts.get(f"offload_{kind}_device", "none").lower()
        # The launcher sets no variable for the path, and without one it is this word.
        path = {"nvme_path": "none"} if device == "nvme" else {}
        zero[f"offload_{kind}"] = {"device": device, **path}
    saves = texts.get("zero3_save_16bit_model", "false").lower() == "true"
    config: dict[str, Any] = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": (
            int(accumulation) if accumulation.isdecimal() else accumulation
        ),
        "zero_optimization": {**zero, "stage3_gather_16bit_weights_on_model_save": saves},
    }
    return config | ({"gradient_clipping": clipping} if clipping else {})


def _converted(kind: type[int] | type[float], text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        return text
