"""The Python API: what the commands do, with the words of their flags, as values.

`autotune.search(model="llama-3.2-1b", seq_len=2048, global_batch=32)` is the command with those
flags. Errors are raised (`autotune.base.errors`), nothing is asked, nothing ends the program.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack

import pandas as pd
from rich.console import Console

from autotune import DEFAULT_ENGINE
from autotune.app.check import CheckFlags, check_files
from autotune.app.consent import agree_to_job
from autotune.app.pages import compare_studies
from autotune.app.planning import open_outlook
from autotune.app.run import search as run
from autotune.app.session import obtained_fleet, open_session
from autotune.app.steering import prospect
from autotune.app.studies import locate
from autotune.base.errors import NothingFeasibleError
from autotune.check.run import CheckRun
from autotune.cost.knowledge import default_file
from autotune.fleet.options import options_of
from autotune.planning.explained import (
    Estimated,
    Explained,
    estimate_candidate,
    explain_candidate,
)
from autotune.planning.outlook import FleetWishes, Outlook
from autotune.planning.ranking import MIN_FIT, Ranking, rank_lattice
from autotune.record.table import load_table
from autotune.report.candidates.explained import (
    estimate_as_dict,
    explained_as_dict,
    print_estimate,
    print_explained,
)
from autotune.report.candidates.ranking import print_ranking, ranking_as_dict
from autotune.report.check.text import print_run
from autotune.report.compare.comparison import StudyComparison
from autotune.report.compare.terminal import print_comparison
from autotune.report.results.study import StudyReport, read_report
from autotune.report.terminal.study import print_report
from autotune.search.base import Observer, Snapshot

_WIDTH = 100
_PRE = "<pre style='line-height:1.2;overflow-x:auto'>{code}</pre>"

Value = TypeVar("Value")
Progress = Literal["tqdm"] | Callable[[Snapshot], None]


class JobFlags(TypedDict, total=False):
    """Keys of a job; meanings and units are those of docs/job.md and of the flags."""

    model: str
    seq_len: int
    global_batch: int
    world: int
    precision: str
    space: str
    memory_limit: str
    network_topology: str


class SearchFlags(JobFlags, total=False):
    """Keys of a job that is searched."""

    lora_rank: int
    lengths: str
    engine: str
    objective: str
    objective_floor: float
    sampler: str
    trials: int
    fidelity: str
    budget: str
    patience: int
    gpu_hours: float
    price: str | float
    head_room: float
    trial_timeout: str
    baseline: str | Path
    base_config: str | Path
    templates: str | Path
    nvme_path: str | Path
    accelerators: str | Path
    megatron_path: str | Path
    megatron_arguments: str
    diagnose: bool
    guard_steps: int
    allow_loss_drift: bool
    seed: int
    study: str


class FleetFlags(JobFlags, total=False):
    """Keys of a job and of the fleet that it is predicted for."""

    gpu: str
    per_node: int
    network: str
    nvlink: str
    accelerators: str | Path


@dataclass(frozen=True, kw_only=True)
class Shown(Generic[Value]):
    """A result, which a notebook and a terminal show as the command does."""

    value: Value
    """The result itself."""
    show: Callable[[Console], None]
    data: Callable[[], Any]

    def as_dict(self) -> Any:
        """The same as `--json` prints."""
        return self.data()

    def __str__(self) -> str:
        out = io.StringIO()
        self.show(Console(file=out, width=_WIDTH, color_system=None, force_jupyter=False))
        return out.getvalue().rstrip()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        console = Console(file=io.StringIO(), width=_WIDTH, record=True, force_jupyter=False)
        self.show(console)
        return console.export_html(inline_styles=True, code_format=_PRE)


@dataclass(frozen=True, kw_only=True, repr=False)
class Searched(Shown[StudyReport]):
    """What a search found."""

    @property
    def speedup(self) -> float | None:
        """Speed of the best over the baseline's; None where there is none."""
        answer = self.value.answer
        return None if answer is None or answer.speedup is None else answer.speedup.ratio

    @property
    def best(self) -> Mapping[str, Any] | None:
        """Knob -> value of the best candidate; None where there is none."""
        row = self.value.best_row
        return None if row is None else dict(row.candidate.values)

    @property
    def folder(self) -> Path:
        """The study's folder; `best` in it has the files."""
        return self.value.folder

    @property
    def table(self) -> pd.DataFrame:
        """One row per trial, as of `autotune.load`."""
        return load_table(self.folder)


