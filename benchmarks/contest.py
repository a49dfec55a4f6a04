"""How soon a strategy finds the best of a measured group: regret, without an accelerator."""

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.trial import create_trial

from autotune.base.plugins import load_plugin
from autotune.contract import KnobValue, Outcome
from autotune.cost.forecast import Forecast, Shot
from autotune.replay.groups import Group
from autotune.search.history import History
from autotune.search.optuna_study import Axis, make_axes
from autotune.search.steering import Posterior
from autotune.search.stop import expects_no_gain

Strategy = Callable[[Group, int, int], Sequence[int]]
"""Group, number of trials and seed -> the configurations in the order in which they are tried,
none twice."""

SHARES = (0.01, 0.02)
"""Within which share of the best a search counts as done."""
MILESTONES = (5, 8, 15)
"""Trials after which is said how many groups are solved."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One strategy on one group with one seed."""

    position: int
    """Of the group among those that were searched: two may have one name."""
    group: str
    seed: int
    regrets: tuple[float, ...]
    """By trial: the best step time so far over the group's best, less 1; infinite before anything
    ran."""
    cap: int
    """Trials that it had; fewer where the group has fewer configurations."""

    def trials_to(self, share: float) -> int | None:
        """Trials until it is within a share of the group's best; None: not within its cap."""
        solved = (n for n, regret in enumerate(self.regrets, start=1) if regret <= share + 1e-12)
        return next(solved, None)


def compete(
    strategy: Strategy, groups: Sequence[Group], *, n_trials: int, seeds: Sequence[int]
) -> list[Run]:
    """Let a strategy search every group once per seed."""
    return [
        Run(
            position=position,
            group=group.name,
            seed=seed,
            regrets=_regrets(group, strategy(group, cap, seed)),
            cap=cap,
        )
        for position, group in enumerate(groups)
        for cap in [min(n_trials, len(group.configurations))]
        for seed in seeds
    ]


def summarize_runs(runs: Sequence[Run]) -> dict[str, Any]:
    """The figures of a strategy; each group counts once, whatever the number of seeds.

    Returns:
        For 1% and 2%: `mean_trials_to_Npct` over the groups, `max_trials_to_Npct` of any run,
        where an unsolved run counts at its cap, and `unsolved_at_Npct`, the number of such runs;
        `solved_within_K`, the share of runs that are within 1% by trial K; `regret`, its mean by
        trial, from the first at which every run has measured something; `mean_trials` that a run
        took in all, and `mean_regret_at_end` and `max_regret_at_end` of any run.
    """
    by_group: dict[int, list[Run]] = {}
    for run in runs:
        by_group.setdefault(run.position, []).append(run)
    figures: dict[str, Any] = {"groups": len(by_group), "runs": len(runs)}
    for share in SHARES:
        counted = [
            [run.trials_to(share) or run.cap for run in of_it] for of_it in by_group.values()
        ]
        label = f"{share * 100:.0f}pct"
        figures[f"mean_trials_to_{label}"] = statistics.fmean(map(statistics.fmean, counted))
        figures[f"max_trials_to_{label}"] = max(map(max, counted))
        figures[f"unsolved_at_{label}"] = sum(run.trials_to(share) is None for run in runs)
    for n in MILESTONES:
        solved = [(run.trials_to(SHARES[0]) or n + 1) <= n for run in runs]
        figures[f"solved_within_{n}"] = sum(solved) / len(solved)
    figures["regret"] = mean_regrets(runs)
    figures["mean_trials"] = statistics.fmean(len(run.regrets) for run in runs)
    figures["mean_regret_at_end"] = statistics.fmean(run.regrets[-1] for run in runs)
    figures["max_regret_at_end"] = max(run.regrets[-1] for run in runs)
    return figures


def mean_regrets(runs: Sequence[Run]) -> list[float | None]:
    """Mean regret by trial; None while some run has measured nothing. A run that ended stays."""
    longest = max(run.cap for run in runs)
    curves = np.array(
        [[*run.regrets, *[run.regrets[-1]] * (longest - len(run.regrets))] for run in runs]
    )
    return [float(mean) if np.isfinite(mean) else None for mean in curves.mean(axis=0)]


def random_order(group: Group, n_trials: int, seed: int) -> Sequence[int]:
    """Any configuration, one after the other: as the sampler `grid` walks."""
    order = np.random.default_rng(seed).permutation(len(group.configurations))
    return [int(index) for index in order[:n_trials]]


