"""Several studies beside each other: outcomes, bests, gains, and the candidates that they share.

Studies ran at different times, so drift of the machine between them is in no interval here; only
the final comparison of one study interleaves what it compares.
"""

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from autotune.base.units import format_bytes, format_gain_interval
from autotune.contract import Origin, Outcome, TrialResult, read_bounded
from autotune.engines.base import find_engine
from autotune.record.answer import Speedup
from autotune.record.facts import engine_name_of, environment_of
from autotune.report.compare.kinds import KindFigures, best_kinds, split_of
from autotune.report.results.ratios import (
    Basis,
    Ratio,
    ratio_of,
    ratio_of_gains,
    telling_runs,
)
from autotune.report.results.rows import Row
from autotune.report.story import Story
from autotune.report.words import describe_reduced
from autotune.search.history import Tried
from autotune.space.candidate import format_value
from autotune.space.knobs import describe_candidate

MAX_RUNS = 26
"""More would make no table that people read."""

_JOB = ("model", "finetune", "seq_len", "lengths", "global_batch", "world", "precision")
"""Columns of the table without which samples/s are not of the same work."""
_EMPTY = {"finetune": "every weight"}
"""Meaning of an empty column, where that is known."""
_PLACE = ("origin", "accelerator", "device_name", "memory_limit_bytes")
_NO_VALUE = format_value(None)
"""A knob that does not act, or that is none of the study's engine."""
_SIDES = ("first", "other")
_CANDIDATES = {
    "settings": "string",
    "candidate_hash": "string",
    **dict.fromkeys(_SIDES, "string"),
    **{f"{side}_trial": "Int64" for side in _SIDES},
    **{f"{side}_samples_per_s": "float64" for side in _SIDES},
    **dict.fromkeys(("ratio", "ratio_low", "ratio_high"), "float64"),
    "interval_from": "string",
    **{f"{side}_runs": "Int64" for side in _SIDES},
    **{f"{side}_peak_memory_bytes": "Int64" for side in _SIDES},
    "same_config": "boolean",
}


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One study of a comparison."""

    name: str
    """What it is called here, as of `names_of`; columns are named by it."""
    report: Story
    frame: pd.DataFrame
    job: Mapping[str, Any]
    """Keys of the job that the table has no column for; empty where its file is unreadable."""
    price_per_hour: float | None = None
    """Price of one accelerator; None: nobody said."""


@dataclass(frozen=True, kw_only=True)
class StudyComparison:
    """Several studies beside each other."""

    runs: Sequence[ComparedRun]
    outcomes: pd.DataFrame
    """Ended trials: a row per outcome, a column per study."""
    bests: pd.DataFrame
    """A row per study: its best with its interval, and the gain over its own baseline."""
    knobs: pd.DataFrame
    """Knobs that the bests set differently: a row per knob, a column per study."""
    candidates: pd.DataFrame
    """The same candidate of the same job in the first study and in another: the ratio of the
    other's samples/s to the first's, and its 95% interval. `interval_from` is `runs` (both
    studies ran something more than once) or `assumed` (one did not: `autotune.record.spread`)."""
    verdicts: Sequence["Against"]
    """Bests of the further studies of the same work, each against the first one's."""
    kinds: Sequence[KindFigures]
    """The bests of studies of one work on different kinds of accelerator; empty: they are none."""
    warnings: Sequence[str]
    """Differences besides the candidates."""

    @property
    def shared_knobs(self) -> pd.DataFrame:
        """The rows of `knobs` that act in every study."""
        return self.knobs[(self.knobs != _NO_VALUE).all(axis=1)]

    @property
    def own_knobs(self) -> list[tuple[str, str]]:
        """Study and what its best sets of knobs that do not act in all, as `knob=value ...`."""
        own = self.knobs.drop(self.shared_knobs.index)
        sets = {
            str(name): " ".join(f"{knob}={v}" for knob, v in values.items() if v != _NO_VALUE)
            for name, values in own.items()
        }
        return [(name, said) for name, said in sets.items() if said]

    def as_dict(self) -> dict[str, Any]:
        """The form that `--json` prints."""
        return {
            "studies": {run.name: str(run.report.folder) for run in self.runs},
            "warnings": list(self.warnings),
            "outcomes": _plain(self.outcomes, "columns"),
            "bests": _plain(self.bests, "records"),
            "knobs": _plain(self.knobs, "columns"),
            "candidates": _plain(self.candidates, "records"),
            "verdicts": list(map(str, self.verdicts)),
            "kinds": [kind.as_dict() for kind in self.kinds],
            "best_kinds": best_kinds(self.kinds),
            "uneven_split": split.as_dict() if (split := split_of(self.kinds)) else None,
        }


