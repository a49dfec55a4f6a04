"""Files that exports for other consumers share: the built-in workload beside their own script."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.templates import Templates, canonical_json
from autotune.contract import SETTINGS_FILE, read_bounded, settings_of
from autotune.export.base import Handout, Launch
from autotune.export.readme import choice_values
from autotune.trial.scripts.lengths import is_drawn

SCRIPT = "train.py"
"""Path of the script that launchers start, in every export that has one."""
CONFIG_FOLDER = "model"


def material(
    handout: Handout,
    script: str,
    templates: Templates,
    *,
    more: Mapping[str, Any] | None = None,
    brings_loop: bool = False,
) -> dict[str, str]:
    """A training script for a consumer, with the model and the samples that the trials had.

    A consumer that `brings_loop` builds both itself, by what `start.py` writes first.

    Raises:
        RenderError: A template does not render, or the workload's script cannot be read.
    """
    files = {SETTINGS_FILE: canonical_json({**settings(handout), **(more or {})})}
    if handout.workload.script:
        return {**files, SCRIPT: training_script(handout)}
    files[SCRIPT] = templates.text(script, {})
    if brings_loop:
        files["start.py"] = templates.text("scripts/start.py", {})
    else:
        files["material.py"] = templates.text("scripts/material.py", {})
        files["workload.py"] = trial_script("train.py")
        if is_drawn(handout.workload.lengths):
            files["lengths.py"] = trial_script("lengths.py")
    return {**files, **model_config(handout)}


def model_config(handout: Handout) -> dict[str, str]:
    """The Hugging Face config of the model, as the folder that transformers reads."""
    source = handout.job.model.source
    if "config" not in source:
        return {}
    return {f"{CONFIG_FOLDER}/config.json": canonical_json(source["config"])}


def settings(handout: Handout) -> dict[str, Any]:
    """What is trained and how ranks share it, in the words of a trial."""
    return {
        **settings_of(handout.workload, handout.layout),
        **handout.settings,
        "micro_batch": handout.candidate.micro_batch,
        "grad_accum": handout.candidate.grad_accum,
    }


def readme(
    handout: Handout,
    launch: Launch,
    templates: Templates,
    name: str,
    more: Mapping[str, Any],
    *,
    config: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """The README of an export, from the template `name` and what that needs besides.

    `config` is DeepSpeed's configuration as the dialect writes it, where others fill in keys.
    """
    values: dict[str, Any] = {
        "attention": "default",
        "compile": "none",
        "loss_chunk_tokens": 0,
        "mlp_chunk_tokens": 0,
        **settings(handout),
        **choice_values(handout, config),
        "n_nodes": handout.n_nodes,
        "per_node": handout.per_node,
        "usage": launch.usage,
        "started": ", ".join(f"`{name}`" for name in sorted(launch.files)),
        # The arguments of what submits a job to these are kubectl's, and SkyPilot's.
        "passes_arguments": launch.name not in ("kubernetes", "skypilot"),
        "variables": sorted(handout.variables.items()),
        "has_script": bool(handout.workload.script),
        "is_drawn": is_drawn(handout.workload.lengths),
        **more,
    }
    return {"README.md": templates.text(name, values)}


def training_script(handout: Handout) -> str:
    """The script that the trials ran.

    Raises:
        RenderError: It cannot be read.
    """
    script = handout.workload.script
    try:
        return read_bounded(Path(script)).decode("utf-8") if script else trial_script("train.py")
    except (OSError, ValueError) as error:
        raise RenderError(f"{script}: cannot be read: {error}", "mend the file") from error


def trial_script(name: str) -> str:
    """The trials' own script, as it is: nothing in it imports the rest of ours."""
    return (resources.files("autotune.trial.scripts") / name).read_text(encoding="utf-8")
