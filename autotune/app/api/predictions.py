"""`autotune.plan`, `explain`, `estimate`, `estimate_rows`: what the cost model says, as values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from autotune import DEFAULT_ENGINE
from autotune.app.api.values import FleetFlags, Shown, each_of, texts
from autotune.app.planning import export_ranked, open_agreed_outlook
from autotune.base.errors import JobError
from autotune.contract import KnobValue
from autotune.cost.knowledge import file_for
from autotune.planning.choices import MIN_FIT
from autotune.planning.explained import (
    Estimated,
    Explained,
    estimate_candidate,
    explain_candidate,
)
from autotune.planning.outlook import FleetWishes, Outlook
from autotune.planning.ranking import Ranking, rank_lattice
from autotune.report.candidates.explained import (
    estimate_as_dict,
    explained_as_dict,
    print_estimate,
    print_explained,
)
from autotune.report.candidates.ranking import print_ranking, ranking_as_dict
from autotune.space.candidate import format_value

if TYPE_CHECKING:  # heavy, and only for some of these
    import pandas as pd

    from autotune.planning.probed import ProbedEstimate
    from autotune.planning.traced import TracedEstimate

Settings = str | Mapping[str, KnobValue]
"""`knob=value`, or a mapping of them, such as the `best` of a search."""
Note = Callable[[str], None]
Ask = Callable[[str], bool]
One = TypeVar("One", bound=Estimated)


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
        return pd.DataFrame(
            [
                {
                    "rank": row["rank"],
                    **row["candidate"],
                    **{k: v for k, v in row.items() if k.startswith("pred_") and _is_cell(v)},
                }
                for row in rows
            ]
        )

    def export(
        self,
        out: str | Path,
        *,
        rank: int = 1,
        to: str | None = None,
        launcher: str | None = None,
    ) -> list[Path]:
        """Write the files of the candidate of a rank to a folder.

        Raises:
            JobError: There is no such rank, dialect or launcher.
            RenderError: The folder cannot be written, or the dialect cannot say it.
        """
        return export_ranked(self.outlook, self.value, rank, Path(out), to, launcher)


@dataclass(frozen=True, kw_only=True, repr=False)
class PredictedCandidate(Shown[One]):
    """One candidate, and what is predicted of it."""

    @property
    def knobs(self) -> Mapping[str, Any]:
        """Knob -> value, those that were not named included."""
        return dict(self.value.knobs)

    @property
    def step_time_s(self) -> float:
        """Time of an optimizer step."""
        return self.value.step_time_s

    @property
    def samples_per_s(self) -> float:
        """Global batch over the step time."""
        return self.value.job.global_batch / self.value.step_time_s

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
    job: str | Path | None = None,
    engine: str = DEFAULT_ENGINE,
    top: int = 10,
    min_fit: float = MIN_FIT,
    price: float | None = None,
    what_if: str | Sequence[str] = (),
    baseline: str | Path | None = None,
    count: bool = False,
    trust_job: bool = False,
    note: Note | None = None,
    ask: Ask | None = None,
    **flags: Unpack[FleetFlags],
) -> Planned:
    """Rank the candidates for a fleet by the cost model, as `autotune plan` does.

    Args:
        job: Job file (YAML). Flags override its keys.
        engine: What trains: `deepspeed` or `megatron`.
        top: Candidates to show.
        min_fit: Probability to fit, below which a candidate comes last.
        price: Price of one accelerator for an hour.
        what_if: Changes of the fleet to compare with, `KEY=VALUE` each.
        baseline: Your own configuration, to compare the best with.
        count: Judge every candidate, to say how many are legal.
        trust_job: Whether a job from outside this folder may run and read what it names.
        note: Called with what is worth saying.
        ask: Asked whether such a job is to be trusted; None: it is refused.
        flags: Keys of the job and of the fleet.

    Raises:
        JobError: A flag or what it names is not valid.
        FleetError: The accelerator of this machine is in no table.
        NothingFeasibleError: The rules refuse every candidate.
    """
    if price is not None and not price > 0:
        raise JobError(f"--price {price:g}: not above zero", "the price of one accelerator hour")
    if top < 1:
        raise JobError(f"--top {top}: not above zero", "the number of candidates to show")
    outlook = _outlook(
        job, engine, {**flags, **texts(baseline=baseline)}, trust_job=trust_job, note=note, ask=ask
    )
    if count:
        outlook = replace(outlook, lattice=outlook.lattice.counted())
    wishes = each_of(what_if)
    found = rank_lattice(outlook, min_fit=min_fit, price_per_hour=price, what_if=wishes, top=top)
    ranks = range(1, min(top, len(found.choices)) + 1)
    return Planned(
        value=found,
        show=lambda console: print_ranking(console, found, top=top),
        data=lambda: ranking_as_dict(found, ranks),
        outlook=outlook,
        top=top,
    )


def explain(
    *settings: Settings,
    job: str | Path | None = None,
    engine: str = DEFAULT_ENGINE,
    trust_job: bool = False,
    note: Note | None = None,
    ask: Ask | None = None,
    **flags: Unpack[FleetFlags],
) -> PredictedCandidate[Explained]:
    """Explain why a candidate is refused, or ranked where it is, as `autotune explain` does.

    Settings are `"zero.stage=1"` each, or a mapping of them; the other knobs have the base
    configuration's values or the engine's defaults. Other arguments and errors are those of
    `plan`.
    """
    outlook = _outlook(job, engine, flags, trust_job=trust_job, note=note, ask=ask)
    found = explain_candidate(outlook, _written(settings))
    return PredictedCandidate(
        value=found,
        show=lambda console: print_explained(console, found),
        data=lambda: explained_as_dict(found),
    )


@overload
def estimate(
    *settings: Settings,
    job: str | Path | None = None,
    engine: str = DEFAULT_ENGINE,
    trace: Literal[False] = False,
    probe_memory: Literal[False] = False,
    trust_job: bool = False,
    note: Note | None = None,
    ask: Ask | None = None,
    **flags: Unpack[FleetFlags],
) -> PredictedCandidate[Estimated]: ...


@overload
def estimate(
    *settings: Settings,
    job: str | Path | None = None,
    engine: str = DEFAULT_ENGINE,
    trace: bool = False,
    probe_memory: bool = False,
    trust_job: bool = False,
    note: Note | None = None,
    ask: Ask | None = None,
    **flags: Unpack[FleetFlags],
) -> "PredictedCandidate[Estimated] | Shown[TracedEstimate] | Shown[ProbedEstimate]": ...


def estimate(
    *settings: Settings,
    job: str | Path | None = None,
    engine: str = DEFAULT_ENGINE,
    trace: bool = False,
    probe_memory: bool = False,
    trust_job: bool = False,
    note: Note | None = None,
    ask: Ask | None = None,
    **flags: Unpack[FleetFlags],
) -> "PredictedCandidate[Estimated] | Shown[TracedEstimate] | Shown[ProbedEstimate]":
    """Predict step time and memory of a candidate, as `autotune estimate` does.

    Settings are as of `explain`. With `trace` the memory of a step of the model's own code is
    traced as well; with `probe_memory` single ranks of Megatron run on this machine's CPU, each
    alone. Other arguments and errors are those of `plan`.
    """
    if trace and probe_memory:
        raise JobError("--trace and --probe-memory are both given", "name one of them")
    outlook = _outlook(
        job, engine, flags, trust_job=trust_job, note=note, ask=ask, ranks_all=False
    )
    if probe_memory:
        from autotune.planning.probed import probe_estimate
        from autotune.report.candidates.probed import print_probed, probed_as_dict

        probed = probe_estimate(outlook, _written(settings))
        return Shown(
            value=probed,
            show=lambda console: print_probed(console, probed),
            data=lambda: probed_as_dict(probed),
        )
    if trace:
        from autotune.planning.traced import trace_estimate  # torch
        from autotune.report.candidates.traced import print_traced, traced_as_dict

        traced = trace_estimate(outlook, _written(settings))
        return Shown(
            value=traced,
            show=lambda console: print_traced(console, traced),
            data=lambda: traced_as_dict(traced),
        )
    found = estimate_candidate(outlook, _written(settings))
    return PredictedCandidate(
        value=found,
        show=lambda console: print_estimate(console, found),
        data=lambda: estimate_as_dict(found),
    )


def estimate_rows(
    rows: "pd.DataFrame | str | Path",
    *,
    accelerators: str | Path | None = None,
    constants: str | Path | None = None,
) -> "pd.DataFrame":
    """Predict the runs of a table, as `autotune estimate --rows` does.

    Args:
        rows: A frame, or a CSV file; docs/cost.md names the columns.
        accelerators: A file of more accelerators.
        constants: A file of other constants than the shipped ones.

    Returns:
        The table with the columns of predictions (`pred_...`), what was `assumed`, and the
        `reason` why a row is not predicted. Its index is that of `rows`.

    Raises:
        JobError: A file cannot be read.
    """
    from autotune.app.estimate import predict_frame  # pandas

    return predict_frame(
        Path(rows) if isinstance(rows, str) else rows,
        accelerators=None if accelerators is None else Path(accelerators),
        constants=None if constants is None else Path(constants),
    )


def _written(settings: Sequence[Settings]) -> list[str]:
    """Settings as the command takes them."""
    found: list[str] = []
    for one in settings:
        if isinstance(one, str):
            found.append(one)
        else:
            found += [f"{name}={format_value(value)}" for name, value in one.items()]
    return found


def _outlook(
    job: str | Path | None,
    engine: str,
    flags: Mapping[str, Any],
    *,
    trust_job: bool,
    note: Note | None,
    ask: Ask | None,
    ranks_all: bool = True,
) -> Outlook:
    """The legal candidates of a job on the fleet that some flags describe."""
    own = {name: value for name, value in flags.items() if name in FleetWishes.__annotations__}
    if own.get("accelerators") is not None:
        own["accelerators"] = Path(own["accelerators"])
    keys = {name: value for name, value in flags.items() if name not in own}
    no_knowledge, knowledge = keys.pop("no_knowledge", False), keys.pop("knowledge", None)
    return open_agreed_outlook(
        None if job is None else Path(job),
        texts(**keys),
        FleetWishes(**own),
        engine=engine,
        knowledge=file_for(
            None if knowledge is None else Path(knowledge), is_used=not no_knowledge
        ),
        is_trusted=trust_job,
        say=note or (lambda _: None),
        ask=ask,
        ranks_all=ranks_all,
    )


def _is_cell(value: object) -> bool:
    return not isinstance(value, Mapping)
