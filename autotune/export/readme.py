"""What the READMEs of exports say of a configuration: its choice, its figures, where they hold."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from autotune.base.nested import look_up
from autotune.base.templates import canonical_json
from autotune.base.units import format_bytes, format_gain_interval, format_rate, format_seconds
from autotune.engines.base import known_releases
from autotune.export.base import Handout, MeasuredFigures
from autotune.record.soak import describe_soak
from autotune.space.candidate import format_value

README_FILE = "README.md"
FIGURES_FILE = "figures.json"
"""Name of the figures of an export, for programs."""


def choice_values(handout: Handout, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `launch/choice.md.j2` uses."""
    environment, soak = handout.environment, handout.soak
    limit_bytes = handout.settings["memory_limit_bytes"]
    limit = "the device's own" if limit_bytes is None else format_bytes(limit_bytes)
    return {
        "accelerator": environment.accelerator,
        "claim": handout.claim,
        "knobs": [(name, format_value(value)) for name, value in handout.candidate.knobs],
        "figures": [] if handout.figures is None else _figure_rows(handout.figures),
        "soak": "" if soak is None else describe_soak(soak),
        "problems": [] if soak is None else soak.problems,
        "environment": [
            ("device", f"{environment.device_name} ({environment.accelerator})"),
            *known_releases(handout.engine, environment),
            *([] if handout.is_described else [("torch", environment.torch_version)]),
            ("memory limit per device", limit),
        ],
        "untried": handout.untried,
        "study_flags": handout.study_flags,
        "overridden": [
            (key, _shown(user_value), _shown(ours))
            for key, (user_value, ours) in sorted(handout.overridden.items())
            if config is None or not _stands(look_up(config, key), user_value, ours)
        ],
    }


def with_claim(readme: str, claim: str) -> str:
    """A README whose title begins with what the configuration is."""
    title, newline, rest = readme.partition("\n")
    if not title.startswith("# "):
        return f"# {claim}\n\n{readme}"
    return f"# {claim}: {title.removeprefix('# ')}{newline}{rest}"


def figures_file(handout: Handout) -> dict[str, str]:
    """The figures of a handout as JSON; no file where nothing was measured."""
    if handout.figures is None:
        return {}
    measured = {name: getattr(handout, name) for name in ("figures", "environment", "soak")}
    figures = {name: value and dataclasses.asdict(value) for name, value in measured.items()}
    return {FIGURES_FILE: canonical_json(figures)}


def _figure_rows(figures: MeasuredFigures) -> list[tuple[str, str]]:
    """The figures that there are, worded."""
    interval = (
        f"{format_rate(figures.samples_per_s_low)} to {format_rate(figures.samples_per_s_high)}"
    )
    rows = [
        ("samples/s", f"{format_rate(figures.samples_per_s)} (95%: {interval})"),
        ("step time, median", format_seconds(figures.step_time_s)),
        ("peak memory per device", format_bytes(figures.peak_memory_bytes)),
        ("runs behind it", f"{figures.n_runs}, trial {figures.trial:04d}"),
    ]
    if figures.n_disturbed:
        text = f"{figures.n_disturbed}: something else used the machine while it was measured"
        rows.append(("of these disturbed", text))
    if figures.baseline_samples_per_s is not None:
        rows.append(("baseline, samples/s", format_rate(figures.baseline_samples_per_s)))
    if figures.substitute_baseline:
        text = "a substitute: the platform ended the trials of the one that was asked for"
        rows.append(("the baseline is", text))
    gain, low, high = figures.speedup, figures.speedup_low, figures.speedup_high
    if gain is not None and low is not None and high is not None:
        interval = format_gain_interval(low, high, before="95%: ", digits=3)
        rows.append(("speedup over the baseline", f"{gain:.3f}x ({interval})"))
    if figures.guard is not None:
        rows.append(("convergence guard", str(figures.guard)))
    return rows


def _stands(written: Any, user_value: Any, ours: Any) -> bool:
    return bool(written == user_value) or (ours is None and written is not None)


def _shown(value: Any) -> str:
    return "left out" if value is None else json.dumps(value, sort_keys=True)
