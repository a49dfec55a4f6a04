"""Keeps the metrics of a running search in files that Prometheus' collectors read."""

import time
from collections.abc import Sequence
from pathlib import Path

from autotune import __version__
from autotune.contract import Outcome
from autotune.errors import AutotuneError, StudyError
from autotune.files import is_foreign, write_whole
from autotune.record import Study, Trial
from autotune.report.metrics import MARK, render_metrics
from autotune.search.base import Observer, Snapshot, Stage
from autotune.search.recall import history_of

_PERIOD_S = 5.0
"""Between two writings while nothing changes: scrapes are rarer, and a write to the disk is not
free to the ranks beside it."""


class MetricsWriter(Observer):
    """Writes the metrics of every snapshot that says something new; hands everything on."""

    def __init__(
        self, study: Study, observer: Observer, *, accelerator: str, extra: Path | None
    ) -> None:
        """Prepare to write.

        Args:
            study: Its folder holds `metrics.prom`.
            observer: Who else watches.
            accelerator: `cpu` or `cuda`.
            extra: Another file to write, which `check_writable` has seen; None for none.
        """
        self._study = study
        self._observer = observer
        self._accelerator = accelerator
        self._files = [study.metrics_file, *([extra] if extra is not None else [])]
        self._counts: dict[Outcome, int] | None = None
        self._trials: Sequence[Trial] = ()
        self._state: object = None
        self._not_before_s = 0.0

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Hand it on, and write it where it shows something new or the last one is old."""
        self._observer.on_snapshot(snapshot)
        running = [(trial.number, trial.phase) for trial in snapshot.running]
        state = (snapshot.stage, dict(snapshot.counts), running)
        now_s = time.monotonic()
        if not self._files or (state == self._state and now_s < self._not_before_s):
            return
        self._state, self._not_before_s = state, now_s + _PERIOD_S
        try:
            self._write(snapshot)
        # Hours of trials must not end because nobody can read how they go.
        except (OSError, AutotuneError) as error:
            names = ", ".join(map(str, self._files))
            self._files = []
            self._observer.on_note(f"{names}: not kept up: {error}")

    def on_note(self, note: str) -> None:
        """Hand it on."""
        self._observer.on_note(note)

    def _write(self, snapshot: Snapshot) -> None:
        if dict(snapshot.counts) != self._counts or snapshot.stage is Stage.DONE:
            self._counts = dict(snapshot.counts)
            self._trials = history_of(self._study.read(), self._study.read_state()).trials
        text = render_metrics(
            snapshot,
            self._trials,
            study=self._study.name,
            version=__version__,
            accelerator=self._accelerator,
        )
        for path in self._files:
            write_whole(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def check_writable(path: Path) -> None:
    """See that metrics may be written to a path, before a search begins.

    Raises:
        StudyError: Its folder is not there, it cannot be read, or it is none of ours.
    """
    try:
        if not path.absolute().parent.is_dir():
            raise StudyError(f"{path}: its folder is not there", "make it, or name another file")
        foreign = is_foreign(path, MARK.encode())
    except OSError as error:
        raise StudyError(
            f"{path}: cannot be read: {error.strerror}", "name another file"
        ) from error
    if foreign:
        raise StudyError(
            f"{path}: is there and was not written as metrics by autotune",
            "name another file, or move that one away",
        )
