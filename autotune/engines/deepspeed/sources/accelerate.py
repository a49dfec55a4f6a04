"""accelerate's YAML: its fields, what DeepSpeed gets of them, what is refused or lost on the way.

Source: accelerate 1.15: commands/config/config_args.py, commands/launch.py, utils/launch.py
(prepare_deepspeed_cmd_env), utils/dataclasses.py (DeepSpeedPlugin) and accelerator.py. Its
launcher hands the section on as variables of the environment, so that each value becomes text and
is read again: PyYAML's text `1e-4` is a number at the end.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.base.names import near_names
from autotune.base.nested import look_up
from autotune.engines.deepspeed.rules.base import BATCH_KEYS
from autotune.engines.deepspeed.rules.schema import HOMES
from autotune.engines.deepspeed.rules.sections import ACCELERATES, AUTO, SECTIONS
from autotune.engines.deepspeed.sources.file_rules import violation_of
from autotune.engines.deepspeed.sources.programs import PROGRAMS
from autotune.engines.launches.line import count, text_or_none
from autotune.space.rule import Violation

_FIELDS: Mapping[str, Any] = PROGRAMS["accelerate"]
SECTION = "deepspeed_config"
"""Its section for DeepSpeed."""
FIELDS = {key: name for name, key in ACCELERATES.items()}
"""Key of a ds_config -> what the section calls it."""
FLAGS = tuple(name for name in ACCELERATES if not name.endswith("_path"))
"""Fields that are flags of `accelerate launch`, which come before the section."""
OF_NODES = ("deepspeed_multinode_launcher", "deepspeed_hostfile")
"""Fields, and flags, by which the ranks of other nodes are started."""
KINDS: tuple[str, ...] = tuple(_FIELDS["kinds"])
"""Values of `distributed_type`."""
ACCUMULATION = "gradient_accumulation_steps"
PRECISIONS = ("no", "fp8", "fp16", "bf16")
TOP_FIELDS = frozenset(_FIELDS["top_fields"])
"""Fields of the file, with two old ones that it converts."""
SECTION_FIELDS = frozenset(_FIELDS["section_fields"])
"""Fields of `deepspeed_config`."""
_OLD_SECTION_FIELDS = frozenset({"deepspeed_moe_layer_cls_name"})
_TRUTHS = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
_SAGEMAKER = "AMAZON_SAGEMAKER"
_SIZES, _AXES = "parallelism_config_", ("dp_replicate", "dp_shard", "tp", "cp", "sp")
ACCELERATE_OWNED: tuple[str, ...] = tuple(_FIELDS["refused_beside_a_file"])
"""Fields of an accelerate YAML that it refuses beside a `deepspeed_config_file`
(DeepSpeedPlugin._deepspeed_config_checks)."""

ACCELERATE_ALONE: tuple[str, ...] = tuple(_FIELDS["fields_of_no_other"])
"""Fields of an accelerate YAML that no other program has (commands/config/config_args.py)."""

_AT_TOP = frozenset(_FIELDS["fields_that_tell"])
"""Fields beside the section that tell an accelerate YAML."""
_OF_DEEPSPEED = frozenset(_FIELDS["keys_of_no_section"])
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


def violations(
    data: Mapping[str, Any], *, ranks: int | None = None, fills_in: bool = False
) -> Iterator[Violation]:
    """What accelerate does with a file for DeepSpeed.

    Args:
        data: The file, as PyYAML reads it.
        ranks: Processes, where something else says how many there are.
        fills_in: Whether an accumulation of "auto" is filled in, as by Trainer, which counts by
            itself (transformers/trainer.py: create_accelerator_and_postprocess).
    """
    if data.get("compute_environment") == _SAGEMAKER:
        return
    for name, why, fix in _refused(data, fills_in, ranks):
        yield violation_of("accelerate.refused", name=name, why=why, fix=fix)
    section = data.get("deepspeed_config")
    if isinstance(section, Mapping) and str(data.get("distributed_type")) == "DEEPSPEED":
        yield from _lost(data, section)


def _refused(
    data: Mapping[str, Any], fills_in: bool, ranks: int | None
) -> Iterator[tuple[str, str, str]]:
    """Field, why, what to do."""
    if "num_processes" in data and data["num_processes"] is None and ranks is None:
        yield ("num_processes", *_FIELDS["without_ranks"])
    for name in data:
        if name not in TOP_FIELDS:
            move = f"move {name} into deepspeed_config" if name in SECTION_FIELDS else ""
            fix = move or _rename(str(name), TOP_FIELDS)
            yield str(name), "accelerate refuses a field that it does not know", fix
    kind = data.get("distributed_type")
    if kind not in KINDS:
        near = _near(str(kind).upper(), KINDS)
        why = f"accelerate does not know {kind!r}, it asks for the letters"
        if kind is None:
            near, why = "", "it is not there, and accelerate refuses a file without it"
        fix = f"set distributed_type to {near or 'DEEPSPEED'} in the accelerate file"
        yield "distributed_type", why, fix
    precision = data.get("mixed_precision")
    if precision is False:
        why = "YAML reads no without quotes as false, which accelerate does not know"
        yield "mixed_precision", why, "write 'no', with quotes"
    elif precision is not None and str(precision).lower() not in PRECISIONS:
        near = _near(str(precision).lower().replace("float", "f"), PRECISIONS)
        fix = f"set mixed_precision to {near or ' or '.join(PRECISIONS)} in the accelerate file"
        yield "mixed_precision", f"accelerate does not know {precision!r}", fix
    section = data.get("deepspeed_config")
    if isinstance(section, Mapping) and kind == "DEEPSPEED":
        yield from _refused_in(section, fills_in)
    # The launch's number of ranks comes before the file's.
    yield from _refused_sizes(data, ranks or data.get("num_processes"))


def _refused_sizes(data: Mapping[str, Any], ranks: Any) -> Iterator[tuple[str, str, str]]:
    """Sizes of `ParallelismConfig` that the ranks do not make, or that leave FSDP none."""
    given = data.get("parallelism_config")
    is_fsdp2 = look_up(data, "fsdp_config.fsdp_version") == 2
    if not isinstance(given, Mapping):
        return
    *sizes, shared = (given.get(f"{_SIZES}{name}_size", 1) for name in _AXES)
    if not all(type(one) is int and one > 0 for one in (*sizes, shared, ranks)):
        return
    beside = f"beside num_processes={ranks}"
    if shared > 1 and ranks % shared:  # with sequences that are shared it asks for no more
        fix = f"set sp_size to a divisor of {ranks}"
        yield "parallelism_config", f"sp_size={shared} {beside}", fix
    elif shared == 1 and prod(sizes) not in (1, ranks):
        why = f"{' * '.join(f'{name}_size' for name in _AXES)}={prod(sizes)} {beside}"
        yield "parallelism_config", why, f"set sizes whose product is {ranks}"
    elif is_fsdp2 and prod(sizes) > sizes[1] * sizes[3] == 1:
        why = "dp_shard_size=1 and cp_size=1 leave FSDP2 nothing to shard over"
        yield "parallelism_config", why, "set dp_shard_size to 2 or more, another size to less"


def _refused_in(section: Mapping[str, Any], fills_in: bool) -> Iterator[tuple[str, str, str]]:
    """Values that it cannot convert back from text."""
    # Of the clipping alone it asks for the word before it converts.
    words = ("gradient_clipping", ACCUMULATION) if fills_in else ("gradient_clipping",)
    for name, kind, wants in (
        ("zero_stage", int, "one of 0, 1, 2, 3"),
        (ACCUMULATION, int, "a whole number of at least 1"),
        ("gradient_clipping", float, "a number"),
    ):
        value = section.get(name)
        is_word = name in words and str(value).lower() == AUTO
        if value is not None and not is_word and not _takes(name, kind, str(value)):
            fix = f"set {name} to {wants} in the accelerate file, or leave it out"
            yield f"deepspeed_config.{name}", f"accelerate takes {wants}, not {value!r}", fix
    flag = section.get("zero3_init_flag")
    if flag is not None and str(flag).lower() not in _TRUTHS:
        fix = "set zero3_init_flag to true or false in the accelerate file"
        why = f"accelerate takes true or false, not {flag!r}"
        yield "deepspeed_config.zero3_init_flag", why, fix


def _lost(data: Mapping[str, Any], section: Mapping[str, Any]) -> Iterator[Violation]:
    """Fields that are there and do nothing, or something else."""
    for name in section:
        if name not in SECTION_FIELDS | _OLD_SECTION_FIELDS:
            fix = _place_of(str(name), section[name]) or _rename(str(name), SECTION_FIELDS)
            yield violation_of("accelerate.unknown_field", name=name, fix=fix)
    if section.get("deepspeed_config_file") in (None, "none"):
        for kind in ("optimizer", "param"):
            path = section.get(f"offload_{kind}_nvme_path")
            if str(section.get(f"offload_{kind}_device")).lower() == "nvme":
                name = "accelerate.nvme_path_lost"
                yield violation_of(name, kind=kind, KIND=kind.upper(), path=path)
        clipping = section.get("gradient_clipping")
        if type(clipping) in (int, float) and clipping == 0:
            yield violation_of("accelerate.clipping_lost", clipping=clipping)
    compiled = data.get("dynamo_config") or data.get("dynamo_backend")
    if compiled and str(compiled).upper() != "NO":
        yield violation_of("accelerate.compile_lost")


def _takes(name: str, kind: type[int] | type[float], text: str) -> bool:
    try:
        number = kind(text)
    except ValueError:
        return False
    # Nobody asks before DeepSpeed, whose batch is then of no sample.
    return name != ACCUMULATION or number >= 1


def _near(given: str, known: Iterable[str]) -> str:
    return next(iter(near_names(given, known, alike=0.6)), "")


def _place_of(name: str, value: Any) -> str:
    """Where a field of the section that accelerate ignores does something; empty: nowhere."""
    if name in ("fp16", "bf16"):
        is_on = value.get("enabled") if isinstance(value, Mapping) else value
        if str(is_on).lower() not in ("true", AUTO):
            return f"remove {name} from the accelerate file"
        return f"set mixed_precision to {name} at the top of the accelerate file"
    if name in TOP_FIELDS:
        return f"move {name} out of deepspeed_config, to the top of the accelerate file"
    section = "" if name in SECTIONS[""].keys else HOMES.get(name)
    if section is None:
        return ""
    key = f"{section}.{name}" if section else name
    in_file = f"set {key} in a ds_config.json that deepspeed_config_file names"
    if name == BATCH_KEYS[0]:
        return (
            "give it to the data loader of the script, or as --per_device_train_batch_size to "
            f"Trainer; else {in_file}"
        )
    return f"{in_file}, with the other settings of the section"


def _rename(name: str, known: Iterable[str]) -> str:
    near = _near(name, known)
    guess = f"did you mean {near}? Else " if near else ""
    return f"{guess}remove {name} from the accelerate file"