def search(
    *,
    job: str | Path | None = None,
    results: str | Path = "results",
    fleet: str = "local",
    fleet_option: Sequence[str] = (),
    fresh: bool = False,
    force: bool = False,
    trust_job: bool = False,
    no_knowledge: bool = False,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    **flags: Unpack[SearchFlags],
) -> Searched:
    """Search for the fastest configuration, as `autotune search` does; the same call resumes.

    Args:
        job: A job as YAML; flags come before its keys.
        results: Folder of all studies.
        fleet: Who runs the trials, such as `local`, `hostfile:FILE` or `simulate:8xH100`.
        fleet_option: Of other machines, `KEY=VALUE` each.
        fresh: Whether to start anew; the old study is kept beside it.
        force: Whether to search even where no trial is predicted to succeed.
        trust_job: Whether a job from outside this folder may run and read what it names.
        no_knowledge: Whether to learn from no other study, and teach none.
        progress: `tqdm`, or what is called with each `Snapshot` of the search.
        note: Called with everything worth saying.
        flags: Keys of the job.

    Raises:
        AutotuneError: As the command says, with a message and a hint.
    """
    given, say = dict(flags), note or _nothing
    file = None if job is None else Path(job)
    agreed = agree_to_job(file, given, is_trusted=trust_job, say=say, ask=None)
    options = options_of(fleet_option)
    with obtained_fleet(fleet, options, say=say, agree=say) as held:
        session = open_session(
            file, given, results=Path(results), fleet=held, options=options, agreed=agreed
        )
        expected = prospect(session, fresh=fresh)
        if expected is not None and expected.problem and not force:
            raise NothingFeasibleError(expected.problem, f"{expected.nearest}; or force=True")
        with _Caller(progress, say) as observer:
            ending = run(
                session,
                observer,
                fresh=fresh,
                knowledge=None if no_knowledge else default_file(),
            )
    if ending.error is not None:
        raise ending.error
    report = read_report(ending.answer.study)
    return Searched(
        value=report,
        show=lambda console: print_report(console, report),
        data=ending.answer.to_dict,
    )


def _outlook(job: str | Path | None, engine: str, flags: Mapping[str, Any]) -> Outlook:
    """The legal candidates of a job on the fleet that some flags describe."""
    own = {name: value for name, value in flags.items() if name in FleetWishes.__annotations__}
    if isinstance(own.get("accelerators"), str):
        own["accelerators"] = Path(own["accelerators"])
    keys = {name: value for name, value in flags.items() if name not in own}
    file = None if job is None else Path(job)
    return open_outlook(file, keys, FleetWishes(**own), engine=engine)


def plan(
    *,
    job: str | Path | None = None,
    engine: str = DEFAULT_ENGINE,
    top: int = 10,
    min_fit: float = MIN_FIT,
    price: float | None = None,
    what_if: Sequence[str] = (),
    baseline: str | Path | None = None,
    **flags: Unpack[FleetFlags],
) -> Shown[Ranking]:
    """Rank the candidates for a fleet by the cost model, as `autotune plan` does.

    Raises:
        AutotuneError: As the command says.
    """
    own = {} if baseline is None else {"baseline": str(baseline)}
    outlook = _outlook(job, engine, {**flags, **own})
    found = rank_lattice(outlook, min_fit=min_fit, price_per_hour=price, what_if=what_if)
    ranks = range(1, min(top, len(found.candidates)) + 1)
    return Shown(
        value=found,
        show=lambda console: print_ranking(console, found, top=top),
        data=lambda: ranking_as_dict(found, ranks),
    )


