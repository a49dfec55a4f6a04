"""A running search in Prometheus' text format, for node_exporter's textfile collector.

`python -m autotune.report.metrics` prints docs/metrics.md. The names are frozen by a test. Units
are base units (seconds, bytes, joules, ratios of 1); counters end in `_total` and count the
record, so that they go on where a search is resumed.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.contract import Origin, Phase, TrialResult, TrialSpec
from autotune.record.bottleneck import shares_of_calls
from autotune.record.study import Trial
from autotune.record.table_seen import energy_per_sample_j
from autotune.search.base import Snapshot, Stage

MARK = "# Written by autotune: docs/metrics.md"
"""The first line of every such file."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One family of the exposition."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    labels: tuple[str, ...] = ()
    """Besides `study`, which all have."""


METRICS = (
    Metric(
        name="autotune_info",
        kind="gauge",
        help="1, with what the search runs on.",
        labels=("version", "accelerator", "origin"),
    ),
    Metric(
        name="autotune_stage",
        kind="gauge",
        help="1 for what the search is busy with, 0 for the others.",
        labels=("stage",),
    ),
    Metric(
        name="autotune_trials_total",
        kind="counter",
        help="Trials of the record that have ended.",
        labels=("outcome", "role"),
    ),
    Metric(name="autotune_trials_running", kind="gauge", help="Trials in flight."),
    Metric(
        name="autotune_search_trials_done",
        kind="gauge",
        help="Candidates that the search proper has tried.",
    ),
    Metric(
        name="autotune_search_trials_budget",
        kind="gauge",
        help="Candidates that the search proper may try.",
    ),
    Metric(
        name="autotune_elapsed_seconds",
        kind="gauge",
        help="Time with a trial in flight, earlier sessions included.",
    ),
    Metric(
        name="autotune_remaining_seconds",
        kind="gauge",
        help="Estimate until the end; absent while nothing is known.",
    ),
    Metric(
        name="autotune_best_samples_per_second",
        kind="gauge",
        help="Of the best trial so far.",
    ),
    Metric(
        name="autotune_best_peak_memory_bytes",
        kind="gauge",
        help="Highest peak of any device in the best trial so far.",
    ),
    Metric(
        name="autotune_baseline_samples_per_second",
        kind="gauge",
        help="Of the baseline's trial.",
    ),
    Metric(
        name="autotune_speedup_ratio",
        kind="gauge",
        help="Best over baseline so far, one trial each: no claim before the final comparison.",
    ),
    Metric(
        name="autotune_phase_seconds_total",
        kind="counter",
        help="Time that the ended trials spent in each phase.",
        labels=("phase",),
    ),
    Metric(
        name="autotune_running_trial_elapsed_seconds",
        kind="gauge",
        help="Since a trial in flight was submitted.",
        labels=("trial", "role", "phase"),
    ),
    Metric(
        name="autotune_last_trial",
        kind="gauge",
        help="Number of the last full trial that measured; the others of that name are its "
        "figures.",
    ),
    Metric(
        name="autotune_last_trial_step_seconds",
        kind="gauge",
        help="Median optimizer step of the slowest rank.",
    ),
    Metric(
        name="autotune_last_trial_samples_per_second",
        kind="gauge",
        help="Samples of all ranks per second.",
    ),
    Metric(
        name="autotune_last_trial_peak_memory_bytes",
        kind="gauge",
        help="Highest peak of any device.",
    ),
    Metric(
        name="autotune_last_trial_wall_seconds",
        kind="gauge",
        help="From submission until its last process had ended.",
    ),
    Metric(
        name="autotune_last_trial_step_share_ratio",
        kind="gauge",
        help="What a part takes of an optimizer step, by the diagnostic pass.",
        labels=("part",),
    ),
    Metric(
        name="autotune_last_trial_cpu_utilization_ratio",
        kind="gauge",
        help="Cores that a rank kept busy over its measured steps.",
    ),
    Metric(
        name="autotune_last_trial_gpu_utilization_ratio",
        kind="gauge",
        help="Share of the measured steps in which a kernel ran, by NVML.",
    ),
    Metric(
        name="autotune_last_trial_gpu_power_watts",
        kind="gauge",
        help="Mean of one device over the measured steps, by NVML.",
    ),
    Metric(
        name="autotune_last_trial_gpu_temperature_celsius",
        kind="gauge",
        help="Highest of any device over the measured steps, by NVML.",
    ),
    Metric(
        name="autotune_last_trial_gpu_throttled_ratio",
        kind="gauge",
        help="Share of the readings in which the driver held the clock down.",
    ),
    Metric(
        name="autotune_last_trial_sample_energy_joules",
        kind="gauge",
        help="Energy of all devices per sample, by NVML.",
    ),
)

Values = Iterable[tuple[tuple[str, ...], float | None]]
"""Label values in the order of `Metric.labels`, and the value; None: the sample is left out."""


