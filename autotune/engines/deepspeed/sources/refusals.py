"""What a reader or a launcher refuses, or does not follow, before DeepSpeed sees a file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.base.nested import look_up
from autotune.engines.deepspeed.sources.accelerate_file import ACCELERATE_ALONE
from autotune.engines.deepspeed.sources.consumers import Consumer, is_known_value
from autotune.engines.deepspeed.sources.launch import MEGATRON
from autotune.engines.deepspeed.sources.reading import ReadConfig
from autotune.engines.launches.devices import VisibleDevices, too_few
from autotune.space.rule import Violation

_MEGATRON_FLAGS = (
    (
        "micro_batch_size",
        "train_micro_batch_size_per_gpu",
        "it loads batches of its own size, and DeepSpeed counts with the other",
    ),
    (
        "global_batch_size",
        "train_batch_size",
        "it counts samples and schedules by its own, and DeepSpeed accumulates for the other",
    ),
    (
        "zero_stage",
        "zero_optimization.stage",
        "it builds the model for its own, and DeepSpeed trains with the other",
    ),
)
"""Flag, key, and what happens where they differ: nothing compares them (megatron/training.py:
_create_ds_config_dict, megatron/arguments.py)."""


def refusals(
    section: ReadConfig, consumer: Consumer, reader: str, arguments: Mapping[str, Any]
) -> Iterator[Violation]:
    """What a reader does with a configuration that DeepSpeed does not see.

    Args:
        section: The configuration.
        consumer: Who hands it to DeepSpeed.
        reader: The program that does, where it has a name.
        arguments: Of the launch line.
    """
    is_deepspeeds = consumer is Consumer.DEEPSPEED and not reader
    if section.syntax == "hjson" and not is_deepspeeds:
        yield Violation(
            rule="file.hjson",
            message=f"{section.path} is Hjson (comments, a comma at an end, no quotes): DeepSpeed "
            f"reads it, {reader or consumer} reads JSON alone",
            fix="make it plain JSON",
        )
    if section.syntax == "yaml" and section.is_named and not is_deepspeeds:
        yield Violation(
            rule="file.yaml",
            message=f"{section.path} is YAML: {reader or consumer} reads JSON alone where a file "
            "is named",
            fix="make it plain JSON",
        )
    if consumer is Consumer.TRAINER and not reader:
        yield from _texts(section, arguments)
    if consumer is Consumer.TRAINER:
        yield from _accelerates(section.arguments)
    if reader != MEGATRON:
        return
    for flag, name, then in _MEGATRON_FLAGS:
        value, said = look_up(section.config, name), arguments.get(flag)
        if type(value) is int and type(said) is int and value != said:
            yield Violation(
                rule=f"megatron_deepspeed.{flag}",
                message=f"--{flag.replace('_', '-')} {said} against {name}={value}: {then}",
                fix=f"give both the same value: set {name} to {said}",
                consequence="differs",
            )
    yield from _cpu_optimizer(section.config, arguments)


def _cpu_optimizer(config: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Violation]:
    """The optimizer that Megatron-DeepSpeed makes itself, beside an offload.

    DeepSpeed then uses no section `optimizer` (runtime/engine.py: _configure_optimizer).
    """
    key = "zero_optimization.offload_optimizer"
    is_offloaded = look_up(config, f"{key}.device") in ("cpu", "nvme")
    forces = config.get("zero_force_ds_cpu_optimizer") is not False
    if is_offloaded and forces and "cpu_optimizer" not in arguments:
        yield Violation(
            rule="megatron_deepspeed.cpu_optimizer",
            message=f"{key} without --cpu-optimizer: Megatron-DeepSpeed hands over an optimizer "
            "of its own, whatever the section optimizer says, and DeepSpeed takes none but its "
            "own for the CPU",
            fix="add --cpu-optimizer to the line, or set zero_force_ds_cpu_optimizer to false",
            at=(key,),
        )


def _accelerates(arguments: Mapping[str, Any]) -> Iterator[Violation]:
    """Fields of accelerate's YAML that stand among the arguments of Trainer."""
    for name in ACCELERATE_ALONE:
        if name in arguments:
            yield Violation(
                rule="huggingface.accelerates_field",
                message=f"{name} beside deepspeed is a field of accelerate's file, and no "
                "argument of Trainer's: the ds_config decides, or the script refuses it",
                fix=f"remove {name}, and say it in the ds_config",
                consequence="ignored",
                at=(name,),
            )


def _texts(section: ReadConfig, arguments: Mapping[str, Any]) -> Iterator[Violation]:
    """Numbers that stand as text in a file that HfArgumentParser reads."""
    for name, text in section.texts.items():
        number = arguments[name]
        meant = int(number) if type(number) is float and number.is_integer() else number
        if not (is_known_value(name, number) or is_known_value(name, meant)):
            continue
        has_exponent = "e" in text.lower()
        why = " (YAML reads an exponent in a number with a point and a sign alone)"
        yield Violation(
            rule="huggingface.number_as_text",
            message=f"{name} is the text {text!r}{why if has_exponent else ''}: Trainer computes "
            "with it as it is, and raises",
            fix=f"write {name}: {_as_number(meant, has_exponent)}",
            at=(name,),
        )


def _as_number(number: float, has_exponent: bool) -> str:
    """A number as YAML 1.1 knows it."""
    if type(number) is int or not has_exponent:
        return repr(number)
    mantissa, _, exponent = f"{number:e}".partition("e")
    return f"{float(mantissa)!r}e{exponent}"


_FILTERS = ("include", "exclude")
_COUNTS = ("num_gpus", "num_nodes")
"""Flags of DeepSpeed's launcher that name devices, and that count them."""


def device_violations(
    kind: str, flags: Sequence[str], visible: VisibleDevices | None, per_node: int | None
) -> Iterator[Violation]:
    """What a launcher does with devices that are named and counted in two places.

    Args:
        kind: The launcher.
        flags: Names of its flags.
        visible: What variables or accelerate leave visible.
        per_node: Ranks of a node.
    """
    if kind != "deepspeed":
        if (found := too_few(visible, per_node)) is not None:
            message, fix = found
            yield Violation(rule="file.visible_devices", message=message, fix=fix)
        return
    # launcher/runner.py, main: it takes the variable away before it starts ranks.
    filters, counts = ([name for name in names if name in flags] for names in (_FILTERS, _COUNTS))
    if filters and counts:
        yield Violation(
            rule="file.visible_devices",
            message=f"--{filters[0]} names devices and --{counts[0]} counts them: DeepSpeed's "
            "launcher refuses the two together",
            fix=f"leave --{counts[0]} out",
        )
    elif visible is not None and (filters or "num_gpus" in flags):
        flag = (filters or counts)[0]
        yield Violation(
            rule="file.visible_devices",
            message=f"{visible.source}={visible.names} beside --{flag}: DeepSpeed's launcher "
            "ignores the variable, and takes the devices from the first on",
            fix=f"leave --{flag} out, or name the devices with --include "
            f"localhost:{visible.names} alone",
            consequence="ignored",
        )
