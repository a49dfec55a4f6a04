"""HTML reports of a study, also while it is searched, and of several studies compared."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune.app.studies import locate
from autotune.base.errors import AutotuneError, StudyError
from autotune.base.files import refuse_foreign, write_text
from autotune.base.templates import Templates
from autotune.contract import read_bounded
from autotune.job.job import JobFile, read_job_file
from autotune.planning.ranking import Ranking
from autotune.record.study import Study
from autotune.report.candidates.page import render_plan
from autotune.report.compare.comparison import MAX_RUNS, StudyComparison, compare, names_of
from autotune.report.page.page import (
    END_OF_NOW,
    NOW,
    render_comparison,
    render_page,
    render_running,
)
from autotune.report.story import read_story
from autotune.search.base import Observer, Snapshot

_SHARE_OF_TIME = 0.01
"""Share of a search's time that drawing its page may take."""
_MARK = "<!-- a page of autotune -->\n"
"""Begins every page, whatever the templates make of it."""
_BY = "as a page by autotune"


class PageWriter(Observer):
    """Keeps the page of a running search up to date; hands everything on to another observer.

    The page is written when a trial has ended. A search that runs one trial at a time shows that
    before it starts the next, so that no measurement shares the processor with it. What runs now
    is put into the page that is there, in milliseconds. The longer drawing takes, the rarer it is.
    """

    def __init__(self, study: Study, observer: Observer) -> None:
        self._study = study
        self._observer = observer
        self._shown: dict[str, object] = {}
        """Part of the page -> what it was last written for."""
        self._not_before_s = {"page": 0.0, "running": 0.0}
        self._is_broken = False
        self._is_told = False

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Hand it on, and write the page where it shows something new."""
        self._observer.on_snapshot(snapshot)
        running = tuple(trial.number for trial in snapshot.running)
        if not self._show("page", (snapshot.stage, dict(snapshot.counts)), snapshot):
            self._show("running", running, snapshot)

    def on_note(self, note: str) -> None:
        self._observer.on_note(note)

    def close(self) -> None:
        """Write the page of the search that has ended; none of one that ended before it began."""
        if self._study.state_file.exists():
            self._write("page", None)

    def _show(self, part: str, state: object, snapshot: Snapshot) -> bool:
        """Write a part where it shows something new; False: it does not, or not yet."""
        if state == self._shown.get(part) or time.monotonic() < self._not_before_s[part]:
            return False
        self._shown[part] = state
        self._write(part, snapshot)
        return True

    def _write(self, part: str, snapshot: Snapshot | None) -> None:
        if self._is_broken:
            return
        page = self._study.page_file
        begun_s = time.monotonic()
        try:
            if part == "page" or not page.exists():  # who deleted it gets it anew
                write_page(self._study, page, snapshot=snapshot)
            elif snapshot is not None:
                _write_running(self._study, snapshot)
        # Hours of trials must not end because a page cannot be drawn or written.
        except Exception as error:
            message = error.message if isinstance(error, AutotuneError) else f"{error!r}"
            self._is_broken = True
            self._observer.on_note(f"{page.name} is not kept up: {message.splitlines()[0]}")
            return
        now_s = time.monotonic()
        self._not_before_s[part] = now_s + (now_s - begun_s) / _SHARE_OF_TIME
        if snapshot is not None and not self._is_told:
            self._is_told = True
            self._observer.on_note(f"{page} shows this search and reloads itself")


def write_page(study: Study, out: Path, *, snapshot: Snapshot | None = None) -> Path:
    """Write a study's page, whole or not at all.

    With the snapshot of a running search, the page says how it goes and loads itself again.

    Raises:
        StudyError: The record cannot be read, or the file cannot be written or is none of ours.
        RenderError: A template of the user's does not render.
    """
    story = read_story(study, running=snapshot, job=_job(study))
    text = render_page(story, _templates(study))
    # A study that was moved away while it runs must not begin again in its old place.
    return _write(out, text, makes_folder=out != study.page_file)


def _write_running(study: Study, snapshot: Snapshot) -> None:
    """Put what runs now into the page that is there; one of another shape stays as it is."""
    page, context = study.page_file, study.facts().context
    text = read_bounded(page).decode("utf-8")
    before, begins, rest = text.partition(NOW)
    _, ends, after = rest.partition(END_OF_NOW)
    if ends and context is not None:
        now = render_running(snapshot, context, _templates(study))
        _write(page, f"{before}{begins}{now}{ends}{after}", makes_folder=False)


def compare_studies(runs: Sequence[str], results: Path) -> StudyComparison:
    """Compare studies, by name in `results` or by folder, with the first of them.

    Raises:
        StudyError: One is not there or cannot be read, or there are too few or too many.
    """
    found = [locate(run, results) for run in runs]
    folders = [study.folder.resolve() for study in found]
    if len(set(folders)) < 2 or len(folders) != len(set(folders)):
        raise StudyError.of("app.too_few_studies", asked=" ".join(("compare", *runs)))
    if len(found) > MAX_RUNS:
        raise StudyError(f"compare: {len(found)} studies", f"name at most {MAX_RUNS}")
    stories = (read_story(study, job=_job(study)) for study in found)
    return compare(dict(zip(names_of(folders), stories, strict=True)))


def write_comparison(comparison: StudyComparison, out: Path) -> Path:
    """Write the comparison as one HTML file.

    Raises:
        StudyError: The file cannot be written, or is there and none of ours.
    """
    return _write(out, render_comparison(comparison, Templates()))


def write_plan(ranking: Ranking, out: Path, *, top: int) -> Path:
    """Write a plan as one HTML file.

    Raises:
        StudyError: The file cannot be written, or is there and none of ours.
    """
    return _write(out, render_plan(ranking, Templates(), top=top))


def _write(out: Path, text: str, *, makes_folder: bool = True) -> Path:
    """Write a page; one of a study, whose folder is there, over whatever stands in its place."""
    if makes_folder:
        refuse_foreign(out, _MARK.encode(), _BY)
    hint = "name another file, or free some space"
    text = _MARK + text.removeprefix(_MARK)
    write_text(out, text, error=StudyError, hint=hint, makes_folder=makes_folder)
    return out


def _templates(study: Study) -> Templates:
    """The user's own before the shipped ones, where their folder is still there."""
    try:
        named = read_job_file(study.job_file).get("templates")
    except AutotuneError:
        named = None
    folder = Path(str(named)) if named else None
    return Templates(folder if folder is not None and folder.is_dir() else None)


def _job(study: Study) -> dict[str, Any] | None:
    """The job's file as JSON; None where it cannot be read any more."""
    try:
        return JobFile.model_validate(read_job_file(study.job_file)).model_dump(mode="json")
    except (AutotuneError, ValidationError):
        return None