def explain(
    *settings: str,
    job: str | Path | None = None,
    engine: str = DEFAULT_ENGINE,
    **flags: Unpack[FleetFlags],
) -> Shown[Explained]:
    """Explain why a candidate of `knob=value` settings is refused, or ranked where it is.

    Raises:
        AutotuneError: As the command says.
    """
    found = explain_candidate(_outlook(job, engine, flags), settings)
    return Shown(
        value=found,
        show=lambda console: print_explained(console, found),
        data=lambda: explained_as_dict(found),
    )


def estimate(
    *settings: str,
    job: str | Path | None = None,
    engine: str = DEFAULT_ENGINE,
    **flags: Unpack[FleetFlags],
) -> Shown[Estimated]:
    """Predict step time and memory of a candidate of `knob=value` settings.

    Raises:
        AutotuneError: As the command says.
    """
    found = estimate_candidate(_outlook(job, engine, flags), settings)
    return Shown(
        value=found,
        show=lambda console: print_estimate(console, found),
        data=lambda: estimate_as_dict(found),
    )


def check(*files: str | Path, fix: bool = False, **flags: Any) -> Shown[CheckRun]:
    """Say what is wrong with configurations, as `autotune check` does; `fix` writes the fixes.

    Args:
        files: Files, folders or patterns.
        fix: Whether to write the fixes.
        flags: Fields of `CheckFlags`: `world`, `launch`, `consumer`, `deepspeed_version`, ...

    Raises:
        AutotuneError: As the command says.
    """
    found = check_files([str(file) for file in files], CheckFlags(**flags), fix=fix)
    return Shown(
        value=found,
        show=lambda console: print_run(console, found, fixed=fix, quiet=False, strict=False),
        data=lambda: found.to_dicts(fixed=fix),
    )


def compare(*runs: str | Path, results: str | Path = "results") -> Shown[StudyComparison]:
    """Compare studies, by name or by folder; ratios are over the first one.

    Raises:
        StudyError: One is not there or cannot be read, or there are too few or too many.
    """
    found = compare_studies([str(one) for one in runs], Path(results))
    return Shown(
        value=found, show=lambda console: print_comparison(console, found), data=found.as_dict
    )


def load(study: str | Path, results: str | Path = "results") -> pd.DataFrame:
    """The table of a study as a pandas frame, one row per trial.

    Columns are those of docs/table.md; `frame.attrs` holds their `units` and `meanings`.

    Args:
        study: Name of a study, or its folder.
        results: Folder of all studies, for a name.

    Raises:
        StudyError: There is no such study, or its record cannot be read.
    """
    return load_table(locate(str(study), Path(results)).folder)


class _Caller(Observer):
    """Shows a search to whoever called it."""

    def __init__(self, progress: Progress | None, note: Callable[[str], None]) -> None:
        self._progress, self._note = progress, note
        self._bar: Any = None

    def __enter__(self) -> "_Caller":
        if self._progress == "tqdm":
            from tqdm.auto import tqdm  # only where it is asked for

            self._bar = tqdm(unit="trial")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Hand it on, or draw the bar."""
        if self._bar is not None:
            self._bar.total = snapshot.n_budget
            self._bar.n = min(snapshot.n_done, snapshot.n_budget)
            best = snapshot.best
            told = "" if best is None else f", best {best.samples_per_s:.3g} samples/s"
            self._bar.set_description(f"{snapshot.stage.value}{told}")
        elif callable(self._progress):
            self._progress(snapshot)

    def on_note(self, note: str) -> None:
        """Hand it on."""
        self._note(note)


def _nothing(_: str) -> None:
    """Where nobody wants to hear it."""
