"""What the READMEs of exports say of a configuration: its choice, its figures, where they hold."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from autotune.base.nested import look_up
from autotune.base.templates import canonical_json
from autotune.base.units import (
    format_bytes,
    format_gain_interval,
    format_interval,
    format_rate,
    format_seconds,
)
from autotune.engines.base import known_releases
from autotune.export.base import Handout
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
        "figures": _figure_rows(handout),
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
    figures, baseline, gain = dataclasses.asdict(handout.figures), handout.baseline, handout.gain
    del figures["candidate"]
    figures |= {
        "step_time_s": _step_time_s(handout),
        "baseline_samples_per_s": baseline and baseline.samples_per_s,
        "substitute_baseline": handout.is_substitute,
        "speedup": gain and gain.ratio,
        "speedup_low": gain and gain.low,
        "speedup_high": gain and gain.high,
        "guard": handout.guard and dataclasses.asdict(handout.guard),
    }
    environment, soak = dataclasses.asdict(handout.environment), handout.soak
    measured = {"environment": environment, "soak": soak and dataclasses.asdict(soak)}
    return {FIGURES_FILE: canonical_json({"figures": figures, **measured})}


def _step_time_s(handout: Handout) -> float:
    """Median seconds of one optimizer step."""
    assert handout.figures is not None
    return handout.layout.global_batch / handout.figures.samples_per_s


def _figure_rows(handout: Handout) -> list[tuple[str, str]]:
    """The figures that there are, worded."""
    figures = handout.figures
    if figures is None:
        return []
    interval = format_interval(figures.samples_per_s_low, figures.samples_per_s_high)
    rows = [
        ("samples/s", f"{format_rate(figures.samples_per_s)} (95%: {interval})"),
        ("step time, median", format_seconds(_step_time_s(handout))),
        ("peak memory per device", format_bytes(figures.peak_memory_bytes)),
        ("runs behind it", f"{figures.n_runs}, trial {figures.trial:04d}"),
    ]
    if figures.n_disturbed:
        text = f"{figures.n_disturbed}: something else used the machine while it was measured"
        rows.append(("of these disturbed", text))
    if handout.baseline is not None:
        rows.append(("baseline, samples/s", format_rate(handout.baseline.samples_per_s)))
    if handout.is_substitute:
        text = "a substitute: the platform ended the trials of the one that was asked for"
        rows.append(("the baseline is", text))
    if (gain := handout.gain) is not None:
        interval = format_gain_interval(gain.low, gain.high, before="95%: ", digits=3)
        rows.append(("speedup over the baseline", f"{gain.ratio:.3f}x ({interval})"))
    if handout.guard is not None:
        rows.append(("convergence guard", str(handout.guard)))
    return rows


def _stands(written: Any, user_value: Any, ours: Any) -> bool:
    return bool(written == user_value) or (ours is None and written is not None)


def _shown(value: Any) -> str:
    return "left out" if value is None else json.dumps(value, sort_keys=True)
