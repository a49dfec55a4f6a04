"""The dialect of raw DeepSpeed: ds_config.json, a training script, its settings, a README."""

import dataclasses
import json
from importlib import resources
from pathlib import Path
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.templates import Templates, canonical_json
from autotune.base.units import format_bytes, format_seconds
from autotune.export.base import Dialect, Handout, Launch, MeasuredFigures
from autotune.record.soak import describe_soak
from autotune.space.candidate import format_value
from autotune.trial.engines.deepspeed import CONFIG_FILE, SETTINGS_FILE
from autotune.trial.scripts.lengths import is_drawn
from autotune.trial.transformer_shape import script_settings

FIGURES_FILE = "figures.json"


class DeepSpeedFiles(Dialect):
    """For `deepspeed.initialize(config=...)`: concrete numbers only."""

    engines = ("deepspeed",)
    script = "train.py"

    def files(
        self, handout: Handout, launch: Launch | None, templates: Templates
    ) -> dict[str, str]:
        """See `Dialect.files`."""
        assert launch is not None, "it has a script"
        settings = {**script_settings(handout.workload, handout.layout), **handout.settings}
        values = _values(handout, launch, settings)
        files = {
            **handout.files,
            SETTINGS_FILE: canonical_json(settings),
            self.script: _training_script(handout),
            "README.md": templates.text("launch/README.md.j2", values),
        }
        if handout.candidate.pp > 1:
            files["transformer.py"] = _script("transformer.py")
        if is_drawn(handout.workload.lengths):
            files["lengths.py"] = _script("lengths.py")
        if "config" in handout.job.model.source:
            files["model/config.json"] = canonical_json(handout.job.model.source["config"])
        if handout.figures is not None:
            measured = {
                name: getattr(handout, name) for name in ("figures", "environment", "soak")
            }
            files[FIGURES_FILE] = canonical_json(
                {name: value and dataclasses.asdict(value) for name, value in measured.items()}
            )
        return files


def _training_script(handout: Handout) -> str:
    """The script that the trials ran."""
    script = handout.workload.script
    try:
        return Path(script).read_text(encoding="utf-8") if script else _script("train.py")
    except (OSError, ValueError) as error:
        raise RenderError(f"{script}: cannot be read: {error}", "mend the file") from error


def _script(name: str) -> str:
    """The trials' own script, as it is: nothing in it imports the rest of ours."""
    return (resources.files("autotune.trial.scripts") / name).read_text(encoding="utf-8")


def _values(handout: Handout, launch: Launch, settings: dict[str, Any]) -> dict[str, Any]:
    """What the templates may use."""
    candidate, environment = handout.candidate, handout.environment
    config = json.loads(handout.files[CONFIG_FILE])
    limit_bytes, soak = settings["memory_limit_bytes"], handout.soak
    limit = "the device's own" if limit_bytes is None else format_bytes(limit_bytes)
    return {
        "recompute": "none",
        **settings,
        "usage": launch.usage,
        "started": ", ".join(f"`{name}`" for name in (*launch.files, DeepSpeedFiles.script)),
        "stage": config["zero_optimization"]["stage"],
        "ep": candidate.get("ep", 1),
        "lora": handout.job.model.source.get("lora"),
        "is_drawn": is_drawn(handout.workload.lengths),
        "micro_batch": candidate.micro_batch,
        "grad_accum": candidate.grad_accum,
        "has_config": "config" in handout.job.model.source,
        "knobs": [(name, format_value(value)) for name, value in candidate.knobs],
        "figures": [] if handout.figures is None else _figure_rows(handout.figures),
        "soak": "" if soak is None else describe_soak(soak),
        "problems": [] if soak is None else soak.problems,
        "environment": [
            ("device", f"{environment.device_name} ({environment.accelerator})"),
            ("DeepSpeed", environment.deepspeed_version),
            ("torch", environment.torch_version),
            ("memory limit per device", limit),
        ],
        "untried": handout.untried,
        "overridden": [
            (key, _said(theirs), _said(ours))
            for key, (theirs, ours) in sorted(handout.overridden.items())
        ],
    }


def _figure_rows(figures: MeasuredFigures) -> list[tuple[str, str]]:
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


def _said(value: Any) -> str:
    return "left out" if value is None else json.dumps(value, sort_keys=True)
