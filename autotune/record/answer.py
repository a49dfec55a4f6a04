"""The answer of a search: one value from the loop to the page, and JSON only in `study.json`."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PlainValidator

from autotune import DEFAULT_ENGINE
from autotune.base.errors import AutotuneError, ExitCode, FleetError, NothingFeasibleError
from autotune.base.plugins import load_plugin
from autotune.contract import CONFIG_DIR, METER_SLACK, Origin, Outcome
from autotune.record.facts import Facts, PassedOver, read_fact
from autotune.record.guard import GuardVerdict
from autotune.record.study import Study
from autotune.space.candidate import Candidate

_Number = Annotated[int, Field(ge=0)]
_Rate = Annotated[float, Field(gt=0, lt=math.inf)]
_Ratio = Annotated[float, Field(ge=0, lt=math.inf)]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A candidate with its figure: the final comparison's where it took part, else one trial's."""

    trial: _Number
    """Number of the trial whose files stand for it."""
    candidate: Candidate
    samples_per_s: _Rate
    samples_per_s_low: _Rate
    """Lower end of the 95% prediction interval: where a re-run would be."""
    samples_per_s_high: _Rate
    peak_memory_bytes: int | None
    """None where the device's meter said nothing; such a candidate is taken to fit."""
    n_runs: Annotated[int, Field(ge=1)] = 1
    """Fresh sets of processes behind the figure."""
    n_disturbed: int = 0
    """Runs among these that something else on the machine disturbed."""

    @cached_property
    def log_rate(self) -> float:
        """Logarithm of its samples/s, in which figures are equal that only rounding parts."""
        return round(math.log(self.samples_per_s), 9)

    def overlaps(self, other: "Standing") -> bool:
        """Whether the intervals have a rate in common: then nobody knows which is faster."""
        return (
            self.samples_per_s_low <= other.samples_per_s_high
            and other.samples_per_s_low <= self.samples_per_s_high
        )


@dataclass(frozen=True, kw_only=True)
class Drifted:
    """A candidate that is better than the best and not handed out: the guard fails it."""

    standing: Standing
    guard: GuardVerdict


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """Gain of the best over the baseline, as a ratio of samples/s."""

    ratio: _Ratio
    low: _Ratio
    """Lower end of the 95% interval, from the interleaved runs of the final comparison."""
    high: _Ratio

    @classmethod
    def around(cls, middle: float, half: float, **more: Any) -> Self:
        """The ratio of a logarithm, with an interval that reaches so far to either side."""
        low, high = math.exp(middle - half), math.exp(middle + half)
        return cls(ratio=math.exp(middle), low=low, high=high, **more)

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval leaves 1 out."""
        return not self.low <= 1 <= self.high


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a search found nothing, and how to mend that."""

    message: str
    fix: str
    exit_code: ExitCode = ExitCode.NOTHING_FEASIBLE
    notes: tuple[str, ...] = ()
    """What went wrong besides."""

    @classmethod
    def of(cls, error: AutotuneError) -> "Problem":
        notes = tuple(getattr(error, "__notes__", ()))
        return cls(message=error.message, fix=error.hint, exit_code=error.exit_code, notes=notes)

    @property
    def error(self) -> AutotuneError:
        is_of_fleet = self.exit_code is ExitCode.FLEET_UNAVAILABLE
        error = (FleetError if is_of_fleet else NothingFeasibleError)(self.message, self.fix)
        for note in self.notes:
            error.add_note(note)
        return error