@dataclass(frozen=True, kw_only=True)
class Against:
    """The best of a study against the first one's."""

    name: str
    first: str
    ratio: float
    low: float
    """Lower end of its 95% interval."""
    high: float
    engines: tuple[str, str]
    """Names of the packages that trained: of the first one's, of the other's."""
    objectives: tuple[str, str]
    """Names of what the first one and the other were searched for."""
    peaks_bytes: tuple[int | None, int | None]
    """Peak memory of the first one's best and of the other's; None where no meter said."""
    is_beside_baseline: bool = False
    """Whether each best counts beside the baseline of its own study, which both ran."""
    drift: Speedup | None = None
    """Speed of that baseline in the study over that in the first one, where they differ."""
    unproven: str = ""
    """Why neither can be called faster whatever their figures; empty: one can."""

    @property
    def faster(self) -> str:
        """The faster one; empty: no difference is proven."""
        if self.unproven:
            return ""
        return self.name if self.low > 1 else self.first if self.high < 1 else ""

    def __str__(self) -> str:
        text = f"{self.name}'s best is {self.ratio:.2f}x as fast as {self.first}'s "
        text += f"({format_gain_interval(self.low, self.high)})"
        if self.basis:
            text += f", {self.basis}"
        if self.unproven:
            return f"{text}: {self.unproven}"
        if self.undecided:
            return f"{text}: {self.undecided}"
        return f"{text}: use {self.advice}" if self.faster else f"{text}: no proven difference"

    @property
    def basis(self) -> str:
        """What the ratio is of, where it is not of samples/s; empty: of these."""
        if not self.is_beside_baseline:
            return ""
        said = "each beside the baseline of its study"
        if self.drift is None:
            return said
        return f"{said}, which ran {self.drift.ratio:.2f}x as fast in {self.name}"

    @property
    def undecided(self) -> str:
        """Why speed alone does not say which to use; empty: both were searched for speed."""
        first, other = self.objectives
        if first == other == "samples_per_s":
            return ""
        why = f"of {self.first} is {first} and that of {self.name} is {other}"
        if first == other:
            why = f"of both is {first}"
        said = f"speed alone does not decide, since the objective {why}"
        ours, theirs = self.peaks_bytes
        if ours is None or theirs is None:
            return said
        return f"{said}; {self.name}'s takes {format_bytes(theirs)}, {self.first}'s " + (
            format_bytes(ours)
        )

    @property
    def advice(self) -> str:
        """The one to use, and its engine where the two have different ones."""
        first, other = self.engines
        engine = other if self.faster == self.name else first
        return self.faster + (f" ({engine})" if first != other and engine else "")


def compare(runs: Sequence[ComparedRun]) -> StudyComparison:
    """Compare two studies or more; ratios are over the first one."""
    shared = [row for run in runs[1:] for row in _shared(runs[0], run)]
    candidates = pd.DataFrame(
        {
            name: pd.Series([row[name] for row in shared], dtype=dtype)
            for name, dtype in _CANDIDATES.items()
        }
    ).sort_values(["other", "first_samples_per_s"], ascending=[True, False], ignore_index=True)
    differences = dict(_differences(runs))
    return StudyComparison(
        runs=runs,
        kinds=_kinds(runs, differences),
        outcomes=_outcomes(runs),
        bests=pd.DataFrame([_best(run) for run in runs]),
        knobs=_knobs(runs),
        candidates=candidates,
        verdicts=[said for run in runs[1:] if (said := _verdict(runs[0], run))],
        warnings=[*differences.values(), *_other_configs(candidates)],
    )