def render_metrics(
    snapshot: Snapshot, trials: Sequence[Trial], *, study: str, version: str, accelerator: str
) -> str:
    """The exposition of one moment.

    Args:
        snapshot: What the search says of itself.
        trials: Trials of the record, by number.
        study: Name of the study; a label of every sample.
        version: Version of autotune.
        accelerator: `cpu` or `cuda`.
    """
    values = {**_of_search(snapshot), **_of_record(trials)}
    origins = {trial.result.origin for trial in trials if trial.result is not None}
    origin = "+".join(sorted(origins)) or Origin.MEASURED
    values["autotune_info"] = [((version, accelerator, origin), 1.0)]
    lines = [MARK]
    for metric in METRICS:
        samples = [(labels, x) for labels, x in values.get(metric.name, ()) if _is_number(x)]
        if not samples:
            continue
        lines.append(f"# HELP {metric.name} {_escaped(metric.help, quotes=False)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for labels, value in samples:
            named = zip(("study", *metric.labels), (study, *labels), strict=True)
            pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in named)
            lines.append(f"{metric.name}{{{pairs}}} {value!r}")
    return "\n".join(lines) + "\n"


def describe() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics of a running search",
        "",
        "Every search keeps `results/<study>/metrics.prom` in Prometheus' text format, and",
        "`--metrics-file FILE` writes the same to a file of your choice, such as one ending in",
        "`.prom` in the folder of node_exporter's textfile collector. The file is written aside",
        "and moved, so that a scrape never meets a part of it: when something changes, and at",
        "least every 5 seconds while trials run, each time the search looks at them. Figures of",
        "a long record may be older: reading it takes at most 5% of the time. A file that cannot",
        "be written is named once and tried again. Nothing listens on a port.",
        "",
        "All samples carry the label `study`. A sample whose value is not known is absent. When",
        "the search has ended, however it did, the file stays with its last state",
        "(`autotune_stage` is `done`);",
        "a search that was killed leaves an old file, which node_exporter's",
        "`node_textfile_mtime_seconds` tells. Counters count the record: they go on where a",
        "search is resumed, and begin anew with `--fresh`.",
        "",
        "| metric | type | labels besides `study` | meaning |",
        "|---|---|---|---|",
    ]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(lines) + "\n"


def _of_search(snapshot: Snapshot) -> dict[str, Values]:
    best, baseline = snapshot.best, snapshot.baseline
    best_rate = None if best is None else best.samples_per_s
    baseline_rate = None if baseline is None else baseline.samples_per_s
    ratio = best_rate / baseline_rate if best_rate and baseline_rate else None
    return {
        "autotune_stage": [((s.value,), float(s is snapshot.stage)) for s in Stage],
        "autotune_trials_running": _one(len(snapshot.running)),
        "autotune_search_trials_done": _one(snapshot.n_done),
        "autotune_search_trials_budget": _one(snapshot.n_budget),
        "autotune_elapsed_seconds": _one(snapshot.elapsed_s),
        "autotune_remaining_seconds": _one(snapshot.time_left_s),
        "autotune_best_samples_per_second": _one(best_rate),
        "autotune_best_peak_memory_bytes": _one(None if best is None else best.peak_memory_bytes),
        "autotune_baseline_samples_per_second": _one(baseline_rate),
        "autotune_speedup_ratio": _one(ratio),
        "autotune_running_trial_elapsed_seconds": [
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
        "autotune_trials_total": [(labels, float(n)) for labels, n in sorted(counts.items())],
        "autotune_phase_seconds_total": [((p.value,), s) for p, s in phases.items()],
    }
    if measured:
        last = max(measured, key=lambda pair: pair[1].started_at_s + pair[1].wall_s)
        values |= {f"autotune_last_trial{name}": v for name, v in _of_trial(*last).items()}
    return values


def _of_trial(spec: TrialSpec, result: TrialResult) -> Mapping[str, Values]:
    split = None if result.diagnosis is None else result.diagnosis.split
    gpu = None if result.use is None else result.use.gpu
    return {
        "": _one(result.number),
        "_step_seconds": _one(result.step_time_s),
        "_samples_per_second": _one(result.samples_per_s),
        "_peak_memory_bytes": _one(result.peak_memory_bytes),
        "_wall_seconds": _one(result.wall_s),
        "_step_share_ratio": []
        if split is None
        else [((part,), share) for part, share in shares_of_calls(split).items()],
        "_cpu_utilization_ratio": _one(None if result.use is None else result.use.cpu_utilization),
        "_gpu_utilization_ratio": _one(None if gpu is None else gpu.utilization),
        "_gpu_power_watts": _one(None if gpu is None else gpu.power_w),
        "_gpu_temperature_celsius": _one(None if gpu is None else gpu.temperature_c),
        "_gpu_throttled_ratio": _one(None if gpu is None else gpu.throttled),
        "_sample_energy_joules": _one(energy_per_sample_j(spec, result)),
    }


def _one(value: float | None) -> Values:
    return [((), None if value is None else float(value))]


def _is_number(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _escaped(text: str, *, quotes: bool = True) -> str:
    """As the text format wants it: backslash and newline, and in labels the quote."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


if __name__ == "__main__":
    print(describe(), end="")
