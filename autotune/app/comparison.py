"""Read studies by name or folder, and compare them."""

from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from pydantic import ValidationError

from autotune.app.pages import refuse_foreign, table_of, write_text
from autotune.app.studies import locate
from autotune.base.errors import AutotuneError, StudyError
from autotune.base.templates import Templates
from autotune.job.job import JobFile, read_job_file
from autotune.record.study import Study
from autotune.report.compare.comparison import MAX_RUNS, ComparedRun, StudyComparison, compare
from autotune.report.compare.page import render_comparison
from autotune.report.results.study import read_report

_BESIDES_THE_TABLE = {
    "optimizer",
    "objective",
    "objective_floor",
    "head_room",
    "baseline",
    "base_config",
    "templates",
    "lengths",
}
"""Keys of the job that change what a trial runs or what `best` means, and that no column tells
fully: two histograms are one word there."""


def compare_studies(runs: Sequence[str], results: Path) -> StudyComparison:
    """Compare studies with the first of them.

    Args:
        runs: Names or folders.
        results: Folder of all studies, for the names.

    Raises:
        StudyError: One is not there or cannot be read, or there are too few or too many.
    """
    found = [locate(run, results) for run in runs]
    folders = [study.folder.resolve() for study in found]
    if len(set(folders)) < 2 or len(folders) != len(set(folders)):
        raise StudyError(
            f"compare {' '.join(runs)}: it takes at least two studies, each named once",
            "`autotune status` lists them",
        )
    if len(found) > MAX_RUNS:
        raise StudyError(f"compare: {len(found)} studies", f"name at most {MAX_RUNS}")
    return compare([_run(key, study) for key, study in zip(ascii_uppercase, found, strict=False)])


def write_comparison(comparison: StudyComparison, out: Path) -> Path:
    """Write the comparison as one HTML file.

    Raises:
        StudyError: The file cannot be written, or is there and none of ours.
    """
    refuse_foreign(out)
    return write_text(out, render_comparison(comparison, Templates()))


def _run(key: str, study: Study) -> ComparedRun:
    report = read_report(study)
    return ComparedRun(key=key, report=report, frame=table_of(report), job=_job(study))


def _job(study: Study) -> dict[str, Any]:
    """Settings that the table lacks; empty where the job's file cannot be read any more."""
    try:
        file = JobFile.model_validate(read_job_file(study.job_file))
    except (AutotuneError, ValidationError):
        return {}
    return file.model_dump(mode="json", include=_BESIDES_THE_TABLE)