def names_of(folders: Sequence[Path]) -> list[str]:
    """What studies are called: a folder's name, with folders above it where two have the same."""
    names = [folder.name for folder in folders]
    for depth in range(2, max(len(folder.parts) for folder in folders) + 1):
        twice = {name for name in names if names.count(name) > 1}
        if not twice:
            break
        names = [
            str(Path(*folder.parts[-depth:])) if name in twice else name
            for name, folder in zip(names, folders, strict=True)
        ]
    return names


def _outcomes(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    counts = {run.name: run.report.counts for run in runs}
    seen = [outcome for outcome in Outcome if any(c.get(outcome) for c in counts.values())]
    return pd.DataFrame(
        {name: [count.get(outcome, 0) for outcome in seen] for name, count in counts.items()},
        index=pd.Index([outcome.value for outcome in seen], name="outcome"),
    )


def _best(run: ComparedRun) -> dict[str, Any]:
    answer = run.report.answer
    best, speedup = answer and answer.best, answer and answer.speedup
    names = ("trial", "samples_per_s", "samples_per_s_low", "samples_per_s_high", "n_runs")
    return {
        "run": run.name,
        "study": run.report.study,
        **{name: getattr(best, name, None) for name in (*names, "peak_memory_bytes")},
        "speedup": speedup and speedup.ratio,
        "speedup_low": speedup and speedup.low,
        "speedup_high": speedup and speedup.high,
        "substitute_baseline": answer is not None and answer.is_substitute,
    }


def _knobs(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    settings = {run.name: row.candidate.values for run in runs if (row := run.report.best_row)}
    order = dict.fromkeys(name for run in runs for name in run.report.context.knobs)
    names = [
        name for name in order if len({format_value(s.get(name)) for s in settings.values()}) > 1
    ]
    return pd.DataFrame(
        {key: [format_value(s.get(name)) for name in names] for key, s in settings.items()},
        index=pd.Index(names, name="knob", dtype="str"),
    )


def _shared(first: ComparedRun, other: ComparedRun) -> Iterable[dict[str, Any]]:
    """The candidates that both measured for the same job, one row each."""
    theirs = {_identity(tried): tried for tried in other.report.history.tried}
    for tried in first.report.history.tried:
        twin = theirs.get(_identity(tried))
        if twin is None:
            continue
        runs = telling_runs(tried.trials), telling_runs(twin.trials)
        if not all(runs):
            continue
        ratio = ratio_of(runs[1], runs[0], spreads=(twin.spread, tried.spread))
        cells: dict[str, Any] = {
            "settings": describe_candidate(tried.candidate, first.report.context),
            "candidate_hash": tried.candidate.hash,
            "ratio": ratio.ratio,
            "ratio_low": ratio.low,
            "ratio_high": ratio.high,
            "interval_from": ratio.basis.value,
            "same_config": _config_of(tried) == _config_of(twin),
        }
        sides = zip(_SIDES, (first, other), (tried, twin), runs, strict=True)
        for side, run, one, its in sides:
            row = next(r for r in run.report.rows if r.candidate.hash == one.candidate.hash)
            # The runs that the ratio is made of: the two figures give the ratio.
            rate = statistics.geometric_mean(r.samples_per_s or 0.0 for r in its)
            peaks = [r.peak_memory_bytes for r in its if r.peak_memory_bytes is not None]
            cells |= {
                side: run.name,
                f"{side}_trial": row.trial,
                f"{side}_runs": len(its),
                f"{side}_samples_per_s": rate,
                f"{side}_peak_memory_bytes": max(peaks, default=None),
            }
        yield cells


def _verdict(first: ComparedRun, other: ComparedRun) -> Against | None:
    """How the best of a study does against the first one's; None where nobody can say.

    Studies on the same devices ran at different times, and a machine is not always as fast. So
    each best counts beside the baseline of its own study, where both have the same one; where they
    have not, neither is called faster.
    """
    is_same_work = all(_seen(first.frame, c) == _seen(other.frame, c) for c in _JOB)
    if not is_same_work:
        return None
    sides = (other, first)
    bests = [_measured(run, run.report.best_row) for run in sides]
    ours, theirs = bests
    if ours is None or theirs is None:
        return None
    ratio = _over(ours, theirs)
    is_beside_baseline, drift, unproven = False, None, ""
    if _is_one_place(first, other):
        base, their_base = (_measured(run, run.report.baseline_row) for run in sides)
        if base is None or their_base is None or _identity(base[0]) != _identity(their_base[0]):
            unproven = (
                "they ran at different times and share no baseline, so nothing shows that the "
                "machine was as fast both times"
            )
        else:
            ratio = ratio_of_gains(_over(ours, base), _over(theirs, their_base))
            is_beside_baseline, between = True, _over(base, their_base)
            drift = between if between.is_told_apart else None
    return Against(
        name=other.name,
        first=first.name,
        ratio=ratio.ratio,
        low=ratio.low,
        high=ratio.high,
        engines=(_package(first), _package(other)),
        objectives=(first.report.objective.wish.name, other.report.objective.wish.name),
        peaks_bytes=(_peak_of(first), _peak_of(other)),
        is_beside_baseline=is_beside_baseline,
        drift=drift,
        unproven=unproven,
    )


_Measured = tuple[Tried, list[TrialResult]]
"""A candidate and the runs behind its figure."""


def _is_one_place(first: ComparedRun, other: ComparedRun) -> bool:
    """Whether two studies are of one engine on devices of one kind."""
    engines = {engine_name_of(run.report.state) for run in (first, other)}
    return len(engines) == 1 and _seen(first.frame, "device_name") == _seen(
        other.frame, "device_name"
    )


def _measured(run: ComparedRun, row: Row | None) -> _Measured | None:
    """A row's candidate with the runs of a comparison that came to a result; None: there is none.

    One that was cut short leaves runs, and the candidate stands by its own trial.
    """
    if row is None:
        return None
    wanted = row.candidate.hash
    tried = next(t for t in run.report.history.tried if t.candidate.hash == wanted)
    runs = telling_runs(tried.trials) if row.n_runs > 1 else []
    if not runs and tried.measured is not None:
        runs = [tried.measured]
    return (tried, runs) if runs else None


def _over(ours: _Measured, theirs: _Measured) -> Ratio:
    """The speed of one over that of another; exactly 1 for the same candidate of one study."""
    if ours[0] is theirs[0]:
        n_runs = len(ours[1])
        return Ratio(ratio=1.0, low=1.0, high=1.0, basis=Basis.RUNS, n_runs=(n_runs, n_runs))
    return ratio_of(ours[1], theirs[1], spreads=(ours[0].spread, theirs[0].spread))


def _peak_of(run: ComparedRun) -> int | None:
    answer = run.report.answer
    return None if answer is None or answer.best is None else answer.best.peak_memory_bytes


def _package(run: ComparedRun) -> str:
    packages = find_engine(engine_name_of(run.report.state)).packages
    return packages[0].title if packages else ""


def _identity(tried: Tried) -> str:
    """Key that is equal for equal work: the candidate and the job's part of it."""
    spec = tried.trials[0].spec
    work = (spec.workload.model, spec.workload.seq_len, spec.workload.lengths)
    return json.dumps(
        [spec.identity.candidate_hash, *work, spec.workload.precision], sort_keys=True
    )


def _config_of(tried: Tried) -> str:
    """The configuration files of its first trial; optimizer and versions are in no knob."""
    folder = tried.trials[0].folder / "config"
    texts = []
    for path in sorted(folder.glob("*")):
        try:
            texts.append(f"{path.name}\n{read_bounded(path).decode()}")
        except (OSError, UnicodeDecodeError):
            texts.append(path.name)
    return "\n".join(texts)


def _kinds(runs: Sequence[ComparedRun], differences: Mapping[str, str]) -> list[KindFigures]:
    """The bests by kind of accelerator, where only kind and number of accelerators differ.

    Kinds without a best one are left out; two at least have one.
    """
    is_one_work = not differences.keys() & ({*_JOB} - {"world"})
    if "device_name" not in differences or not is_one_work:
        return []
    found = []
    for run in runs:
        best, environment = run.report.best_row, environment_of(run.report.state)
        answer = run.report.answer
        if best is None or environment is None or answer is None or answer.best is None:
            continue
        found.append(
            KindFigures(
                run=run.name,
                device_name=environment.device_name,
                world=run.report.context.world,
                replicas=best.candidate.dp,
                micro_batch=best.candidate.micro_batch,
                global_batch=run.report.context.global_batch,
                samples_per_s=answer.best.samples_per_s,
                samples_per_s_low=answer.best.samples_per_s_low,
                samples_per_s_high=answer.best.samples_per_s_high,
                price_per_hour=run.price_per_hour,
            )
        )
    return found if len({kind.device_name for kind in found}) > 1 else []


def _differences(runs: Sequence[ComparedRun]) -> Iterator[tuple[str, str]]:
    """What differs, by its key, and in words."""
    columns = dict.fromkeys(str(column) for run in runs for column in run.frame.columns)
    versions = [column for column in columns if column.startswith("version.")]
    said: dict[str, str] = {}
    engines = {run.name: engine_name_of(run.report.state) for run in runs}
    if len(set(engines.values())) > 1:
        each = ", ".join(f"{key} {name}" for key, name in engines.items())
        said["engine"] = f"engine differs ({each})"
        # Each has packages of its own, which the other does without.
        versions = [c for c in versions if all(_seen(run.frame, c) for run in runs)]
    for column in (*_JOB, *_PLACE, *versions):
        seen = {run.name: _seen(run.frame, column) for run in runs}
        if len(set(seen.values())) > 1:
            empty = _EMPTY.get(column, "unknown")
            each = ", ".join(f"{key} {value or empty}" for key, value in seen.items())
            weight = ": samples/s are not of the same work" if column in _JOB else ""
            said[column] = f"{column.removeprefix('version.')} differs ({each}){weight}"
    keys = dict.fromkeys(key for run in runs if run.job for key in run.job)
    for key in keys:
        values = {json.dumps(run.job.get(key), sort_keys=True) for run in runs if run.job}
        if len(values) > 1:
            said.setdefault(key, f"{key} of the job differs")
    for run in runs:
        if (origin := _seen(run.frame, "origin")) not in ("", Origin.MEASURED):
            text = f"{run.name} is {origin}: its figures were not measured here"
            yield f"{run.name} unmeasured", text
    for run in runs:
        if run.report.answer is not None and run.report.answer.is_substitute:
            text = "the platform ended the trials of the baseline that was asked for: the gain is "
            yield f"{run.name} substitute", f"{run.name}: {text}over a substitute"
    for run in runs:
        if text := describe_reduced(run.report.history):
            yield f"{run.name} reduced", f"{run.name}: reduced trials are left out ({text})"
    yield from said.items()


def _seen(frame: pd.DataFrame, column: str) -> str:
    if column not in frame.columns:  # a package of another engine
        return ""
    return "/".join(sorted({str(value) for value in frame[column].dropna()}))


def _other_configs(candidates: pd.DataFrame) -> list[str]:
    n = int((~candidates["same_config"].astype(bool)).sum())
    if not n:
        return []
    return [
        f"{n} of {len(candidates)} shared candidates ran another ds_config.json (optimizer, base "
        "configuration or version): column same_config"
    ]


def _plain(frame: pd.DataFrame, orient: Literal["columns", "records"]) -> Any:
    return json.loads(frame.to_json(orient=orient))
