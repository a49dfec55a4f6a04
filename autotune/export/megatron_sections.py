"""What Megatron-Bridge and NeMo share: fields of their classes by section, and a script.

Megatron-LM's arguments are said to the classes behind them, of Megatron Core or around it.
"""

import json
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import yaml

from autotune.base.errors import RenderError
from autotune.base.templates import Templates
from autotune.engines.megatron.arguments import KNOBS_OF
from autotune.engines.megatron.model_arguments import pattern_of
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.megatron import MegatronRun, megatron_readme, run_of

Sections = dict[str, dict[str, Any]]
"""Section -> its fields."""
_RENAMED = {
    "num_experts": "num_moe_experts",
    "norm_epsilon": "layernorm_epsilon",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "rotary_seq_len_interpolation_factor": "seq_len_interpolation_factor",
    "use_rope_scaling": "rope_scaling",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
}
"""Argument of Megatron-LM -> the field of the model in Megatron-Bridge and NeMo, if it differs."""
_WRITTEN_OTHERWISE: dict[str, dict[str, Any]] = {
    "disable_bias_linear": {"add_bias_linear": False},
    "untie_embeddings_and_output_weights": {"share_embeddings_and_output_weights": False},
    "swiglu": {"gated_linear_unit": True, "activation_func": "silu"},
    # What follows from the number of groups, from the sequence, and from mixed_precision.
    "group_query_attention": {},
    "max_position_embeddings": {},
    **{name: {} for name in ("bf16", "fp16", "fp8_format", "fp8_recipe")},
    "no_overlap_p2p_communication": {"overlap_p2p_comm": False},
    "quick_geglu": {"gated_linear_unit": True, "activation_func": "quick_gelu"},
    "no_rope_fusion": {"apply_rope_fusion": False},
}
"""Argument -> what says the same there."""


MOMENT_DTYPES = ("exp_avg_dtype", "exp_avg_sq_dtype")
"""Arguments that are types of torch there: the scripts look them up by their names."""
_TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_LISTS: dict[str, Callable[[str], list[int]]] = {
    **dict.fromkeys(("moe_layer_freq", "window_attn_skip_freq"), pattern_of),
    "window_size": lambda text: [int(part) for part in text.split(",")],
}
"""Argument whose text stands for a list there -> what reads it."""


class SectionedDialect(Dialect):
    """A run of a GPT model from random weights: sections as YAML, and the script that reads it."""

    engines = ("megatron",)
    script = "train.py"
    only_launcher = "it starts scripts with a configuration of DeepSpeed"
    name: ClassVar[str]
    config_file: ClassVar[str]
    """File of the sections."""
    fields_file: ClassVar[Path]
    """Section -> the names of its fields."""
    templates: ClassVar[str]

    @abstractmethod
    def sections(self, run: MegatronRun, handout: Handout) -> Sections:
        """The configuration by its sections."""

    @abstractmethod
    def say(self, sections: Sections, name: str, value: Any) -> None:
        """Put an argument of model or layout where the consumer reads it."""

    def fields_section(self, section: str, fields: Mapping[str, Any]) -> str:
        """The name under which the file of fields has those of a section."""
        return section

    def beside(self, run: MegatronRun, handout: Handout) -> dict[str, Any]:
        """What its file says beside the sections.

        Raises:
            RenderError: It cannot say what the job asks for.
        """
        return {}

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        if handout.environment.accelerator == "cpu":
            raise RenderError(
                f"--to {self.name}: it trains on CUDA devices alone, and this is a configuration "
                "of CPU ranks",
                "--to megatron-core writes the run of the trials",
            )
        run = run_of(handout)
        sections = self.sections(run, handout)
        tuned = self._tuned(run, handout, sections)
        self._check(sections)
        text = yaml.safe_dump({**sections, **self.beside(run, handout)}, sort_keys=False)
        return {
            **handout.exported,
            self.config_file: templates.text(f"{self.templates}.yaml.j2", {"sections": text}),
            self.script: templates.text(f"{self.templates}_train.py", {}),
            "README.md": megatron_readme(
                handout, run, launch, templates, f"{self.templates}.md.j2", {"tuned": tuned}
            ),
        }

    def _tuned(self, run: MegatronRun, handout: Handout, whole: Sections) -> list[str]:
        """What of the configuration the layout decides, as `section.field=value`."""
        sections: Sections = defaultdict(dict)
        for name, value in run.layout.items():
            self.say(sections, name, value)
        for name in ("data", "dataset"):  # its samples are as long as the model's
            if "seq_length" in whole.get(name, {}):
                sections[name]["seq_length"] = handout.job.seq_len
        found = {
            f"{s}.{n}": value for s, fields in sections.items() for n, value in fields.items()
        }
        found |= self.beside(run, handout)
        return [f"{name}={json.dumps(value)}" for name, value in found.items()]

    def _check(self, sections: Sections) -> None:
        for section, fields in sections.items():
            known = fields_of(self.fields_file, self.fields_section(section, fields))
            for field in fields:
                if field not in known:
                    knob = KNOBS_OF.get(field)
                    raise RenderError(
                        f"--to {self.name}: its section {section} has no field {field}"
                        + (f", which {knob} needs" if knob else ""),
                        "--to megatron writes the same run for Megatron-LM"
                        + (f"; or choose a candidate without {knob}" if knob else ""),
                    )


def say(sections: Sections, name: str, value: Any, *, elsewhere: Mapping[str, str]) -> None:
    """Put an argument of model or layout where it is read."""
    if name in _WRITTEN_OTHERWISE:
        sections["model"] |= _WRITTEN_OTHERWISE[name]
    elif name == "use_distributed_optimizer":
        sections["ddp"][name] = sections["optimizer"][name] = value
    elif name == "cpu_offloading_num_layers":
        sections["model"] |= {"cpu_offloading": True, name: value}
    else:
        if name in _LISTS and isinstance(value, str):
            value = _LISTS[name](value)
        if name in MOMENT_DTYPES:
            value = _TORCH_NAMES[value]
        sections[elsewhere.get(name, "model")][_RENAMED.get(name, name)] = value


@cache
def fields_of(file: Path, section: str) -> frozenset[str]:
    """Fields of a section, by a file of all fields."""
    fields: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))
    return frozenset(fields[section])
