"""The dialects of Hugging Face's family: what each consumer reads, and a ds_config beside it.

A consumer is a class of a few fields, and a folder of templates that says its fields
(`fields.yaml.j2`: what the configuration decides, and what a run of the export has besides), its
training script and its README. Sources: hiyouga/LLaMA-Factory, src/llamafactory/hparams (0.9.5);
axolotl-ai-cloud/axolotl, src/axolotl/utils/schemas (0.19); Lightning-AI/pytorch-lightning,
lightning/pytorch/strategies/deepspeed.py (_format_batch_size_and_grad_accum_config).
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from autotune.base.nested import look_up
from autotune.base.templates import Templates, canonical_json
from autotune.base.yaml_file import dump_yaml, parse_yaml
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.dialects.settings import settings_files
from autotune.export.material import SCRIPT, material, readme
from autotune.export.trainer import (
    config_in_numbers,
    is_open,
    refuse_unsaid,
    trained,
    trainer_values,
    untuned,
    with_autos,
)
from autotune.job.adapters import ALL_LINEAR
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.guest.frameworks import AXOLOTL_NAMES, FACTORY_ATTENTION

ARGUMENTS_FILE = "train.args"
"""HfArgumentParser reads a file of this name beside `train.py` by itself."""
RUN_FILE = "run.args"
"""Arguments of the run that an export carries, as its `train.py` reads them."""
BY_FIELDS = frozenset({"attention", "compile", "adapters"})
"""What the files of consumers with loops of their own say."""
BY_SCRIPT = BY_FIELDS.union(
    ("recompute", "loss_chunk_tokens", "mlp_chunk_tokens", "model", "core_binding")
)
"""What arguments cannot say, and the script beside them does."""


class FamilyDialect(Dialect):
    """A configuration in the files of one consumer, a script that trains by it, and a README."""

    engines: ClassVar[tuple[str, ...]] = ("deepspeed",)
    script = SCRIPT
    consumer: ClassVar[str]
    """Its name for people."""
    folder: ClassVar[str]
    """Its folder of templates."""
    file: ClassVar[str] = ""
    """The file of its fields; one of `.args` holds arguments, a line each. Empty: it has none."""
    takes_numbers: ClassVar[bool] = False
    """True if it owns no key of DeepSpeed's configuration, as Trainer does."""
    section: ClassVar[str] = ""
    """Section of the file that the fields stand in; empty: they stand alone."""
    heads: ClassVar[tuple[str, str]] = ("", "")
    """Above what the configuration decides, and above what a user keeps of their own."""
    says: ClassVar[Collection[str]] = BY_SCRIPT
    """What its files, or the script beside them, say besides the keys of DeepSpeed's file."""
    brings_loop: ClassVar[bool] = False
    """True if it builds model and data itself, by what the script writes first."""
    on_cpu: ClassVar[tuple[str, ...]] = ()
    """Files of its folder that an export for CPU ranks carries."""

    def configured(self, handout: Handout) -> tuple[dict[str, Any], dict[str, Any]]:
        """DeepSpeed's configuration, and what the script reads besides a trial's settings."""
        return trained(handout).config, {}

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        refuse_unsaid(handout, self.consumer, says=self.says)
        config, variables = self.configured(handout)
        known = _values(handout)
        decided, run = self._fields(handout, known, templates)
        text = dump_yaml({self.section: decided} if self.section else decided)
        more = {
            "consumer": self.consumer,
            "arguments": spelled(decided),
            "fields": text.splitlines(),
            "is_on_cpu": known["is_on_cpu"],
            "recompute": known["recompute"],
            "untuned": untuned(config),
            "is_sharded": look_up(config, "zero_optimization.stage") == 3,
            "clips": variables.get("gradient_clip_val") is not None,
        }
        script, page = f"{self.folder}/train.py", f"{self.folder}/README.md.j2"
        extras = self.on_cpu if known["is_on_cpu"] else ()
        given: dict[str, Any] = {"more": variables, "brings_loop": self.brings_loop}
        run_of_ours = material(handout, script, templates, **given) if self.launcher else {}
        return {
            CONFIG_FILE: canonical_json(config),
            **self._own_files(text, decided, run, is_of_user=bool(handout.workload.script)),
            **{extra: templates.text(f"{self.folder}/{extra}", {}) for extra in extras},
            **run_of_ours,
            **readme(handout, launch, templates, page, more, config=config),
        }

    def _fields(
        self, handout: Handout, known: Mapping[str, Any], templates: Templates
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields that the configuration decides, and those of a run of the export."""
        if not self.file:
            return {}, {}
        more = {} if self.takes_numbers else trainer_values(handout, self.consumer)
        name = f"{self.folder}/fields.yaml.j2"
        text = templates.text(name, {**known, **more})
        fields = parse_yaml(text, Path(name), reads_exponents=True)
        return fields["decided"], fields.get("run") or {}

    def _own_files(
        self, text: str, decided: Mapping[str, Any], run: Mapping[str, Any], *, is_of_user: bool
    ) -> dict[str, str]:
        """The file of the fields; what a run of ours has besides is in it, or in one beside it."""
        if not self.file:
            return {}
        if self.brings_loop:
            text = "{0}\n{2}\n{1}\n{3}".format(*self.heads, text, dump_yaml(run))
            return {self.file: text}
        beside = {} if is_of_user or not run else {RUN_FILE: lines_of(run)}
        return {self.file: lines_of(decided) if self.file.endswith(".args") else text, **beside}


class HuggingFaceTrainer(FamilyDialect):
    """For `Trainer`: each value that Trainer owns is an argument, and "auto" in the file."""

    consumer = "Hugging Face Trainer"
    folder = "hf"
    file = ARGUMENTS_FILE


class SupervisedTrainer(FamilyDialect):
    """For TRL's `SFTTrainer`: an SFTConfig, which TrlParser reads with `--config`."""

    consumer = "TRL"
    folder = "trl"
    file = "sft.yaml"
    says = BY_SCRIPT - {"loss_chunk_tokens"}  # it computes its loss over chunks of its own


class LlamaFactory(FamilyDialect):
    """For `llamafactory-cli train`: a pre-training on text that `start.py` writes."""

    consumer = "LLaMA-Factory"
    folder = "llama_factory"
    file = "llamafactory.yaml"
    heads = ("### what the configuration decides", "### what is trained, and how: keep your own")
    says = BY_FIELDS
    brings_loop = True


class Axolotl(FamilyDialect):
    """For `axolotl train`: a training from random weights, on text that `start.py` writes."""

    consumer = "axolotl"
    folder = "axolotl"
    file = "axolotl.yaml"
    heads = ("# What the configuration decides.", "# What is trained, and how: keep your own.")
    says = BY_FIELDS
    brings_loop = True
    on_cpu = ("cpu.py",)


class MsSwift(FamilyDialect):
    """For ms-swift: `swift sft` with a ds_config, and `megatron sft` of a layout."""

    engines = ("deepspeed", "megatron")
    script = "ms_swift.yaml"
    launcher = ""
    only_launcher = "ms-swift starts its ranks by itself"
    consumer = "ms-swift"
    folder = "ms_swift"
    file = script
    says = BY_FIELDS

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        if handout.engine == "megatron":
            return settings_files("ms-swift", handout, launch, templates)
        return super().files(handout, launch, templates)


class AccelerateFiles(FamilyDialect):
    """For `Accelerator.prepare`: concrete numbers, since a script's own loader is not asked.

    The YAML is written by the launcher of the same name, which alone reads it.
    """

    launcher = "accelerate"
    only_launcher = "accelerate.yaml is read by `accelerate launch` alone"
    consumer = "accelerate"
    folder = "accelerate"
    takes_numbers = True

    def configured(self, handout: Handout) -> tuple[dict[str, Any], dict[str, Any]]:
        """The configuration with "auto" for what `DummyOptim` brings, and what the run's has."""
        config = config_in_numbers(handout)
        keys = {name: f"optimizer.params.{name}" for name in ("lr", "weight_decay")}
        keys = {name: key for name, key in keys.items() if is_open(handout, key)}
        has = {name: look_up(config, key) for name, key in keys.items()}
        found = {name: value for name, value in has.items() if value is not None}
        return with_autos(config, keys.values()), {"dummy_optimizer": found}


class Lightning(FamilyDialect):
    """For `DeepSpeedStrategy(config=...)`: Lightning owns the accumulation."""

    consumer = "Lightning"
    folder = "lightning"
    takes_numbers = True
    file = "trainer.yaml"
    section = "trainer"

    def configured(self, handout: Handout) -> tuple[dict[str, Any], dict[str, Any]]:
        config = config_in_numbers(handout)
        config.pop("gradient_accumulation_steps", None)  # Lightning raises on it
        name = "gradient_clipping"
        clipping = config.pop(name, None) if is_open(handout, name) else None
        return config, {"gradient_clip_val": clipping}


def _values(handout: Handout) -> dict[str, Any]:
    settings, source = handout.workload.settings, handout.job.model.source
    lora = source.get("lora")
    return {
        "config_file": CONFIG_FILE,
        "is_on_cpu": handout.environment.accelerator == "cpu",
        "per_node": handout.per_node,
        "n_nodes": handout.n_nodes,
        "grad_accum": handout.candidate.grad_accum,
        "precision": handout.workload.precision,
        "seq_len": handout.workload.seq_len,
        "recompute": str(settings.get("recompute", "none")),
        "compile": settings.get("compile", "none"),
        "attention": str(settings.get("attention", "default")),
        "factory_attention": FACTORY_ATTENTION,
        "axolotl_names": AXOLOTL_NAMES,
        "lora": lora,
        "adapts_all": lora is not None and lora["target_modules"] == ALL_LINEAR,
        "is_packed": handout.workload.lengths.get("kind") == "packed",
        "pad_to_multiple": handout.workload.lengths.get("pad_to_multiple", 1),
    }


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
