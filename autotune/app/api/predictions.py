"""`autotune.plan`, `explain`, `estimate`, `estimate_rows`: what the cost model says, as values."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from autotune.app.api.calls import each_of
from autotune.app.api.keys import ExplainKeys, PlanKeys
from autotune.app.consent import agree_to_job
from autotune.app.planning import export_ranked, open_outlook
from autotune.app.steering import what_predicts
from autotune.base.errors import JobError, StudyError
from autotune.base.flags import called, flag
from autotune.base.text import Ask, Say
from autotune.contract import KnobValue
from autotune.cost.knowledge import Lesson, file_for, read_lessons
from autotune.job.job import given_keys, keys_of
from autotune.planning.explained import Estimated, Explained, estimate_candidate, explain_candidate
from autotune.planning.outlook import FleetWishes, Outlook
from autotune.planning.ranking import Ranking, rank_lattice
from autotune.report.candidates.explained import (
    estimate_as_dict,
    explained_as_dict,
    print_estimate,
    print_explained,
)
from autotune.report.candidates.ranking import print_ranking, ranking_as_dict
from autotune.report.shown import Shown
from autotune.space.candidate import format_value

if TYPE_CHECKING:  # heavy, and only for some of these
    import pandas as pd

    from autotune.planning.traced import TracedEstimate


Settings = str | Mapping[str, KnobValue]
"""`knob=value`, or a mapping of them, such as the `best` of a search."""
One = TypeVar("One", bound=Estimated)


class PredictionFlags(TypedDict, total=False):
    """Arguments of every prediction, beside the keys of a job."""

    job: str | Path | None
    trust_job: bool
    per_node: int
    network: str
    nvlink: str
    knowledge: str | Path
    no_knowledge: bool
    note: Say | None
    ask: Ask | None


class PlanFlags(PlanKeys, PredictionFlags, total=False):
    """Arguments of `plan` beside its own."""


class ExplainFlags(ExplainKeys, PredictionFlags, total=False):
    """Arguments of `explain` and `estimate` beside their own."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Planned(Shown[Ranking]):
    """Candidates, ranked without a trial."""

    outlook: Outlook
    top: int
    """Candidates that are shown."""

    @property
    def best(self) -> Mapping[str, Any]:
        """Knob -> value of the first one."""
        return dict(self.value.candidates[int(self.value.order[0])].values)

    @property
    def table(self) -> "pd.DataFrame":
        """A row per candidate that is shown: its rank, knobs and predictions."""
        import pandas as pd  # heavy

        rows = self.as_dict()["candidates"]
        figures = [
            {k: v for k, v in row.items() if k.startswith("pred_") and not isinstance(v, Mapping)}
            for row in rows
        ]
        ranked = zip(rows, figures, strict=True)
        return pd.DataFrame([{"rank": r["rank"], **r["candidate"], **of} for r, of in ranked])

    def export(
        self,
        out: str | Path,
        *,
        rank: int | None = None,
        to: str | None = None,
        launcher: str | None = None,
        note: Say | None = None,
    ) -> list[Path]:
        """Write the files of the candidate of a rank to a folder.

        Without a rank it is the best that the dialect `to` can say; `note` is told where that is
        not the first.

        Raises:
            JobError: There is no such rank, dialect or launcher.
            RenderError: The folder cannot be written, or the dialect cannot say it.
        """
        with called("plan"):  # the call that made it is over
            return export_ranked(
                self.outlook,
                self.value,
                Path(out),
                rank=rank,
                to=to,
                launcher=launcher,
                note=note or (lambda _: None),
            )

    def page(self, out: str | Path) -> Path:
        """Write the plan as one HTML file that needs no network.

        Raises:
            StudyError: The file cannot be written, or is there and none of ours.
        """
        from autotune.app.pages import write_plan  # pandas

        return write_plan(self.value, Path(out), top=self.top)


