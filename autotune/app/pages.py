"""HTML reports: written on demand, and by every search while it runs."""

import time
from pathlib import Path

import pandas as pd

from autotune.base.errors import AutotuneError, StudyError
from autotune.base.files import is_foreign, write_whole
from autotune.base.templates import Templates
from autotune.contract import Outcome
from autotune.job.job import read_job_file
from autotune.record.facts import left_out_of
from autotune.record.study import Study
from autotune.record.table import make_table
from autotune.report.page.page import render_page
from autotune.report.results.study import StudyReport, read_report
from autotune.search.base import Observer, Snapshot, Stage

_SHARE_OF_TIME = 0.05
"""Share of a search's time that drawing its page may take."""
_MARK = "<!-- a page of autotune -->"
"""Begins every page, whatever the templates make of it."""


class PageWriter(Observer):
    """Keeps the page of a running search up to date; hands everything on to another observer.

    The page is written when a trial has ended. A search that runs one trial at a time shows that
    before it starts the next, so that no measurement shares the processor with it. A long record
    takes longer to draw: it is drawn less often.
    """

    def __init__(self, study: Study, observer: Observer) -> None:
        self._study = study
        self._observer = observer
        self._written: tuple[Stage, dict[Outcome, int]] | None = None
        self._not_before_s = 0.0
        self._is_broken = False
        self._is_told = False

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Hand it on, and write the page where it shows something new."""
        self._observer.on_snapshot(snapshot)
        state = (snapshot.stage, dict(snapshot.counts))
        if state == self._written or time.monotonic() < self._not_before_s:
            return
        self._written = state
        self._write(snapshot)

    def on_note(self, note: str) -> None:
        """Hand it on."""
        self._observer.on_note(note)

    def close(self) -> None:
        """Write the page of the search that has ended."""
        self._write(None)

    def _write(self, snapshot: Snapshot | None) -> None:
        if self._is_broken:
            return
        began_s = time.monotonic()
        page = self._study.page_file
        try:
            write_page(self._study, page, snapshot=snapshot)
        # Hours of trials must not end because a page cannot be drawn or written.
        except Exception as error:
            self._is_broken = True
            self._observer.on_note(f"{page.name} is not kept up: {_line_of(error)}")
            return
        if snapshot is not None and not self._is_told:
            self._is_told = True
            self._observer.on_note(f"{page} shows this search, and loads itself again")
        now_s = time.monotonic()
        self._not_before_s = now_s + (now_s - began_s) / _SHARE_OF_TIME


def write_page(study: Study, out: Path, *, snapshot: Snapshot | None = None) -> Path:
    """Write a study's page, whole or not at all.

    Args:
        study: The study.
        out: The file.
        snapshot: What a running search says of itself; its page loads itself again and again.

    Raises:
        StudyError: The record cannot be read, or the file cannot be written or is none of ours.
        RenderError: A template of the user's does not render.
    """
    if out != study.page_file:
        refuse_foreign(out)
    report = read_report(study)
    text = render_page(report, table_of(report), _templates(study), snapshot=snapshot)
    return write_text(out, text)


def table_of(report: StudyReport) -> pd.DataFrame:
    """The rows of a study's table that a report is of, and those of unreadable trials.

    Those of reduced trials are none: what they ran is no candidate of the job.
    """
    frame = make_table(report.study, report.recorded, report.facts)
    return frame[~frame["trial"].isin(left_out_of(report.facts)) & frame["reduced_of"].isna()]


def refuse_foreign(out: Path) -> None:
    """Refuse to write a page over what is none of ours.

    Raises:
        StudyError: Something else is there, or it cannot be read.
    """
    try:
        foreign = is_foreign(out, _MARK.encode())
    except OSError as error:
        raise StudyError(
            f"{out}: cannot be read: {error.strerror}", "name another file"
        ) from error
    if foreign:
        raise StudyError(
            f"{out}: is there and was not written as a page by autotune",
            "name another file, or move that one away",
        )


def write_text(out: Path, text: str) -> Path:
    """Write a page, whole or not at all.

    Raises:
        StudyError: The file cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, lambda path: path.write_text(f"{_MARK}\n{text}", encoding="utf-8"))
    except OSError as error:
        raise StudyError(
            f"{out}: cannot be written: {error.strerror or error}",
            "name another file, or free some space",
        ) from error
    return out


def _templates(study: Study) -> Templates:
    """The user's own before the shipped ones, where their folder is still there."""
    try:
        named = read_job_file(study.job_file).get("templates")
    except AutotuneError:
        named = None
    folder = Path(str(named)) if named else None
    return Templates(folder if folder is not None and folder.is_dir() else None)


def _line_of(error: Exception) -> str:
    message = error.message if isinstance(error, AutotuneError) else f"{error!r}"
    return message.splitlines()[0]
