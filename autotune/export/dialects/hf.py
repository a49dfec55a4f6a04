"""The dialects of Hugging Face's family: what each consumer reads, and a ds_config beside it.

Sources: hiyouga/LLaMA-Factory, src/llamafactory/hparams (0.9.5); axolotl-ai-cloud/axolotl,
src/axolotl/utils/schemas (0.19).
"""

import json
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from autotune.base.templates import Templates, canonical_json
from autotune.base.yaml_file import dump_yaml
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.material import SCRIPT, from_config, material, readme
from autotune.export.trainer import (
    SHORT_RUN,
    Setting,
    refuse_unsaid,
    trained,
    trainer_arguments,
)
from autotune.job.adapters import ALL_LINEAR
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.guest.frameworks import FACTORY_ATTENTION

ARGUMENTS_FILE = "train.args"
"""HfArgumentParser reads a file of this name beside `train.py` by itself."""
RUN_FILE = "run.args"
"""Arguments of the run that an export carries, as its `train.py` reads them."""
BY_SCRIPT = frozenset(
    {
        *(Setting.SOME_LAYERS, Setting.ATTENTION, Setting.LOSS_CHUNKS, Setting.COMPILE),
        *(Setting.ADAPTERS, Setting.FACTORY, Setting.CORES, Setting.MLP_CHUNKS),
    }
)
"""What arguments cannot say, and the script beside them does."""
_BY_FIELDS = frozenset({Setting.ATTENTION, Setting.COMPILE, Setting.ADAPTERS})
"""What the files of consumers with loops of their own say."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What one consumer is written."""

    config: Mapping[str, Any]
    """DeepSpeed's configuration."""
    files: Mapping[str, str]
    more: Mapping[str, Any]
    """What its README needs besides."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """What its training script reads besides the settings of a trial."""


class FamilyDialect(Dialect):
    """A configuration in the files of one consumer, a script that trains by it, and a README."""

    engines = ("deepspeed",)
    script = SCRIPT
    consumer: ClassVar[str]
    """Its name for people."""
    says: ClassVar[Collection[Setting]] = BY_SCRIPT
    """What its files, or the script beside them, say besides the keys of DeepSpeed's file."""
    templates: ClassVar[str]
    """Folder of its script and README."""
    brings_loop: ClassVar[bool] = False
    """True if it builds model and data itself, by what the script writes first."""

    @abstractmethod
    def written(self, handout: Handout, templates: Templates) -> Written:
        """The consumer's own files."""

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        refuse_unsaid(handout, self.consumer, says=self.says)
        made, script = self.written(handout, templates), f"{self.templates}/train.py"
        page = f"{self.templates}/README.md.j2"
        return {
            CONFIG_FILE: canonical_json(made.config),
            **made.files,
            **(
                from_config(handout, script, templates)
                if self.brings_loop
                else material(handout, script, templates, more=made.variables)
            ),
            **readme(handout, launch, templates, page, made.more, config=made.config),
        }


class HuggingFaceTrainer(FamilyDialect):
    """For `Trainer`: each value that Trainer owns is an argument, and "auto" in the file."""

    consumer = "Hugging Face Trainer"
    templates = "hf"

    def written(self, handout: Handout, templates: Templates) -> Written:
        arguments = trainer_arguments(handout, self.consumer)
        return Written(
            config=trained(handout).config,
            files={ARGUMENTS_FILE: lines_of(arguments), **run_file(handout)},
            more={"consumer": self.consumer, "arguments": spelled(arguments)},
        )


