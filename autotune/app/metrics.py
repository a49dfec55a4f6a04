"""Keeps the metrics of a running search in files that Prometheus' collectors read."""

import dataclasses
import time
from functools import partial
from pathlib import Path

from autotune import __version__
from autotune.base.errors import AutotuneError
from autotune.base.files import check_target, write_whole
from autotune.record.study import Study
from autotune.report.metrics import MARK, render_metrics
from autotune.search.base import Observer, Snapshot, Stage

_PERIOD_S = 5.0
"""Time between two writings: scrapes are rarer, and a write to disk is not free to the ranks
beside it."""


class MetricsWriter(Observer):
    """Writes the metrics when a stage begins and every few seconds; hands everything on."""

    def __init__(
        self, study: Study, observer: Observer, *, accelerator: str, extra: Path | None
    ) -> None:
        """Write the study's `metrics.prom`, and `extra`, which `check_writable` has seen."""
        self._study = study
        self._observer = observer
        self._accelerator = accelerator
        self._files = [study.metrics_file, *([extra] if extra is not None else [])]
        self._told: set[Path] = set()
        self._stage: Stage | None = None
        self._snapshot: Snapshot | None = None
        self._not_before_s = 0.0

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Hand it on, and write it where a stage begins or the last one is old."""
        self._observer.on_snapshot(snapshot)
        self._snapshot = snapshot
        now_s = time.monotonic()
        if snapshot.stage is self._stage and now_s < self._not_before_s:
            return
        self._stage, self._not_before_s = snapshot.stage, now_s + _PERIOD_S
        self._write(snapshot)

    def on_note(self, note: str) -> None:
        self._observer.on_note(note)

    def close(self) -> None:
        if self._snapshot is not None:
            self._write(dataclasses.replace(self._snapshot, stage=Stage.DONE, running=()))

    def _write(self, snapshot: Snapshot) -> None:
        """Write all files; what fails is said once for each, and tried again the next time."""
        try:
            text = render_metrics(
                snapshot,
                study=self._study.name,
                version=__version__,
                accelerator=self._accelerator,
            )
        # Hours of trials must not end because nobody can read how they go.
        except Exception as error:
            for path in self._files:
                self._tell(path, error)
            return
        for path in self._files:
            try:
                write_whole(path, lambda aside: aside.write_text(text, encoding="utf-8"))
            except Exception as error:
                self._tell(path, error)

    def _tell(self, path: Path, error: Exception) -> None:
        if path not in self._told:
            self._told.add(path)
            if isinstance(error, OSError) and error.strerror:
                reason = f"cannot be written: {error.strerror}"
            else:
                reason = error.message if isinstance(error, AutotuneError) else repr(error)
            self._observer.on_note(f"{path}: not kept up: {reason.splitlines()[0]}")


check_writable = partial(check_target, marker=MARK.encode(), whose="as metrics by autotune")
"""See that metrics can be written to a path, as of `check_target`."""
