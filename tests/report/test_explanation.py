"""A trial explained, in the terminal, in the page and as data."""

import dataclasses
import json

import pytest

from autotune.app.studies import explain_trial
from autotune.base.errors import StudyError
from autotune.base.templates import Templates
from autotune.record.facts import Facts
from autotune.record.study import Study
from autotune.record.table import load_table
from autotune.report.explain.trial import describe, explain
from autotune.report.page.page import render_page
from autotune.report.story import read_story
from autotune.search.history import History
from tests.report.diagnosed import diagnosed
from tests.report.test_page import details_in
from tests.report.test_terminal import finished
from tests.trials import changed


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return finished(tmp_path_factory.mktemp("diagnosed"), diagnosed, trials=40)


def number_at(study: Study, stage: int) -> int:
    specs = [trial.spec for trial in study.trials()]
    return next(
        s.identity.number
        for s in specs
        if s.identity.knobs["zero.stage"] == stage and s.layout.grad_accum > 1
    )


def test_it_says_where_the_time_went_what_bounds_it_and_what_addresses_that(study: Study) -> None:
    facts = describe(explain_trial(study, number_at(study, 3)))
    said = dict(reversed(facts))
    assert said["measured"].endswith("GiB")
    assert " samples/s in this run (95%: " in said["measured"]
    assert "by its steps, " in said["measured"]
    assert " for another run); " in said["measured"]
    assert said["collectives"].startswith("timed one by one in a further step")
    assert said["step"].startswith(
        "forward 12%, backward 24%, communication 60%, data 4% on rank 1"
    )
    assert said["bound by"].startswith("communication: 60% of a step")
    assert said["bound by"].endswith("then compute 40%")
    assert said["try"].startswith("micro_batch")


def test_one_rank_sends_nothing_and_waits_for_nobody(study: Study) -> None:
    seen = explain_trial(study, number_at(study, 3))
    alone = dataclasses.replace(seen.diagnosis.collectives[0], group_size=1, calls=1)
    lonely = dataclasses.replace(
        seen, diagnosis=dataclasses.replace(seen.diagnosis, collectives=[alone])
    )
    assert dict(describe(lonely))["collective"] == (
        "all_reduce of 4 KiB over 1 rank, 1 call a step: 200 ms, though nothing is sent"
    )


def test_a_share_of_the_peak_is_told_only_where_the_peak_is_known(study: Study) -> None:
    report, number = read_story(study), number_at(study, 1)

    def speed(row: dict[str, object], precision: str, facts: Facts) -> str:
        trials = [
            dataclasses.replace(t, spec=changed(t.spec, precision=precision))
            for t in report.history.trials
        ]
        asked = dataclasses.replace(report, history=History(trials), facts=facts)
        explanation = explain(asked, number, row)
        assert explanation is not None
        return dict(describe(explanation))["speed"]

    reached: dict[str, object] = {"tflops_per_device": 0.4}
    unknown = (
        "0.4 TFLOP/s of the model per device; the peak of this device is unknown at this precision"
    )
    assert speed({}, "bf16", report.facts) == "FLOP/s of the model are unknown"
    assert speed(reached, "fp32", report.facts) == unknown
    assert speed(reached, "bf16", Facts()) == unknown
    assert speed(reached, "bf16", report.facts) == (
        "0.4 TFLOP/s of the model per device, 40% of its peak of 1 in bf16"
    ), "that of the environment in study.json"


def test_the_page_explains_every_trial_that_was_watched(study: Study) -> None:
    page = render_page(read_story(study), Templates())
    watched = [t for t in study.trials() if t.result is not None and t.result.diagnosis]
    opened = details_in(page)
    assert sum(bool(one["facts"]) for one in opened.values()) == len(watched) > 8
    assert 'id="chart-steps"' in page
    number = number_at(study, 3)
    assert opened[str(number)]["facts"] == list(map(list, describe(explain_trial(study, number))))


def test_as_data_it_is_json(study: Study) -> None:
    data = json.loads(json.dumps(explain_trial(study, number_at(study, 3)).as_dict()))
    assert data["bound"] == "communication"
    assert sum(data["shares"].values()) == pytest.approx(1)
    assert sum(data["bound_shares"].values()) == pytest.approx(1)
    assert {"knob", "before", "after", "reason", "tried"} < set(data["advice"][0])
    (tried, *_) = [each for each in data["advice"] if each["ratio"] is not None]
    assert tried["ratio_low"] < tried["ratio"] < tried["ratio_high"]


def test_the_table_has_it_too(study: Study) -> None:
    row = load_table(study.folder).set_index("trial").loc[number_at(study, 3)]
    assert row["bound"] == "communication"
    assert row["share.communication"] == pytest.approx(0.6)
    assert (row["energy_per_sample_j"], row["power_w"]) == (pytest.approx(40.0), 400.0)
    assert (row["gpu_throttled"], row["cpu_utilization"]) == (0.25, 0.95)


def test_a_trial_that_is_not_there_or_was_not_watched_is_refused(study, tmp_path) -> None:
    with pytest.raises(StudyError, match="there is no trial 999"):
        explain_trial(study, 999)
    with pytest.raises(StudyError, match="had no diagnostic pass"):
        explain_trial(finished(tmp_path), 0)