class YamlDialect(FamilyDialect):
    """A consumer that trains by one YAML, whose ds_config this fills in."""

    file: ClassVar[str]
    heads: ClassVar[tuple[str, str]] = ("", "")
    """Above what the configuration decides, and above what a user keeps of their own."""

    @abstractmethod
    def decided(self, handout: Handout) -> dict[str, Any]:
        """The fields that the configuration decides."""

    def of_the_run(self, handout: Handout) -> dict[str, Any]:
        """The fields of a training that an export carries; empty: they stand elsewhere."""
        return {}

    def written(self, handout: Handout, templates: Templates) -> Written:
        decided, run = dump_yaml(self.decided(handout)), self.of_the_run(handout)
        whole = "{0}\n{2}\n{1}\n{3}".format(*self.heads, decided, dump_yaml(run) if run else "")
        return Written(
            config=trained(handout).config,
            files={self.file: whole if run else decided},
            more={"fields": decided.splitlines()},
        )


class SupervisedTrainer(YamlDialect):
    """For TRL's `SFTTrainer`: an SFTConfig, which TrlParser reads with `--config`."""

    consumer = "TRL"
    says = BY_SCRIPT - {Setting.LOSS_CHUNKS}  # it computes its loss over chunks of its own
    templates = "trl"
    file = "sft.yaml"

    def decided(self, handout: Handout) -> dict[str, Any]:
        """Those whose defaults differ from Trainer's are always there."""
        arguments = trainer_arguments(handout, self.consumer)
        return {**arguments, "max_length": handout.workload.seq_len}

    def written(self, handout: Handout, templates: Templates) -> Written:
        lengths, made = handout.workload.lengths, super().written(handout, templates)
        fields: dict[str, Any] = {"packing": lengths.get("kind") == "packed"}
        if lengths.get("pad_to_multiple", 1) > 1:
            fields["pad_to_multiple_of"] = lengths["pad_to_multiple"]
        files = {**made.files, **run_file(handout, **fields)}
        return Written(config=made.config, files=files, more=made.more)


class LlamaFactory(YamlDialect):
    """For `llamafactory-cli train`: its names for what Trainer has none for."""

    consumer = "LLaMA-Factory"
    says = _BY_FIELDS
    templates = "llama_factory"
    brings_loop = True
    file = "llamafactory.yaml"
    heads = ("### what the configuration decides", "### what is trained, and how: keep your own")

    def decided(self, handout: Handout) -> dict[str, Any]:
        settings = handout.workload.settings
        is_recomputed = settings.get("recompute", "none") != "none"
        fields = {
            **trainer_arguments(handout, self.consumer, recompute=False),
            "disable_gradient_checkpointing": not is_recomputed,
            "cutoff_len": handout.workload.seq_len,
        }
        if (attention := str(settings.get("attention", "default"))) != "default":
            fields["flash_attn"] = FACTORY_ATTENTION[attention]
        if is_recomputed:
            fields["use_reentrant_gc"] = False
        return fields

    def of_the_run(self, handout: Handout) -> dict[str, Any]:
        """A pre-training from a config, on text that `start.py` writes."""
        lora = handout.job.model.source.get("lora")
        finetuning: dict[str, Any] = {"finetuning_type": "full"}
        if lora is not None:
            targets = lora["target_modules"]
            finetuning = {
                "finetuning_type": "lora",
                "lora_rank": lora["rank"],
                **_adapter(lora),
                "lora_target": "all" if targets == ALL_LINEAR else ",".join(targets),
            }
        return {
            "model_name_or_path": "start",
            "train_from_scratch": True,
            "stage": "pt",
            **finetuning,
            "do_train": True,
            "dataset_dir": "start",
            "dataset": "text",
            "overwrite_cache": True,
            **SHORT_RUN,
            **trained(handout).of_the_run,
        }


