"""`autotune.search`: a search as a call that returns what it found."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from rich.console import Console

from autotune.app.api.calls import each_of
from autotune.app.api.keys import SearchKeys
from autotune.app.exports import export_study
from autotune.app.searching import answer_as_dict, run_searches
from autotune.base.flags import called
from autotune.base.text import Say
from autotune.cost.knowledge import file_for
from autotune.fleet.options import options_of
from autotune.record.study import Study
from autotune.record.table import TrialTable, load_table
from autotune.record.worth import Ladder
from autotune.report.shown import Shown
from autotune.report.story import Story, read_story
from autotune.report.terminal.live import NotebookView, View, view_for
from autotune.report.terminal.study import print_answer
from autotune.search.base import Observer, Snapshot
from autotune.search.session import Session

Progress = bool | Callable[[Snapshot], None]


@dataclass(frozen=True, kw_only=True, repr=False)
class Searched(Shown[Story]):
    """What a search found."""

    ladder: Ladder | None = None
    """What each change to the best is worth; None: it was not asked for, or there is no gain."""

    @property
    def speedup(self) -> float | None:
        """Speed of the best over the baseline's; None where there is none."""
        answer = self.value.answer
        return None if answer is None or answer.speedup is None else answer.speedup.ratio

    @property
    def speedup_interval(self) -> tuple[float, float] | None:
        """Ends of its 95% interval; None where there is none."""
        answer = self.value.answer
        if answer is None or answer.speedup is None:
            return None
        return answer.speedup.low, answer.speedup.high

    @property
    def best(self) -> Mapping[str, Any] | None:
        """Knob -> value of the best candidate; None where there is none."""
        row = self.value.best_row
        return None if row is None else dict(row.candidate.values)

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended it; the same call goes on."""
        return self.value.answer is not None and self.value.answer.interrupted

    @property
    def folder(self) -> Path:
        return self.value.folder

    @property
    def table(self) -> TrialTable:
        """One row per trial, as of `autotune.load`."""
        return load_table(self.folder)

    def export(
        self, out: str | Path, *, to: str | None = None, launcher: str | None = None
    ) -> list[Path]:
        """Write the best one's files to a folder, as `autotune export` does.

        Raises:
            JobError: There is no such dialect or launcher.
            RenderError: The folder cannot be written, or the dialect cannot say it.
            StudyError: There is no best one.
        """
        study = Study(self.folder.parent, self.folder.name)
        with called("search"):  # the call that made it is over
            return export_study(study, Path(out), to=to, launcher=launcher)


def search(
    command: str | Sequence[str] = (),
    *,
    job: str | Path | None = None,
    results: str | Path = "results",
    fleet: str = "local",
    fleet_option: str | Sequence[str] = (),
    exclusive: bool = False,
    fresh: bool = False,
    force: bool = False,
    trust_job: bool = False,
    knowledge: str | Path | None = None,
    no_knowledge: bool = False,
    ladder: bool = False,
    progress: Progress | None = None,
    note: Say | None = None,
    **flags: Unpack[SearchKeys],
) -> Searched:
    """Search for the fastest configuration, as `autotune search` does; the same call resumes.

    Ctrl-C once ends it cleanly, and what was found is returned; twice ends it at once.

    Args:
        command: The command that starts your own training, which is tuned unchanged.
        job: Job file (YAML). Flags override its keys.
        results: Folder of all studies.
        fleet: Who runs the trials, such as `local`, `hostfile:FILE` or `simulate:8xH100`.
        fleet_option: Options of other machines, `KEY=VALUE` each.
        exclusive: Whether no two trials at a time share a PCIe switch or a network card.
        fresh: Whether to start anew; the old study is kept beside it.
        force: Whether to search even where no trial is predicted to succeed.
        trust_job: Whether a job from outside this folder may run and read what it names.
        knowledge: File of what earlier studies taught; None: the one in the user's cache.
        no_knowledge: Whether to learn from no other study, and teach none.
        ladder: Whether to say then what each change to the best one is worth.
        progress: Whether to show how it goes, in place; None: in a notebook alone. Or what is
            called with each `Snapshot` of the search.
        note: Called with everything worth saying.
        flags: Keys of the job.

    Raises:
        JobError: A flag or what it names is not valid.
        RenderError: A template or the base configuration does not render.
        StudyError: The results cannot be written there, or another search holds the study.
        FleetError: The devices are not there or failed, or a package that the engine needs.
        NothingFeasibleError: Nothing is legal, nothing ran within the limits, or no trial is
            predicted to succeed.

    Example:
        found = autotune.search(
            model="llama-3.2-1b", seq_len="2k", global_batch=32, budget="20m"
        )
        found.speedup, found.best  # over the baseline; knob -> value
        found.export("tuned", to="hf")
        autotune.search("deepspeed train.py --deepspeed ds_config.json")
    """
    say = note or (lambda _: None)
    ((answer, climbed),) = run_searches(
        flags,
        command=shlex.split(command) if isinstance(command, str) else tuple(command),
        job_file=None if job is None else Path(job),
        results=Path(results),
        fleet=fleet,
        options=options_of(each_of(fleet_option), exclusive=exclusive),
        fresh=fresh,
        force=force,
        trust_job=trust_job,
        knowledge=file_for(knowledge, is_used=not no_knowledge),
        with_ladder=ladder,
        is_one=True,
        say=say,
        watch=lambda session: _CallObserver(session, progress, say),
    )
    if answer.problem is not None:
        raise answer.problem.error
    report = read_story(answer.study)
    return Searched(
        value=report,
        show=lambda console: print_answer(console, report, climbed),
        data=lambda: answer_as_dict(answer, climbed),
        ladder=climbed,
    )


class _CallObserver(Observer):
    def __init__(self, session: Session, progress: Progress | None, note: Say) -> None:
        is_notebook = Console().is_jupyter
        context, objective = session.lattice.context, session.job.objective.name
        self._tell, self._note = progress if callable(progress) else None, note
        self._view: View | None = None
        if self._tell is None and (is_notebook if progress is None else progress):
            console = Console(stderr=not is_notebook)
            make = NotebookView if is_notebook else view_for
            self._view = make(console, context, objective)

    def __enter__(self) -> "_CallObserver":
        if self._view is not None:
            self._view.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._view is not None:
            self._view.__exit__(*error)

    def on_snapshot(self, snapshot: Snapshot) -> None:
        if self._view is not None:
            self._view.on_snapshot(snapshot)
        if self._tell is not None:
            self._tell(snapshot)

    def on_note(self, note: str) -> None:
        self._note(note)
