"""How many trials each strategy needs to find the best of what others have measured.

A group is one model on one fleet with one global batch, in all the configurations that a table of
published runs has of it; a trial is a look at its row. Every strategy searches every group once
per seed and is charged for each look until it is within 1% (and 2%) of the group's best. A search
that does not get there counts at its cap, which flatters the strategies that fail, and is counted.

The cost model's constants may have seen some of these runs. `--model-off 0.35` multiplies each of
them by a random factor, of that deviation in logarithms, and so asks what a model is worth that is
wrong.
"""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from contest import (
    Run,
    Strategy,
    calibrated_order,
    compete,
    forecast_order,
    random_order,
    sampled_order,
    summarize_runs,
)
from published import strict_rows

from autotune.base.errors import AutotuneError
from autotune.cost.constants import Constants, load_constants
from autotune.cost.forecast import Forecast
from autotune.replay.groups import Group, group_rows
from autotune.replay.problem import forecast_of
from autotune.replay.rows import MeasuredRow, read_rows

ABOUT = {
    "random": "any row, as the sampler grid walks",
    "tpe": "Optuna's TPE, as a search uses it",
    "forecast": "the analytic model's order, never corrected",
    "calibrated": "that model, corrected by every trial",
    "ending": "the same, until no trial is expected to gain anything",
}
ALWAYS_ALIKE = ("forecast", "calibrated", "ending")
"""No number is drawn by them: one seed says all, but for those of a model that is off."""
_SHARES = 1.0
"""A share of a peak stays one, however far a constant is off."""


def main() -> None:
    options = _options()
    try:
        groups, left_out = find_groups(options.published, least=options.least)
    except AutotuneError as error:
        sys.exit(str(error))
    if not groups:
        sys.exit(f"{options.published}: no group has {options.least} configurations")
    strategies = make_strategies(options.model_off)
    runs = {
        name: compete(
            strategies[name],
            groups,
            n_trials=options.trials,
            seeds=range(1 if name in ALWAYS_ALIKE and not options.model_off else options.seeds),
        )
        for name in options.strategies
    }
    figures = {name: summarize_runs(of_it) for name, of_it in runs.items()}
    if options.plot is not None:
        draw(figures).write_html(options.plot, include_plotlyjs=True)
    if options.json:
        print(json.dumps({"groups": len(groups), "left_out": left_out, "strategies": figures}))
        return
    print(f"{len(groups)} groups of at least {options.least} configurations, cap {options.trials}")
    for why, of_them in left_out.items():
        print(f"left out, {why}: {', '.join(of_them)}")
    print_table(figures)
    print_hardest(runs)


def make_strategies(model_off: float) -> dict[str, Strategy]:
    """The strategies by name.

    Args:
        model_off: How far the constants of the model are off; 0: as shipped.
    """

    def predicting(make: Callable[[Callable[[Group], Forecast]], Strategy]) -> Strategy:
        def order(group: Group, n_trials: int, seed: int) -> Sequence[int]:
            constants = spoilt(load_constants(), seed, model_off)
            return make(lambda its: forecast_of(its, constants))(group, n_trials, seed)

        return order

    return {
        "random": random_order,
        "tpe": sampled_order("tpe"),
        "forecast": predicting(forecast_order),
        "calibrated": predicting(calibrated_order),
        "ending": predicting(partial(calibrated_order, ends_early=True)),
    }


def spoilt(constants: Constants, seed: int, deviation: float) -> Constants:
    """Constants that are wrong by random factors."""
    if not deviation:
        return constants
    numbers = np.random.default_rng(seed)
    wrong = {
        field.name: getattr(constants, field.name)
        * math.exp(deviation * float(numbers.standard_normal()))
        for field in dataclasses.fields(constants)
        if not field.name.endswith("_sigma")
    }
    shares = {name: min(value, _SHARES) for name, value in wrong.items() if "share" in name}
    return dataclasses.replace(constants, **{**wrong, **shares})


def find_groups(folder: Path, *, least: int) -> tuple[list[Group], dict[str, list[str]]]:
    """The groups of all tables of a folder that are large enough.

    Returns:
        Those that the model can predict, and the names of the others by the reason.

    Raises:
        JobError: There is no table, or one cannot be read.
    """
    tables = sorted(folder.glob("*.csv"))
    if not tables:
        raise AutotuneError(f"{folder}: no table *.csv", "name a folder of published runs")
    rows = [row for table in tables for row in _spelled(read_rows(table))]
    large = [group for group in group_rows(rows) if len(group.configurations) >= least]
    kept, left_out = [], {}
    for group in large:
        try:
            forecast_of(group)
        except AutotuneError as error:
            left_out.setdefault(error.message, []).append(group.name)
        else:
            kept.append(group)
    return kept, left_out


def _spelled(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Published rows as replays read them; those that cannot be spelled so stay as they are."""
    spelled = strict_rows([row.cells for row in rows])
    return [
        row if strict.reason else replace(row, cells=strict.cells)
        for row, strict in zip(rows, spelled, strict=True)
    ]


def print_table(figures: dict[str, dict[str, Any]]) -> None:
    print(f"{'strategy':11} {'to 1%':>6} {'worst':>6} {'to 2%':>6} {'worst':>6}", end="")
    print(f" {'by 5':>5} {'by 8':>5} {'by 15':>5} {'unsolved':>9} {'trials':>7} {'behind':>7}")
    for name, of_it in figures.items():
        print(
            f"{name:11} {of_it['mean_trials_to_1pct']:6.1f} {of_it['max_trials_to_1pct']:6}",
            end="",
        )
        print(f" {of_it['mean_trials_to_2pct']:6.1f} {of_it['max_trials_to_2pct']:6}", end="")
        shares = (of_it[f"solved_within_{n}"] for n in (5, 8, 15))
        print(" ".join(["", *(f"{share:5.0%}" for share in shares)]), end="")
        print(f" {of_it['unsolved_at_1pct']:4} of {of_it['runs']:3}", end="")
        print(f" {of_it['mean_trials']:6.1f} {of_it['mean_regret_at_end']:7.2%}  {ABOUT[name]}")


def print_hardest(runs: dict[str, Sequence[Run]]) -> None:
    """The groups that take the last strategy longest."""
    name, of_it = list(runs.items())[-1]
    slowest = sorted(of_it, key=lambda run: -(run.trials_to(0.01) or run.cap + 1))[:5]
    print(f"slowest for {name}:")
    for run in slowest:
        n = run.trials_to(0.01)
        print(f"  {run.group}: {f'{n} trials' if n else f'not in {run.cap}'}")


def draw(figures: dict[str, dict[str, Any]]) -> go.Figure:
    """Mean regret by trial."""
    chart = go.Figure()
    for name, of_it in figures.items():
        percent = [None if regret is None else 100 * regret for regret in of_it["regret"]]
        chart.add_scatter(x=list(range(1, len(percent) + 1)), y=percent, name=name)
    chart.update_layout(
        title="How far the best so far is from the best there is",
        xaxis_title="trials",
        yaxis_title="mean regret in percent",
    )
    return chart


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=Path, required=True, help="folder of tables, *.csv")
    parser.add_argument("--least", type=int, default=15, help="configurations of a group")
    parser.add_argument("--trials", type=int, default=15, help="at which a search is capped")
    parser.add_argument("--seeds", type=int, default=5, help="searches per group")
    parser.add_argument("--strategies", nargs="+", choices=ABOUT, default=list(ABOUT))
    parser.add_argument("--model-off", type=float, default=0.0, help="deviation of its constants")
    parser.add_argument("--plot", type=Path, help="HTML file for the regret by trial")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
