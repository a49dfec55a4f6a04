"""The gain of a whole run, where some steps of a user's script do more than train.

Samples/s go by the median step. A script that evaluates in its loop, or waits for data now and
then, spends more time than that, and no change of the configuration may shorten it.
"""

import math
import statistics
from collections.abc import Sequence

from autotune.contract import TrialResult
from autotune.report.results.ratios import telling_runs
from autotune.report.results.study import StudyReport
from autotune.trial.statistics import SHOWN_BEYOND_MEDIAN, share_beyond_median


def describe_whole(report: StudyReport) -> str:
    """The gain by the mean step, and what it counts besides.

    Empty: the median says as much, or no comparison says that there is a gain.
    """
    if report.answer is None or report.answer.speedup is None:
        return ""
    rows = (report.best_row, report.baseline_row)
    sides = [[] if row is None else _runs(report, row.candidate.hash) for row in rows]
    if not all(sides):
        return ""
    of_best, of_baseline = (
        statistics.fmean(share_beyond_median(run.step_times_s) for run in runs) for runs in sides
    )
    if max(of_best, of_baseline) < SHOWN_BEYOND_MEDIAN:
        return ""
    best_s, baseline_s = map(_mean_step_s, sides)
    return (
        f"{baseline_s / best_s:.2f}x by the mean step: what steps take beyond the median one, as "
        f"those with an evaluation do, is {of_baseline:.0%} of the baseline's time and "
        f"{of_best:.0%} of the best's"
    )


def _runs(report: StudyReport, candidate: str) -> list[TrialResult]:
    """The measured runs of a user's command that a candidate's figure rests on."""
    tried = next((t for t in report.history.tried if t.candidate.hash == candidate), None)
    if tried is None or not tried.trials[0].spec.workload.command:
        return []
    return telling_runs(tried.trials)


def _mean_step_s(runs: Sequence[TrialResult]) -> float:
    return math.exp(statistics.fmean(math.log(statistics.fmean(run.step_times_s)) for run in runs))