@dataclass(frozen=True, kw_only=True, repr=False)
class PredictedCandidate(Shown[One]):
    """One candidate, and what is predicted of it."""

    @property
    def knobs(self) -> Mapping[str, Any]:
        """Knob -> value, those that were not named included."""
        return dict(self.value.candidate.values)

    @property
    def step_time_s(self) -> float:
        return self.value.step_time_s

    @property
    def samples_per_s(self) -> float:
        return self.value.outlook.job.global_batch / self.value.step_time_s

    @property
    def peak_memory_bytes(self) -> float:
        """Memory of the fullest accelerator."""
        return self.value.peak_memory_bytes

    @property
    def fit_probability(self) -> float:
        """Probability that this is within its memory."""
        return self.value.fit_probability

    @property
    def is_legal(self) -> bool:
        """Whether no rule refuses it; `value.violations` says why one does."""
        return not self.value.violations


def plan(
    *,
    top: int = 10,
    min_fit: float | None = None,
    what_if: str | Sequence[str] = (),
    count: bool = False,
    **flags: Unpack[PlanFlags],
) -> Planned:
    """Rank the candidates for a fleet by the cost model, as `autotune plan` does.

    Args:
        top: Candidates to show.
        min_fit: Probability to fit, below which a candidate comes last; None: 0.9, or less,
            down to 0.5, where that makes the first much faster, or no slower than a baseline.
        what_if: Changes of the fleet to compare with, `KEY=VALUE` each.
        count: Judge every candidate, to say how many are legal.
        flags: Keys of the job, its file (`job`), the fleet, and who is told (`note`). A job from
            outside this folder is refused but with `trust_job`, or where `ask` is answered by yes.

    Raises:
        JobError: A flag or what it names is not valid.
        FleetError: The accelerator of this machine is in no table.
        NothingFeasibleError: The rules refuse every candidate.

    Example:
        >>> job = dict(model="llama-3-8b", seq_len="8k", global_batch=256, world=64, gpu="H100")
        >>> found = autotune.plan(**job)
        >>> found.best["zero.stage"]
        2
        >>> found.table[["rank", "pred_step_time_s", "pred_fit_probability"]].shape
        (10, 3)
    """
    if top < 1:
        raise JobError(f"{flag('top')} {top}: not above zero", "the number of candidates to show")
    outlook = _outlook(flags)
    if count:
        outlook = dataclasses.replace(outlook, lattice=outlook.lattice.counted())
    what_if = each_of(what_if)
    found = rank_lattice(outlook, min_fit=_limit(min_fit), what_if=what_if, top=top)
    return Planned(
        value=found,
        show=lambda console: print_ranking(console, found, top=top),
        data=lambda: ranking_as_dict(found, found.shown(top)),
        outlook=outlook,
        top=top,
    )


def explain(
    *settings: Settings, min_fit: float | None = None, **flags: Unpack[ExplainFlags]
) -> PredictedCandidate[Explained]:
    """Explain why a candidate is refused, or ranked where it is, as `autotune explain` does.

    Settings are `"zero.stage=1"` each, or a mapping of them; the other knobs have the base
    configuration's values or the engine's defaults. Other arguments, `min_fit` among them, and
    errors are those of `plan`.

    Example:
        >>> found = autotune.explain("zero.stage=1", "tp=3", **job)
        >>> found.is_legal
        False
    """
    outlook = _outlook(flags)
    found = explain_candidate(outlook, _written(settings), min_fit=_limit(min_fit))
    return PredictedCandidate.of(found, print_explained, explained_as_dict)


@overload
def estimate(
    *settings: Settings, trace: Literal[False] = False, **flags: Unpack[ExplainFlags]
) -> PredictedCandidate[Estimated]: ...


@overload
def estimate(
    *settings: Settings, trace: bool = False, **flags: Unpack[ExplainFlags]
) -> "PredictedCandidate[Estimated] | Shown[TracedEstimate]": ...


