"""An accelerate YAML: fields that accelerate refuses, and those that it loses on the way.

Source: accelerate 1.15: commands/config/config_args.py, commands/launch.py, utils/launch.py
(prepare_deepspeed_cmd_env), utils/dataclasses.py (DeepSpeedPlugin) and accelerator.py. Its
launcher hands the section on as variables of the environment, all of them text.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.engines.deepspeed.rules.base import BATCH_KEYS
from autotune.engines.deepspeed.rules.keys import SECTIONS
from autotune.engines.deepspeed.rules.schema import HOMES
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.rules.spelling import guesses
from autotune.space.rule import Violation

KINDS = (
    *("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA"),
    *("MULTI_XPU", "MULTI_HPU", "MULTI_NEURON", "DEEPSPEED", "FSDP", "XLA", "MEGATRON_LM"),
)
"""Values of `distributed_type`."""

ACCUMULATION = "gradient_accumulation_steps"

PRECISIONS = ("no", "fp8", "fp16", "bf16")

TOP_FIELDS = frozenset(
    (
        *("compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug"),
        *("num_processes", "machine_rank", "num_machines", "gpu_ids", "main_process_ip"),
        *("main_process_port", "rdzv_backend", "same_network", "main_training_function"),
        *("enable_cpu_affinity", "fp8_config", "deepspeed_config", "fsdp_config"),
        *("parallelism_config", "megatron_lm_config", "mpirun_config", "downcast_bf16"),
        *("tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands"),
        *("tpu_vm", "tpu_env", "dynamo_config", "dynamo_backend", "fp16"),
    )
)
"""Fields of the file; the last two are old ones, which it converts."""

SECTION_FIELDS = frozenset(
    (
        *("deepspeed_config_file", "zero_stage", "gradient_accumulation_steps"),
        *("gradient_clipping", "offload_optimizer_device", "offload_param_device"),
        *("offload_optimizer_nvme_path", "offload_param_nvme_path", "zero3_init_flag"),
        *("zero3_save_16bit_model", "deepspeed_hostfile", "deepspeed_exclusion_filter"),
        *("deepspeed_inclusion_filter", "deepspeed_multinode_launcher"),
        "deepspeed_moe_layer_cls_names",
    )
)
"""Fields of `deepspeed_config`."""

_OLD_SECTION_FIELDS = frozenset({"deepspeed_moe_layer_cls_name"})
_TRUTHS = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
_SAGEMAKER = "AMAZON_SAGEMAKER"


def violations(
    data: Mapping[str, Any], *, is_counted: bool = False, fills_in: bool = False
) -> Iterator[Violation]:
    """What accelerate does with a file for DeepSpeed.

    Args:
        data: The file, as PyYAML reads it.
        is_counted: Whether something else says how many processes there are.
        fills_in: Whether an accumulation of "auto" is filled in, as by Trainer, which counts by
            itself (transformers/trainer.py: create_accelerator_and_postprocess).
    """
    if data.get("compute_environment") == _SAGEMAKER:
        return
    if "num_processes" in data and data["num_processes"] is None and not is_counted:
        yield Violation(
            rule="accelerate.refused",
            message="num_processes: accelerate starts the ranks with its value, and there is none",
            fix="set num_processes to the number of devices in the accelerate file, or give "
            "--num_processes",
            at=("num_processes",),
        )
    for name, message, fix in _refused(data, fills_in):
        yield Violation(
            rule="accelerate.refused",
            message=f"{name}: {message}",
            fix=fix,
            at=(name,),
        )
    section = data.get("deepspeed_config")
    if isinstance(section, Mapping) and str(data.get("distributed_type")) == "DEEPSPEED":
        yield from _lost(data, section)


def _refused(data: Mapping[str, Any], fills_in: bool) -> Iterator[tuple[str, str, str]]:
    """Field, why, what to do."""
    for name in data:
        if name not in TOP_FIELDS:
            yield (
                str(name),
                "accelerate refuses a field that it does not know",
                f"move {name} into deepspeed_config"
                if name in SECTION_FIELDS
                else _rename(str(name), TOP_FIELDS),
            )
    kind = data.get("distributed_type")
    if kind is None:
        yield (
            "distributed_type",
            "it is not there, and accelerate refuses a file without it",
            "set distributed_type to DEEPSPEED in the accelerate file",
        )
    elif kind not in KINDS:
        yield (
            "distributed_type",
            f"accelerate does not know {kind!r}, it asks for the letters",
            (
                f"set distributed_type to {_near(str(kind).upper(), KINDS) or 'DEEPSPEED'} in the "
                "accelerate file"
            ),
        )
    yield from _refused_precision(data)
    section = data.get("deepspeed_config")
    if isinstance(section, Mapping) and kind == "DEEPSPEED":
        yield from _refused_in(section, fills_in)


def _refused_precision(data: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    precision = data.get("mixed_precision")
    if precision is None or (isinstance(precision, str) and precision.lower() in PRECISIONS):
        return
    if precision is False:
        yield (
            "mixed_precision",
            "YAML reads no without quotes as false, which accelerate does not know",
            "write 'no', with quotes",
        )
        return
    near = _near(str(precision).lower().replace("float", "f"), PRECISIONS)
    yield (
        "mixed_precision",
        f"accelerate does not know {precision!r}",
        f"set mixed_precision to {near or ' or '.join(PRECISIONS)} in the accelerate file",
    )


def _refused_in(section: Mapping[str, Any], fills_in: bool) -> Iterator[tuple[str, str, str]]:
    """Values that it cannot convert back from text."""
    for name, kind, wants in (
        ("zero_stage", int, "one of 0, 1, 2, 3"),
        (ACCUMULATION, int, "a whole number of at least 1"),
        ("gradient_clipping", float, "a number"),
    ):
        value = section.get(name)
        # Of the clipping alone it asks for the word before it converts.
        takes_word = name == "gradient_clipping" or (fills_in and name == ACCUMULATION)
        is_word = takes_word and str(value).lower() == AUTO
        if value is None or is_word or _takes(name, kind, str(value)):
            continue
        yield (
            f"deepspeed_config.{name}",
            f"accelerate takes {wants}, not {value!r}",
            f"set {name} to {wants} in the accelerate file, or leave it out",
        )
    flag = section.get("zero3_init_flag")
    if flag is not None and str(flag).lower() not in _TRUTHS:
        yield (
            "deepspeed_config.zero3_init_flag",
            f"accelerate takes true or false, not {flag!r}",
            "set zero3_init_flag to true or false in the accelerate file",
        )


def _lost(data: Mapping[str, Any], section: Mapping[str, Any]) -> Iterator[Violation]:
    """Fields that are there and do nothing, or something else."""
    machines = data.get("num_machines")
    if type(machines) is int and machines < 1:
        yield Violation(
            rule="accelerate.machines",
            message=f"num_machines: {machines} is taken for 1",
            fix="set num_machines to 1 in the accelerate file",
            at=("num_machines",),
            consequence="converted",
        )
    for name in section:
        if name not in SECTION_FIELDS | _OLD_SECTION_FIELDS:
            yield Violation(
                rule="accelerate.unknown_field",
                message=f"deepspeed_config.{name}: accelerate does not know the field, and "
                "ignores it",
                fix=_place_of(str(name)) or _rename(str(name), SECTION_FIELDS),
                at=(f"deepspeed_config.{name}",),
                consequence="ignored",
            )
    if section.get("deepspeed_config_file") in (None, "none"):
        yield from _lost_without_file(section)
    compiled = data.get("dynamo_config") or data.get("dynamo_backend")
    if compiled and str(compiled).upper() != "NO":
        yield Violation(
            rule="accelerate.compile_lost",
            message="dynamo_config: accelerate's launcher does not hand it on to DeepSpeed's "
            "ranks, so that nothing is compiled",
            fix="set ACCELERATE_DYNAMO_BACKEND in the environment, or compile in the script",
            at=("dynamo_config",),
            consequence="ignored",
        )


def _lost_without_file(section: Mapping[str, Any]) -> Iterator[Violation]:
    for kind in ("optimizer", "param"):
        path = section.get(f"offload_{kind}_nvme_path")
        if str(section.get(f"offload_{kind}_device")).lower() == "nvme":
            yield Violation(
                rule="accelerate.nvme_path_lost",
                message=f"deepspeed_config.offload_{kind}_nvme_path={path}: accelerate's launcher "
                "does not hand it on, DeepSpeed swaps to the folder `none` below the one that "
                "the training starts in",
                fix=f"set ACCELERATE_DEEPSPEED_OFFLOAD_{kind.upper()}_NVME_PATH in the "
                "environment, or name a deepspeed_config_file",
                at=(f"deepspeed_config.offload_{kind}_nvme_path",),
                consequence="differs",
            )
    clipping = section.get("gradient_clipping")
    if type(clipping) in (int, float) and clipping == 0:
        yield Violation(
            rule="accelerate.clipping_lost",
            message=f"deepspeed_config.gradient_clipping={clipping}: accelerate leaves out a "
            "zero, and DeepSpeed clips by its default",
            fix="name a deepspeed_config_file with gradient_clipping at 0",
            at=("deepspeed_config.gradient_clipping",),
            consequence="differs",
        )


def _takes(name: str, kind: type[int] | type[float], text: str) -> bool:
    try:
        number = kind(text)
    except ValueError:
        return False
    # Nobody asks before DeepSpeed, whose batch is then of no sample.
    return name != ACCUMULATION or number >= 1


def _near(given: str, known: Any) -> str:
    return next(iter(guesses(given, known)), "")


def _place_of(name: str) -> str:
    """Where a field of the section that accelerate ignores does something; empty: nowhere."""
    if name in TOP_FIELDS:
        return f"move {name} out of deepspeed_config, to the top of the accelerate file"
    section = "" if name in SECTIONS[""].keys else HOMES.get(name)
    if section is None:
        return ""
    key = f"{section}.{name}" if section else name
    of_file = f"set {key} in a ds_config.json that deepspeed_config_file names"
    if name == BATCH_KEYS[0]:
        return (
            "give it to the data loader of the script, or as --per_device_train_batch_size to "
            f"Trainer; else {of_file}"
        )
    return f"{of_file}, with the other settings of the section"


def _rename(name: str, known: Any) -> str:
    near = _near(name, known)
    guess = f"did you mean {near}? Else " if near else ""
    return f"{guess}remove {name} from the accelerate file"
