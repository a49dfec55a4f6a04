"""What the READMEs of exports say of a configuration: its choice, its figures, where they hold."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from autotune.base.nested import look_up
from autotune.base.templates import canonical_json
from autotune.engines.base import known_releases
from autotune.export.base import Handout
from autotune.record.soak import describe_soak
from autotune.space.candidate import format_value

README_FILE = "README.md"
FIGURES_FILE = "figures.json"
"""Name of the figures of an export, for programs."""
_STATED = (
    *("claim", "change", "figures", "baseline", "is_substitute", "gain", "guard", "environment"),
    *("is_described", "untried", "study_flags"),
)


def choice_values(handout: Handout, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `launch/choice.md.j2` uses."""
    soak = handout.soak
    return {
        **{name: getattr(handout, name) for name in _STATED},
        "accelerator": handout.environment.accelerator,
        "knobs": [(name, format_value(value)) for name, value in handout.candidate.knobs],
        "rank_variables": sorted(handout.variables.items()),
        "step_time_s": _step_time_s(handout),
        "soak": "" if soak is None else describe_soak(soak),
        "problems": [] if soak is None else soak.problems,
        "releases": known_releases(handout.engine, handout.environment),
        "limit_bytes": handout.settings["memory_limit_bytes"],
        "overridden": [
            (key, user_value, ours)
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


def _step_time_s(handout: Handout) -> float | None:
    """Median seconds of one optimizer step; None where nothing was measured."""
    figures = handout.figures
    return None if figures is None else handout.layout.global_batch / figures.samples_per_s


def _stands(written: Any, user_value: Any, ours: Any) -> bool:
    return bool(written == user_value) or (ours is None and written is not None)