def estimate(
    *settings: Settings, trace: bool = False, **flags: Unpack[ExplainFlags]
) -> "PredictedCandidate[Estimated] | Shown[TracedEstimate]":
    """Predict step time and memory of a candidate, as `autotune estimate` does.

    Settings are as of `explain`. With `trace` the memory of a step of the model's own code is
    traced as well. Other arguments and errors are those of `plan`.

    Example:
        >>> found = autotune.estimate("zero.stage=3", "micro_batch=2", **job)
        >>> 0 < found.peak_memory_bytes < 200e9
        True
    """
    outlook = _outlook(flags, ranks_all=False)
    if trace:
        from autotune.planning.traced import trace_estimate  # torch
        from autotune.report.candidates.traced import print_traced, traced_as_dict

        return Shown.of(trace_estimate(outlook, _written(settings)), print_traced, traced_as_dict)
    found = estimate_candidate(outlook, _written(settings))
    return PredictedCandidate.of(found, print_estimate, estimate_as_dict)


def estimate_rows(
    rows: "pd.DataFrame | str | Path", *, accelerators: str | Path | None = None
) -> "pd.DataFrame":
    """Predict the runs of a table, as `autotune estimate --rows` does.

    Args:
        rows: A frame, or a CSV file; docs/cost.md names the columns.
        accelerators: A file of more accelerators.

    Returns:
        The table with the columns of predictions (`pred_...`), what was `assumed`, and the
        `reason` why a row is not predicted. Its index is that of `rows`.

    Raises:
        JobError: A file cannot be read.

    Example:
        autotune.estimate_rows("runs.csv")[["pred_step_time_s", "reason"]]
    """
    from autotune.app.estimate import predict_frame  # pandas

    return predict_frame(
        Path(rows) if isinstance(rows, str) else rows,
        accelerators=None if accelerators is None else Path(accelerators),
    )


def taught_by(knowledge: Path | None, is_unused: bool, *, say: Say) -> Sequence[Lesson]:
    """What trials taught, by the file of the user's or this machine's; empty where unused."""
    file = file_for(knowledge, is_used=not is_unused)
    try:
        return () if file is None else read_lessons(file)
    except StudyError as error:
        say(f"predictions are not corrected by trials: {error.message}")
        return ()


def _limit(min_fit: float | None) -> float | None:
    if min_fit is None or 0 <= min_fit <= 1:
        return min_fit
    raise JobError.of("app.no_probability", value=min_fit)


def _written(settings: Sequence[Settings]) -> list[str]:
    found: list[str] = []
    for one in settings:
        if isinstance(one, str):
            found.append(one)
        else:
            found += [f"{name}={format_value(value)}" for name, value in one.items()]
    return found


def _outlook(flags: Mapping[str, Any], *, ranks_all: bool = True) -> Outlook:
    """The legal candidates of a job on the fleet that some flags describe, once it is agreed to.

    Says what the predictions go by where the user named a table, and which model they are about
    where the user named none.
    """
    say: Say = flags.get("note") or (lambda _: None)
    job = flags.get("job")
    names = keys_of("plan")
    keys = {name: value for name, value in flags.items() if name in names}
    text = agree_to_job(
        None if job is None else Path(job),
        keys,
        is_trusted=flags.get("trust_job", False),
        say=say,
        ask=flags.get("ask"),
    )
    lessons = taught_by(flags.get("knowledge"), flags.get("no_knowledge", False), say=say)
    wishes = FleetWishes(**{f.name: flags.get(f.name) for f in dataclasses.fields(FleetWishes)})
    if "model" not in given_keys(text, keys):  # whatever is refused of it below
        say(
            f"no {flag('model')} is given: this is about a small built-in model; "
            f"a study's own job is {flag('job')} results/STUDY/job.yaml"
        )
    outlook = open_outlook(text, keys, wishes, lessons=lessons, ranks_all=ranks_all)
    if outlook.price is not None and outlook.price_per_hour is None:
        name = outlook.environment.device_name
        say(f"{flag('price')} {outlook.price}: it has no price of {name}")
    if outlook.job.accelerators is not None:
        say(what_predicts(outlook.environment, outlook.table, outlook.job.accelerators))
    return outlook
