"""The dialect of raw DeepSpeed: ds_config.json, a launch script, a training script, a README."""

import dataclasses
import json
from importlib import resources
from typing import Any

from autotune.base.templates import Templates, canonical_json
from autotune.base.units import format_bytes, format_seconds
from autotune.contract import DS_CONFIG_FILE, LIST_VARIABLES
from autotune.devices.hardware import Environment
from autotune.export.base import Export, Figures
from autotune.record.soak import SoakResult
from autotune.record.tried import warning
from autotune.space.candidate import format_value
from autotune.space.knobs import choices_of
from autotune.trial.lengths import is_drawn
from autotune.trial.transformer_shape import shape_of

FIGURES_FILE = "figures.json"
SETTINGS_FILE = "settings.json"
TRANSFORMER_FILE = "transformer.py"
"""In an export of a pipeline; the trials' own, which imports nothing of ours."""


class DeepSpeedDialect:
    """For `deepspeed.initialize(config=...)`: concrete numbers only."""

    name = "deepspeed"
    engine = "deepspeed"
    marker = SETTINGS_FILE

    def files(self, export: Export, templates: Templates) -> dict[str, str]:
        """The files of an export.

        Raises:
            RenderError: A template does not render.
        """
        settings = _settings(export)
        values = _values(export)
        files = {
            **export.files,
            SETTINGS_FILE: canonical_json(settings),
            "launch.sh": templates.text("launch/launch.sh.j2", values),
            "train.py": templates.text("launch/train.py.j2", values),
            "README.md": templates.text("launch/README.md.j2", values),
        }
        if export.candidate.pp > 1:
            source = resources.files("autotune.trial") / TRANSFORMER_FILE
            files[TRANSFORMER_FILE] = source.read_text(encoding="utf-8")
        if "config" in export.job.model.source:
            files["model/config.json"] = canonical_json(export.job.model.source["config"])
        if export.figures is not None:
            files[FIGURES_FILE] = canonical_json(
                {
                    "figures": dataclasses.asdict(export.figures),
                    "environment": dataclasses.asdict(export.environment),
                    "soak": None if export.soak is None else dataclasses.asdict(export.soak),
                }
            )
        return files


def _settings(export: Export) -> dict[str, Any]:
    """What DeepSpeed has no key for."""
    job, candidate = export.job, export.candidate
    source = {key: value for key, value in job.model.source.items() if key != "config"}
    if candidate.pp > 1:
        source["transformer"] = shape_of(job.model.source, job.seq_len)
    return {
        **source,
        "model": job.model.name,
        "seq_len": job.seq_len,
        "lengths": job.lengths.as_spec(),
        "global_batch": candidate.global_batch,
        "precision": job.precision,
        "recompute": str(candidate.get("recompute", "none")),
        "attention": str(candidate.get("attention", "default")),
        "loss_chunk_tokens": int(candidate.get("loss_chunk_tokens", 0) or 0),
        "compile": str(candidate.get("compile", "none")),
        "world": candidate.world,
        "dp": candidate.dp,
        "tp": candidate.tp,
        "pp": candidate.pp,
        "sp": candidate.sp,
        "accelerator": export.environment.accelerator,
        "memory_limit_bytes": job.enforced_limit_bytes(export.environment.device_memory_bytes),
        "seed": job.seed,
        "binds_cores": export.ranks.binds_cores or export.environment.accelerator == "cpu",
        "environment_variables": dict(export.ranks.environment),
    }


def _values(export: Export) -> dict[str, Any]:
    """What the launch templates may use."""
    candidate, environment = export.candidate, export.environment
    settings = _settings(export)
    config = json.loads(export.files[DS_CONFIG_FILE.rpartition("/")[2]])
    limit_bytes = settings["memory_limit_bytes"]
    per_node = _ranks_per_node(candidate.world, environment)
    limit = "the device's own" if limit_bytes is None else format_bytes(limit_bytes)
    return {
        **settings,
        "n_nodes": candidate.world // per_node,
        "per_node": per_node,
        "stage": config["zero_optimization"]["stage"],
        "ep": candidate.get("ep", 1),
        "variables": sorted(export.ranks.environment.items()),
        "lists": LIST_VARIABLES,
        "lora": export.job.model.source.get("lora"),
        "is_drawn": is_drawn(export.job.lengths.as_spec()),
        "micro_batch": candidate.micro_batch,
        "grad_accum": candidate.grad_accum,
        "has_config": "config" in export.job.model.source,
        "knobs": [(name, format_value(value)) for name, value in candidate.knobs],
        "figures": [] if export.figures is None else _figure_rows(export.figures),
        "soak": "" if export.soak is None else describe_soak(export.soak),
        "problems": [] if export.soak is None else export.soak.problems,
        "environment": [
            ("device", f"{environment.device_name} ({environment.accelerator})"),
            ("DeepSpeed", environment.deepspeed_version),
            ("torch", environment.torch_version),
            ("memory limit per device", limit),
        ],
        "untried": warning(choices_of(candidate.values, export.context), export.context),
        "overridden": [
            (key, _said(theirs), _said(ours))
            for key, (theirs, ours) in sorted(export.overridden.items())
        ],
    }


def _ranks_per_node(world: int, environment: Environment) -> int:
    """As many as the devices of a node, or the next fewer of which whole nodes make the world."""
    return max(n for n in range(1, environment.n_devices + 1) if world % n == 0)


def _figure_rows(figures: Figures) -> list[tuple[str, str]]:
    """The figures that there are, worded."""
    interval = f"{figures.samples_per_s_low:.4g} to {figures.samples_per_s_high:.4g}"
    rows = [
        ("samples/s", f"{figures.samples_per_s:.4g} (95%: {interval})"),
        ("step time, median", format_seconds(figures.step_time_s)),
        ("peak memory per device", format_bytes(figures.peak_memory_bytes)),
        ("runs behind it", f"{figures.n_runs}, trial {figures.trial:04d}"),
    ]
    if figures.n_disturbed:
        text = f"{figures.n_disturbed}: something else used the machine while it was measured"
        rows.append(("of these disturbed", text))
    if figures.baseline_samples_per_s is not None:
        rows.append(("baseline, samples/s", f"{figures.baseline_samples_per_s:.4g}"))
    if figures.speedup is not None:
        interval = f"{figures.speedup_low:.3f} to {figures.speedup_high:.3f}"
        rows.append(("speedup over the baseline", f"{figures.speedup:.3f}x (95%: {interval})"))
    return rows


def describe_soak(soak: SoakResult) -> str:
    """How long, how far, and how it ended: `passed: 10.0 minutes, 431 steps at sequence 2048`."""
    words = "passed" if soak.passed else "failed"
    text = f"{words}: {soak.minutes:.1f} minutes, {soak.steps} steps at sequence {soak.seq_len}"
    if soak.checkpoint is not None and soak.checkpoint.load_s is not None:
        text += ", with a checkpoint saved and resumed on the way"
    return f"{text}; peak memory {format_bytes(soak.peak_memory_bytes)} per device"


def _said(value: Any) -> str:
    return "left out" if value is None else json.dumps(value, sort_keys=True)
