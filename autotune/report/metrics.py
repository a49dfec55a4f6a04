"""A running search in Prometheus' text format, for node_exporter's textfile collector.

The names are frozen by a test. Units are base units (seconds, bytes, joules, ratios of 1);
counters end in `_total` and count the record, so that they go on where a search is resumed.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.base.telling import tell
from autotune.base.text import lines
from autotune.contract import Origin, Phase, TrialResult, TrialSpec
from autotune.record.bottleneck import shares_of_calls
from autotune.record.study import Trial, results
from autotune.record.table import energy_per_sample_j
from autotune.search.base import Snapshot, Stage

MARK = "# Written by autotune: docs/metrics.md"
"""The first line of every such file."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One family of the exposition."""

    name: str
    help: str
    labels: tuple[str, ...]
    """Besides `study`, which all have."""

    @property
    def kind(self) -> str:
        """A type of the text format; the names of counters say that they are."""
        return "counter" if self.name.endswith("_total") else "gauge"


def _metric(name: str, text: str) -> Metric:
    name, _, labels = name.rstrip("}").partition("{")
    named = tuple(labels.split(",")) if labels else ()
    return Metric(name=f"autotune_{name}", help=text, labels=named)


METRICS = tuple(_metric(name, text) for name, text in tell("metrics", {}))
"""All of them; the names lack the `autotune_` that begins them all in the template."""

Values = Iterable[tuple[tuple[str, ...], float | None]]
"""Label values in the order of `Metric.labels`, and the value; None: the sample is left out."""


def render_metrics(snapshot: Snapshot, *, study: str, version: str, accelerator: str) -> str:
    """The exposition of one moment; every sample carries the study's name as a label."""
    trials = snapshot.trials
    origins = {result.origin for result in results(trials)}
    origin = "+".join(sorted(origins)) or Origin.MEASURED
    info: Values = [((version, accelerator, origin), 1.0)]
    found = {"info": info, **_of_search(snapshot), **_of_record(trials)}
    values = {f"autotune_{name}": samples for name, samples in found.items()}
    lines = [MARK]
    for metric in METRICS:
        samples = [
            (labels, value)
            for labels, value in values.get(metric.name, ())
            if value is not None and math.isfinite(value)
        ]
        if not samples:
            continue
        lines.append(f"# HELP {metric.name} {_escaped(metric.help, quotes=False)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for labels, value in samples:
            named = zip(("study", *metric.labels), (study, *labels), strict=True)
            pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in named)
            lines.append(f"{metric.name}{{{pairs}}} {value!r}")
    return "\n".join(lines) + "\n"


def _of_search(snapshot: Snapshot) -> dict[str, Values]:
    best, baseline = snapshot.best, snapshot.baseline
    ratio = None
    if best and baseline and best.samples_per_s and baseline.samples_per_s:
        ratio = best.samples_per_s / baseline.samples_per_s
    return {
        "stage": [((s.value,), float(s is snapshot.stage)) for s in Stage],
        "trials_running": _one(len(snapshot.running)),
        "search_trials_done": _one(snapshot.n_done),
        "search_trials_budget": _one(snapshot.n_budget),
        "elapsed_seconds": _one(snapshot.elapsed_s),
        "remaining_seconds": _one(snapshot.time_left_s),
        "best_samples_per_second": _field(best, "samples_per_s"),
        "best_peak_memory_bytes": _field(best, "peak_memory_bytes"),
        "baseline_samples_per_second": _field(baseline, "samples_per_s"),
        "speedup_ratio": _one(ratio),
        "running_trial_elapsed_seconds": [
            ((str(r.number), r.role.value, r.phase.value), r.elapsed_s) for r in snapshot.running
        ],
    }


def _of_record(trials: Sequence[Trial]) -> dict[str, Values]:
    ended = [(trial.spec, trial.result) for trial in trials if trial.result is not None]
    counts = Counter((result.outcome.value, result.role.value) for _, result in ended)
    phases = {p: sum(result.phases_s.get(p, 0.0) for _, result in ended) for p in Phase}
    measured = [
        (spec, result)
        for spec, result in ended
        if result.outcome.is_measured and spec.identity.fidelity is None
    ]
    values: dict[str, Values] = {
        "trials_total": [(labels, float(n)) for labels, n in sorted(counts.items())],
        "phase_seconds_total": [((p.value,), s) for p, s in phases.items()],
    }
    if measured:
        last = max(measured, key=lambda pair: pair[1].started_at_s + pair[1].wall_s)
        values |= {f"last_trial{name}": v for name, v in _of_trial(*last).items()}
    return values


def _of_trial(spec: TrialSpec, result: TrialResult) -> dict[str, Values]:
    split = None if result.diagnosis is None else result.diagnosis.split
    shares = {} if split is None else shares_of_calls(split)
    gpu = None if result.use is None else result.use.gpu
    return {
        "": _one(result.number),
        "_step_seconds": _one(result.step_time_s),
        "_samples_per_second": _one(result.samples_per_s),
        "_peak_memory_bytes": _one(result.peak_memory_bytes),
        "_wall_seconds": _one(result.wall_s),
        "_step_share_ratio": [((part,), share) for part, share in shares.items()],
        "_cpu_utilization_ratio": _field(result.use, "cpu_utilization"),
        "_gpu_utilization_ratio": _field(gpu, "utilization"),
        "_gpu_power_watts": _field(gpu, "power_w"),
        "_gpu_temperature_celsius": _field(gpu, "temperature_c"),
        "_gpu_throttled_ratio": _field(gpu, "throttled"),
        "_sample_energy_joules": _one(energy_per_sample_j(spec, result)),
    }


def _one(value: float | None) -> Values:
    return [((), None if value is None else float(value))]


def _field(part: object, name: str) -> Values:
    """A field of what may not be there."""
    return _one(None if part is None else getattr(part, name))


def _escaped(text: str, *, quotes: bool = True) -> str:
    """As the text format wants it: backslash and newline, and in labels the quote."""
    text = lines(text).replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
