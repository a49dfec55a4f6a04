"""How soon a strategy finds the best of a measured group."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from autotune.replay.groups import Group, group_rows
from autotune.replay.problem import forecast_of
from autotune.replay.rows import read_rows
from benchmarks.contest import (
    Run,
    Strategy,
    calibrated_order,
    compete,
    forecast_order,
    mean_regrets,
    random_order,
    sampled_order,
    summarize_runs,
)
from tests.replay.tables import sweep, write

STRATEGIES: dict[str, Strategy] = {
    "random": random_order,
    "tpe": sampled_order("tpe"),
    "forecast": forecast_order(forecast_of),
    "calibrated": calibrated_order(forecast_of),
}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    table = write(tmp_path_factory.mktemp("tables") / "runs.csv", sweep())
    (found,) = group_rows(read_rows(table))
    return found


def run(*regrets: float, position: int = 0, cap: int | None = None) -> Run:
    return Run(position=position, group="g", seed=0, regrets=regrets, cap=cap or len(regrets))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_tries_nothing_twice_and_in_the_end_everything(group: Group, name: str) -> None:
    n = len(group.configurations)
    order = list(STRATEGIES[name](group, n, 3))
    assert sorted(order) == list(range(n))
    assert order == list(STRATEGIES[name](group, n, 3)), "the same seed, the same order"


def test_a_run_is_done_within_the_share_and_what_ran_out_of_memory_found_nothing(group) -> None:
    its = run(float("inf"), 0.5, 0.0101, 0.01, 0.0)
    assert (its.trials_to(0.01), its.trials_to(0.02)) == (4, 3)
    assert run(0.5, 0.3).trials_to(0.02) is None
    seconds = [one.step_time_s for one in group.configurations]
    order = [seconds.index(None), seconds.index(min(filter(None, seconds)))]
    (its,) = compete(lambda *_: order, [group], n_trials=2, seeds=[0])
    assert its.regrets == (float("inf"), 0.0)
    curve = mean_regrets([run(float("inf"), 0.2), run(0.4, 0.1, 0.1)])
    assert curve == [None, pytest.approx(0.15), pytest.approx(0.15)]


def test_every_group_counts_once_and_an_unsolved_run_at_its_cap() -> None:
    runs = [run(0.0, 0.0), run(0.5, 0.5), run(0.5, 0.0), run(0.2, 0.0, position=1)]
    figures = summarize_runs(runs)
    assert figures["groups"] == 2
    assert figures["mean_trials_to_1pct"] == pytest.approx(((1 + 2 + 2) / 3 + 2) / 2)
    assert figures["max_trials_to_1pct"] == 2
    assert figures["unsolved_at_1pct"] == 1
    assert figures["solved_within_5"] == 0.75


def test_the_calibrated_order_beats_chance_and_its_own_forecast_at_the_worst(group) -> None:
    by_chance = [
        its.trials_to(0.01) or its.cap
        for its in compete(random_order, [group], n_trials=15, seeds=range(20))
    ]
    (steered,) = compete(STRATEGIES["calibrated"], [group], n_trials=15, seeds=[0])
    assert (steered.trials_to(0.01) or 99) < np.mean(by_chance)


BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "search_efficiency.py"


def test_the_benchmark_ends_with_its_figures(tmp_path, monkeypatch, capsys) -> None:
    write(tmp_path / "runs.csv", sweep())
    arguments = ["--published", str(tmp_path), "--seeds", "2", "--model-off", "0.35", "--json"]
    arguments += ["--strategies", "random", "tpe", "calibrated"]
    arguments += ["--plot", str(tmp_path / "r.html")]
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), *arguments])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["groups"] == 1
    assert set(answer["strategies"]) == {"random", "tpe", "calibrated"}
    ours = answer["strategies"]["calibrated"]
    assert 1 <= ours["mean_trials_to_1pct"] <= ours["max_trials_to_1pct"] <= 15
    assert "plotly" in (tmp_path / "r.html").read_text(encoding="utf-8")