class Axolotl(YamlDialect):
    """For `axolotl train`: its names for what Trainer calls otherwise."""

    consumer = "axolotl"
    says = _BY_FIELDS
    templates = "axolotl"
    brings_loop = True
    file = "axolotl.yaml"
    heads = (
        "# What the configuration decides.",
        "# What is trained, and how: keep your own.",
    )

    def written(self, handout: Handout, templates: Templates) -> Written:
        made, is_on_cpu = super().written(handout, templates), _is_on_cpu(handout)
        # A plug-in makes it train on CPU ranks: its own fields cannot say so.
        plugin = {"cpu.py": templates.text("axolotl/cpu.py", {})} if is_on_cpu else {}
        return Written(
            config=made.config,
            files={**made.files, **plugin},
            more={**made.more, "is_on_cpu": is_on_cpu},
        )

    def decided(self, handout: Handout) -> dict[str, Any]:
        settings, precision = handout.workload.settings, handout.workload.precision
        is_recomputed = settings.get("recompute", "none") != "none"
        fields: dict[str, Any] = {
            "deepspeed": CONFIG_FILE,
            **_axolotls(trained(handout).arguments),
            **{name: name == precision for name in ("bf16", "fp16")},
            "sequence_len": handout.workload.seq_len,
            "gradient_checkpointing": is_recomputed,
        }
        if is_recomputed:
            fields["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
        if _is_on_cpu(handout):
            fields["plugins"] = ["cpu.CpuRanks"]
        if settings.get("attention", "default") != "default":
            fields["attn_implementation"] = settings["attention"]
        if settings.get("compile", "none") != "none":
            fields["torch_compile"] = True
        if _is_on_cpu(handout) and "lora" in handout.job.model.source:
            # Switches that are on by default and need a GPU.
            kernels = ("mlp", "qkv", "o", "embedding")
            fields |= {f"lora_{kernel}_kernel": False for kernel in kernels}
        return fields

    def of_the_run(self, handout: Handout) -> dict[str, Any]:
        """A training from random weights, on text that `start.py` writes."""
        lora, adapter = handout.job.model.source.get("lora"), dict[str, Any]()
        if lora is not None:
            targets = lora["target_modules"]
            adapter = {"adapter": "lora", "lora_r": lora["rank"], **_adapter(lora)}
            is_all = targets == ALL_LINEAR
            adapter["lora_target_linear" if is_all else "lora_target_modules"] = is_all or targets
        text = {"path": "start/text.jsonl", "ds_type": "json", "type": "completion"}
        return {
            "base_model": "start",
            "reinit_weights": True,
            **adapter,
            "datasets": [{**text, "field": "text"}],
            "sample_packing": handout.workload.lengths.get("kind") == "packed",
            # What the schema asks for; the optimizer that trains stands in ds_config.json.
            "optimizer": "adamw_torch",
            **_axolotls(trained(handout).of_the_run),
            "lr_scheduler": "constant",
            "tf32": False,
            "output_dir": "output",
            "dataset_prepared_path": "output/prepared",
            "max_steps": 10,
            "logging_steps": 1,
            "save_strategy": "no",
        }


_AXOLOTLS_NAMES: Mapping[str, str] = {
    "per_device_train_batch_size": "micro_batch_size",
    "lr_scheduler_type": "lr_scheduler",
}
"""Trainer's names -> axolotl's; the others are the same."""


def _axolotls(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {_AXOLOTLS_NAMES.get(name, name): value for name, value in arguments.items()}


def _is_on_cpu(handout: Handout) -> bool:
    return handout.environment.accelerator == "cpu"


def _adapter(lora: Mapping[str, Any]) -> dict[str, Any]:
    return {"lora_alpha": int(lora["alpha"]), "lora_dropout": lora["dropout"]}


def run_file(handout: Handout, **more: Any) -> dict[str, str]:
    """The file of what a candidate does not decide; none for a script of the workload's own."""
    if handout.workload.script:
        return {}
    arguments = {"disable_tqdm": True, **trained(handout).of_the_run, **more}
    return {RUN_FILE: lines_of({**SHORT_RUN, **arguments})}


def lines_of(arguments: Mapping[str, Any]) -> str:
    """Arguments as a command line has them, one a line."""
    return "".join(f"--{name} {text}\n" for name, text in spelled(arguments))


def spelled(arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Arguments as a command line spells them, one word each: a file of them has no quotes.

    A list is a word for each item, which ends with the next flag.
    """
    return [(name, _text(value)) for name, value in arguments.items() if value is not None]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