@dataclass(frozen=True, kw_only=True)
class SearchAnswer:
    """The answer of a search; `study.json` keeps its fields as they are, but for the study."""

    study: Annotated[Study, PlainValidator(lambda study: study)]
    engine: str = DEFAULT_ENGINE
    """Name of the engine that trained."""
    objective: str = "samples_per_s"
    """Name of what `best` was chosen by."""
    counts: Mapping[Outcome, int]
    """Ended trials by outcome."""
    stop_reason: str
    interrupted: bool = False
    origin: Origin = Origin.MEASURED
    """Origin of the figures."""
    problem: Problem | None = None
    """Why there is no best one, where the search failed."""
    passed_over: tuple[PassedOver, ...] = ()
    """Candidates that the baseline was to be and is not; the first is what was asked for."""
    baseline: Standing | None = None
    best: Standing | None = None
    guard: GuardVerdict | None = None
    """What the convergence guard says of the best; None: there is no best, or the guard is off."""
    drifted: Drifted | None = None
    """What would be the best if the guard did not fail it; None: nothing."""
    ties: tuple[Standing, ...] = ()
    """Candidates that are not told apart from the best, the confirmed ones first; only where the
    objective is samples/s."""
    speedup: Speedup | None = None
    """None if no baseline ran or nothing was confirmed."""
    front: tuple[Standing, ...] | None = None
    """The Pareto front, fastest first; None for an objective without one."""
    rule: str = ""
    """How the best one of the front was chosen; empty without one."""

    @property
    def has_proven_gain(self) -> bool:
        """Whether the final comparison shows that the best is better than the baseline.

        It is faster, or takes less memory where memory was asked for.
        """
        best, baseline = self.best, self.baseline
        if self.speedup is None or best is None or baseline is None:
            return False
        if best.candidate == baseline.candidate:
            return False
        if self.speedup.low > 1:
            return True
        peaks = best.peak_memory_bytes, baseline.peak_memory_bytes
        if self.objective == "samples_per_s" or peaks[0] is None or peaks[1] is None:
            return False
        return peaks[0] * (1 + METER_SLACK) < peaks[1]

    @property
    def handed_out(self) -> Standing | None:
        """The one that is exported: the best where it is proven to be better than the baseline.

        Without a baseline there is only the best.
        """
        is_best = self.has_proven_gain or self.baseline is None
        return self.best if is_best or self.best is None else self.baseline

    @property
    def nothing_to_explain(self) -> str:
        """Why no ladder goes from the baseline to the best one; empty: one does."""
        if self.origin is not Origin.MEASURED:
            return f"nothing ran: the study is {self.origin.value}"
        if self.interrupted:
            return "the search was interrupted"
        if self.best is None or self.baseline is None:
            return "there are not both a best one and a baseline"
        is_same = self.best.candidate == self.baseline.candidate
        return "the best one is the baseline" if is_same else ""

    @property
    def is_substitute(self) -> bool:
        """Whether the baseline is another than was asked for, since the platform ended that."""
        return self.baseline is not None and any(p.by_platform for p in self.passed_over)

    @property
    def export(self) -> Path | None:
        """Folder of the files that are handed out; None: there are none."""
        has_files = self.best is not None and self.origin is Origin.MEASURED
        return self.study.best_folder if has_files else None

    def to_dict(self) -> dict[str, Any]:
        """What `study.json` keeps and `search --json` prints: the fields, and what they mean.

        Returns:
            The fields of the answer, `study` by name; `proven_gain` (whether the best is proven to
            be better than the baseline) and `handed_out` (the trial whose files are exported:
            without a proven gain the baseline's; null: none).
        """
        return {
            **asdict(self),
            "study": self.study.name,
            "counts": dict(self.counts),
            "proven_gain": self.has_proven_gain,
            "handed_out": self.handed_out and self.handed_out.trial,
        }

    def config_of(self, standing: Standing) -> Path:
        """The configuration file of the trial that stands for a candidate."""
        name: str = load_plugin("engine", self.engine).config_file
        return self.study.trial_folder(standing.trial) / CONFIG_DIR / name


def answer_of(study: Study, facts: Facts | None = None) -> SearchAnswer | None:
    """The answer of the last search, by `study.json`; None: there is none, or it is damaged.

    Its files are named as they lie now: a study may have been moved since, or set aside, and its
    old place may be another study's.
    """
    stored = (facts or study.facts()).answer
    read = None if stored is None else read_fact(SearchAnswer, {**stored, "study": None})
    if read is None or (read.speedup is not None and not (read.best and read.baseline)):
        return None
    return replace(read, study=study)
