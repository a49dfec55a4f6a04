"""Every rule of `check` by its name: of DeepSpeed, of the file itself, of other consumers."""

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.base.errors import JobError
from autotune.base.names import did_you_mean
from autotune.engines.deepspeed.rules import ALL_RULES, COMMUNICATION_RULES
from autotune.space.rule import Level


@dataclass(frozen=True, kw_only=True)
class FileRule:
    """Description of a rule that is not about what DeepSpeed reads."""

    says: str
    level: Level
    source: str
    """Source of the rule in the consumer's code."""


_ACCELERATE = "accelerate/utils/dataclasses.py"
_TRAINER = "transformers/integrations/deepspeed.py"
_MEGATRON = "Megatron-DeepSpeed: megatron/arguments.py, megatron/training.py"

FILE_RULES: Mapping[str, FileRule] = {
    "file.byte_order_mark": FileRule(
        says="The file begins with a byte order mark. DeepSpeed reads past it; Trainer and "
        "accelerate refuse the file.",
        level="error",
        source="deepspeed/runtime/config.py, accelerate/utils/deepspeed.py",
    ),
    "file.hjson": FileRule(
        says="The file is Hjson: it has comments, a comma at an end or text without quotes. "
        "DeepSpeed reads that; Trainer, accelerate and others read JSON alone.",
        level="error",
        source="deepspeed/runtime/config.py, accelerate/utils/deepspeed.py",
    ),
    "file.documents": FileRule(
        says="A YAML holds several documents. Accelerate, Trainer, Lightning, GPT-NeoX and others "
        "read files of one document, and refuse it.",
        level="error",
        source="PyYAML: get_single_node",
    ),
    "file.template": FileRule(
        says="Placeholders such as `${LR}`, `{{ lr }}` or `<LR>` stand where numbers or switches "
        "belong: whatever fills in the template has not done so. All else is checked.",
        level="error",
        source="deepspeed/runtime/config.py",
    ),
    "file.key_twice": FileRule(
        says="A section holds a key twice. DeepSpeed refuses such a file; for Trainer and "
        "accelerate, accelerate reads it, and the last one counts. In YAML the last one counts to "
        "PyYAML; OmegaConf (LLaMA-Factory, Hydra) refuses the file.",
        level="error",
        source="deepspeed/runtime/config_utils.py",
    ),
    "file.yaml": FileRule(
        says="Another file names this one as its ds_config, and it is YAML. Whoever reads a "
        "ds_config by its name reads JSON, whatever the name ends with.",
        level="error",
        source="accelerate/utils/deepspeed.py: HfDeepSpeedConfig",
    ),
    "file.not_launched": FileRule(
        says="The launch line names another configuration: its program does not read this one.",
        level="warning",
        source="the launch line",
    ),
    "file.lost_line": FileRule(
        says="A line of a shell file begins with a flag: the launch above it has lost the "
        "backslash at its end. The shell looks for a command of that name, and the training "
        "starts without the flags.",
        level="warning",
        source="the launch line",
    ),
    "file.visible_devices": FileRule(
        says="A launch starts more ranks on a node than CUDA_VISIBLE_DEVICES, or gpu_ids of "
        "accelerate, leaves devices visible; or DeepSpeed's launcher is told devices twice.",
        level="error",
        source="torch.cuda.set_device, deepspeed/launcher/runner.py: main",
    ),
    "huggingface.auto_not_filled": FileRule(
        says='"auto" stands at a key that the consumer does not fill in. It refuses the word.',
        level="error",
        source=f"{_ACCELERATE}: deepspeed_config_process",
    ),
    "huggingface.accelerates_field": FileRule(
        says="A field of accelerate's file, such as zero_stage, stands beside `deepspeed` among "
        "the arguments of Trainer, which has none of that name. The ds_config decides.",
        level="warning",
        source="transformers/hf_argparser.py: HfArgumentParser",
    ),
    "huggingface.no_zero_section": FileRule(
        says="The file has no zero_optimization section. Accelerate refuses it.",
        level="error",
        source=f"{_ACCELERATE}: DeepSpeedPlugin",
    ),
    "huggingface.zero_switch": FileRule(
        says="zero_optimization is true or false. DeepSpeed takes that for stage 1 or 0; "
        "accelerate asks it for a stage and raises.",
        level="error",
        source="accelerate/utils/deepspeed.py: HfDeepSpeedConfig",
    ),
    "huggingface.stage_as_text": FileRule(
        says='zero_optimization.stage is "3", as text. DeepSpeed takes it for 3; accelerate and '
        "transformers do not see stage 3 and gather no parameters where they save.",
        level="warning",
        source="accelerate/utils/deepspeed.py: HfDeepSpeedConfig",
    ),
    "huggingface.overwritten": FileRule(
        says="Accelerate overwrites steps_per_print with infinity.",
        level="note",
        source=f"{_ACCELERATE}: DeepSpeedPlugin",
    ),
    "huggingface.accumulation_lost": FileRule(
        says="Accumulation is asked for by a flag or an argument, and the file has no such key. "
        "Accelerate writes 1 there.",
        level="warning",
        source=f"{_ACCELERATE}: DeepSpeedPlugin",
    ),
    "huggingface.flag_ignored": FileRule(
        says="A flag of accelerate launch differs from the value in the file, which counts.",
        level="warning",
        source=f"{_ACCELERATE}: fill_match",
    ),
    "huggingface.argument_ignored": FileRule(
        says="An argument of Trainer stands beside a section of the file for the same thing, "
        "which counts.",
        level="note",
        source=f"{_TRAINER}: deepspeed_optim_sched",
    ),
    "huggingface.optimizer_replaced": FileRule(
        says="optim names another optimizer than AdamW beside an offload, and the file has no "
        "section optimizer. accelerate trains with DeepSpeedCPUAdam in its place; Adafactor's "
        "settings end that with an exception.",
        level="warning",
        source="accelerate/utils/deepspeed.py: map_pytorch_optim_to_deepspeed",
    ),
    "huggingface.section_without_type": FileRule(
        says="The section of the optimizer or scheduler has no type. Trainer leaves its own out "
        "for the section, accelerate refuses the optimizer of a script beside it, and DeepSpeed "
        "builds none.",
        level="error",
        source=f"{_TRAINER}: deepspeed_optim_sched",
    ),
    "huggingface.default_mismatch": FileRule(
        says="A value differs from the default of Trainer's argument, which is not given. Trainer "
        "refuses that, unless the script has another default. It is an error where the launch "
        "line names a script that is there and takes Trainer's arguments.",
        level="note",
        source=f"{_TRAINER}: trainer_config_finalize",
    ),
    "huggingface.arg_mappings": FileRule(
        says="DeepSpeed's autotuner starts a script of Trainer's, and autotuning.arg_mappings "
        "lacks the micro-batch. The tuner changes the file of each trial alone, and Trainer "
        "refuses values that differ from its arguments.",
        level="error",
        source="deepspeed/autotuning/scheduler.py: run_job",
    ),
    "huggingface.null_accumulation": FileRule(
        says="gradient_accumulation_steps is null beside a micro-batch. DeepSpeed would compute "
        "it; accelerate, and Trainer through it, multiplies with it before.",
        level="error",
        source="accelerate/accelerator.py: _prepare_deepspeed",
    ),
    "huggingface.old_bf16": FileRule(
        says="The file has the old section bfloat16. Accelerate adds a bf16, switched off unless "
        "bf16 is asked for, and DeepSpeed reads that one alone.",
        level="warning",
        source=f"{_ACCELERATE}: set_mixed_precision",
    ),
    "huggingface.number_as_text": FileRule(
        says="An argument of Trainer is a text where it wants a number: YAML reads 3e-4 as text, "
        "and 3.0e-4 as a number. HfArgumentParser hands the text on.",
        level="error",
        source="transformers/hf_argparser.py: parse_dict",
    ),
    "huggingface.precision_added": FileRule(
        says="A precision is asked for that the file has no section for. accelerate adds one.",
        level="note",
        source=f"{_ACCELERATE}: set_mixed_precision",
    ),
    "huggingface.mixed_precision_lost": FileRule(
        says="accelerate's mixed_precision asks for a precision that the file switches off. The "
        "file counts.",
        level="warning",
        source=f"{_ACCELERATE}: set_mixed_precision",
    ),
    "accelerate.refused": FileRule(
        says="accelerate refuses a field of its YAML, or the value of one.",
        level="error",
        source="accelerate/commands/config/config_args.py, utils/launch.py",
    ),
    "accelerate.machines": FileRule(
        says="num_machines is less than 1, which accelerate takes for 1.",
        level="note",
        source="accelerate/utils/launch.py: prepare_deepspeed_cmd_env",
    ),
    "accelerate.unknown_field": FileRule(
        says="accelerate does not know a field of deepspeed_config, and ignores it.",
        level="warning",
        source="accelerate/commands/launch.py",
    ),
    "accelerate.nvme_path_lost": FileRule(
        says="The YAML names a folder to swap to. accelerate's launcher does not hand it on.",
        level="warning",
        source="accelerate/utils/launch.py: prepare_deepspeed_cmd_env",
    ),
    "accelerate.clipping_lost": FileRule(
        says="The YAML switches clipping off. accelerate leaves out a zero, and DeepSpeed clips "
        "by its default.",
        level="warning",
        source=f"{_ACCELERATE}: DeepSpeedPlugin",
    ),
    "accelerate.compile_lost": FileRule(
        says="The YAML asks for compilation. accelerate's launcher does not hand that on to "
        "DeepSpeed's ranks.",
        level="warning",
        source="accelerate/utils/launch.py: prepare_deepspeed_cmd_env",
    ),
    "huggingface.mismatch": FileRule(
        says="A value differs from Trainer's argument for the same thing. Trainer refuses that.",
        level="error",
        source=f"{_TRAINER}: trainer_config_finalize",
    ),
    "huggingface.mixed_precision": FileRule(
        says="The precision of accelerate and that of the file differ. Accelerate refuses that.",
        level="error",
        source=f"{_ACCELERATE}: set_mixed_precision",
    ),
    "huggingface.accelerate_duplicate": FileRule(
        says="The accelerate YAML names a deepspeed_config_file and sets fields that belong into "
        "that file. Accelerate refuses these beside a file.",
        level="error",
        source=f"{_ACCELERATE}: _deepspeed_config_checks",
    ),
    "huggingface.not_deepspeed": FileRule(
        says="distributed_type of the accelerate YAML is not DEEPSPEED: accelerate starts "
        "something else and reads nothing of the section.",
        level="warning",
        source="accelerate/commands/launch.py",
    ),
    "lightning.accumulation": FileRule(
        says="The configuration of a DeepSpeedStrategy has gradient_accumulation_steps. Lightning "
        "refuses it: it hands over its Trainer's accumulate_grad_batches.",
        level="error",
        source="lightning/pytorch/strategies/deepspeed.py: DeepSpeedStrategy",
    ),
    "megatron_deepspeed.micro_batch_size": FileRule(
        says="--micro-batch-size differs from train_micro_batch_size_per_gpu: Megatron-DeepSpeed "
        "loads batches of its own size, and DeepSpeed counts with the other.",
        level="warning",
        source=_MEGATRON,
    ),
    "megatron_deepspeed.global_batch_size": FileRule(
        says="--global-batch-size differs from train_batch_size: Megatron-DeepSpeed counts "
        "samples by its own, and DeepSpeed accumulates for the other.",
        level="warning",
        source=_MEGATRON,
    ),
    "megatron_deepspeed.zero_stage": FileRule(
        says="--zero-stage differs from zero_optimization.stage: Megatron-DeepSpeed builds the "
        "model for its own, and DeepSpeed trains with the other.",
        level="warning",
        source=_MEGATRON,
    ),
    "megatron_deepspeed.cpu_optimizer": FileRule(
        says="The optimizer is offloaded, and the line has no --cpu-optimizer. Megatron-DeepSpeed "
        "hands over an optimizer of its own, which DeepSpeed refuses beside an offload.",
        level="error",
        source="runtime/engine.py: _configure_optimizer",
    ),
}


def rule_names() -> list[str]:
    """Every rule that `check` knows, in the order in which they are documented."""
    shared = (rule.name for rule in COMMUNICATION_RULES)
    return [*(rule.name for rule in ALL_RULES), *shared, *FILE_RULES]


def no_such_rule(name: str, *, where: str = "") -> JobError:
    """The error for a name, or a pattern, that fits no rule."""
    hint = did_you_mean(name, rule_names())
    return JobError(
        f"{where}{': ' if where else ''}{name} is no rule",
        f"{hint}`autotune rule` lists them all",
    )
