"""A wall clock that somebody sets: no negative time and no traceback."""

import dataclasses
import math
import re
from pathlib import Path

import pytest

from autotune.base import clock
from autotune.contract import Phase
from autotune.record.study import Study, Trial, results
from autotune.record.table import make_table
from autotune.search.history import History, busy_s, intervals
from autotune.space.knob import knobs_of
from autotune.trial.reporter import Reporter
from tests.record_tried import run_of
from tests.search.scripted import make, ok, search
from tests.trials import spec

PACKAGE = Path(clock.__file__).parents[1]


def test_only_dates_come_from_the_wall_clock():
    """Whoever needs a time of day says here for whom; everything else counts by a steady clock."""
    allowed = {
        "base/clock.py": "where a program begins",
        "base/keeper.py": "the age of a folder that was left",
        "report/page/page.py": "the date on the page",
        "probe/run.py": "the date in the file of devices",
        "fleet/node/bootstrap.py": "the age of files that were brought to a node",
        "fleet/node/inventory.py": "a node's clock, which is to be compared",
        "fleet/transports/remote.py": "this machine's, which it is compared with",
    }
    reads = re.compile(r"time\.(time|time_ns|localtime|ctime|gmtime)\(|datetime\.\w*(now|today)\(")
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if reads.search(path.read_text(encoding="utf-8"))
    }
    assert found == set(allowed)


def test_a_clock_of_another_container_begins_no_phase_in_the_future(tmp_path):
    (tmp_path / "ranks").mkdir()
    reporter = Reporter(tmp_path, 0, submitted_at_s=clock.time.monotonic() + 1e6)
    reporter.enter(Phase.IMPORT)
    assert min(reporter.report.phases_s.values()) >= 0


@pytest.mark.parametrize("started_at_s", [-3e9, -1.0, 2.5e11, 1e15, 1e30])
def test_a_date_that_no_calendar_has_is_left_out(tmp_path, started_at_s):
    study = Study(tmp_path, "s")
    search(study, make(trials=1))
    recorded = study.read()
    trials = tuple(
        dataclasses.replace(
            trial, result=dataclasses.replace(trial.result, started_at_s=started_at_s)
        )
        for trial in recorded.trials
    )
    frame = make_table("s", dataclasses.replace(recorded, trials=trials), study.facts())
    assert frame["started_at"].isna().all()
    assert frame["wall_s"].notna().all(), "how long it took is known all the same"
    made = run_of(
        [],
        knobs=knobs_of("deepspeed"),
        started_at_s=started_at_s,
        accelerator="cpu",
        device_name="",
        ranks=2,
        nodes=1,
        versions={},
    )
    assert made.date == clock.date_of(started_at_s, "%Y-%m-%d")


def told(*times):
    """Trials by number, each (start, seconds)."""
    asked = spec()
    return [
        Trial(
            folder=Path(str(number)),
            spec=asked,
            result=_at(ok(asked, 10.0), number, start, seconds),
        )
        for number, (start, seconds) in enumerate(times)
    ]


def _at(result, number, start, seconds):
    return dataclasses.replace(result, number=number, started_at_s=start, wall_s=seconds)


DAY = 86400.0


@pytest.mark.cases("times", "used_s")
def test_what_was_used_of_the_budget_is_no_matter_of_dates(times, used_s):
    assert busy_s(intervals(told(*times))) == pytest.approx(used_s)


def test_trials_in_flight_count_on_from_the_record():
    running = {2: (3 * DAY, 3 * DAY + 7.0)}
    assert busy_s(intervals(told((2 * DAY, 10), (2 * DAY + 10, 10)), running)) == 27
    assert math.isfinite(History(told((1.0, 10))).typical_s)
    assert results(told((1.0, 10)))[0].number == 0