def sampled_order(sampler: str) -> Strategy:
    """As one of Optuna's samplers proposes, with the settings and encodings of a real search."""

    def order(group: Group, n_trials: int, seed: int) -> Sequence[int]:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        axes = make_axes(_values(group), History())
        study = optuna.create_study(
            direction="maximize",
            sampler=load_plugin("sampler", sampler).make(n_budget=n_trials, seed=seed),
        )
        chosen: list[int] = []
        while len(chosen) < n_trials:
            trial = study.ask({name: axis.distribution for name, axis in axes.items()})
            proposed = {name: axis.decode(trial.params[name]) for name, axis in axes.items()}
            index = _nearest(group, axes, proposed, chosen)
            chosen.append(index)
            # What was proposed is not what was run: the study is told of the latter.
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            study.add_trial(_told(group, axes, index))
        return chosen

    return order


def forecast_order(forecast_of: Callable[[Group], Forecast]) -> Strategy:
    """From the lowest forecast to the highest, whatever is measured on the way."""

    def order(group: Group, n_trials: int, seed: int) -> Sequence[int]:
        by_forecast = np.argsort(forecast_of(group).seconds, kind="stable")
        return [int(index) for index in by_forecast[:n_trials]]

    return order


def calibrated_order(
    forecast_of: Callable[[Group], Forecast], *, ends_early: bool = False
) -> Strategy:
    """As the calibrated sampler proposes.

    Args:
        forecast_of: What a model says of a group's configurations, in their order.
        ends_early: Whether it ends as a search does that names no number of trials.
    """

    def order(group: Group, n_trials: int, seed: int) -> Sequence[int]:
        forecast, rows, shots = forecast_of(group), list[int](), list[Shot]()
        is_open = np.ones(len(group.configurations), bool)
        gains = deque[float]()
        while len(shots) < n_trials:
            tried = forecast.take(np.array(rows, np.intp))
            believed = Posterior(forecast=forecast, tried=tried, shots=shots)
            gains.appendleft(believed.expected_gain(is_open))
            if ends_early and expects_no_gain(gains):
                break
            rows.append(believed.choose(is_open))
            is_open[rows[-1]] = False
            ran = group.configurations[rows[-1]]
            is_out_of_memory = ran.outcome is Outcome.OOM
            shots.append(Shot(seconds=ran.step_time_s, is_out_of_memory=is_out_of_memory))
        return rows

    return order


def _told(group: Group, axes: Mapping[str, Axis], index: int) -> optuna.trial.FrozenTrial:
    """A configuration as a real search tells it: out of memory is a broken constraint."""
    configuration = group.configurations[index]
    known = {name: axis for name, axis in axes.items() if name in configuration.knobs}
    return create_trial(
        value=0.0 if configuration.step_time_s is None else 1 / configuration.step_time_s,
        params={name: axis.encode(configuration.knobs[name]) for name, axis in known.items()},
        distributions={name: axis.distribution for name, axis in known.items()},
        constraints={"memory": float(configuration.outcome is Outcome.OOM)},
    )


def _nearest(
    group: Group,
    axes: Mapping[str, Axis],
    proposed: Mapping[str, KnobValue],
    closed: Sequence[int],
) -> int:
    """The open configuration that differs least, as `Lattice.nearest` measures it."""
    distance = np.zeros(len(group.configurations))
    for name, column in _columns(group).items():
        axis = axes[name]
        if axis.is_log2:
            span = max(1.0, float(np.ptp([float(axis.encode(value)) for value in axis.values])))
            at = float(axis.encode(proposed[name]))
            gaps = [1.0 if v is None else abs(float(axis.encode(v)) - at) / span for v in column]
        else:
            gaps = [float(value != proposed[name]) for value in column]
        distance += np.array(gaps)
    distance[list(closed)] = np.inf
    return int(np.argmin(distance))


def _columns(group: Group) -> dict[str, list[KnobValue | None]]:
    return {name: [c.knobs.get(name) for c in group.configurations] for name in _values(group)}


def _values(group: Group) -> dict[str, tuple[KnobValue, ...]]:
    """Knob -> its values over the group, sorted; knobs that never vary are left out."""
    found: dict[str, set[KnobValue]] = {}
    for configuration in group.configurations:
        for name, value in configuration.knobs.items():
            found.setdefault(name, set()).add(value)
    return {
        name: tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))
        for name, values in found.items()
        if len(values) > 1
    }


def _regrets(group: Group, order: Sequence[int]) -> tuple[float, ...]:
    times = [group.configurations[index].step_time_s for index in order]
    best: NDArray[np.float64] = np.minimum.accumulate(
        [float("inf") if seconds is None else seconds for seconds in times]
    )
    fastest = min(c.step_time_s for c in group.configurations if c.step_time_s is not None)
    return tuple(float(seconds / fastest - 1) for seconds in best)
