"""What a trial that is cut off leaves behind; timing itself is tested on real engines."""

import json

from autotune.contract import Measure
from autotune.trial.reporter import Reporter
from autotune.trial.stopwatch import Stopwatch

MEASURE = Measure(warmup_steps=2, min_steps=6, max_steps=6, target_half_width=0.1, budget_s=1.0)


def make(folder, *, on_first_step=lambda: None, **hooks):
    """A stopwatch of a rank whose trial is in the folder."""
    (folder / "ranks").mkdir()
    reporter = Reporter(folder, 0, 0.0)
    return Stopwatch(reporter, MEASURE, is_loss_scaled=False, on_first_step=on_first_step, **hooks)


def test_the_first_step_is_on_disk_before_the_second_begins(tmp_path):
    read_back = []
    stopwatch = make(tmp_path, on_first_step=lambda: read_back.append(True))
    stopwatch._count(0.1)

    assert read_back == [True]
    report = json.loads((tmp_path / "ranks" / "00.json").read_text())
    assert report["warmup_step_times_s"] == [0.1]


def test_it_says_when_warming_up_is_over_and_only_then(tmp_path):
    warm_after = []
    stopwatch = make(tmp_path, on_warm=lambda: warm_after.append(stopwatch._applied))
    for _ in range(5):
        stopwatch._count(0.1)

    assert warm_after == [MEASURE.warmup_steps]
