"""How long do searches take on real CPU trials, beside DeepSpeed's own autotuner?

    python benchmarks/search_wall_clock.py --out DIR [--rounds N] [--seeds N] [--json]

In one run: every legal candidate of `search_wall_clock.yaml` is measured, and the fastest again
side by side; each sampler then searches until it holds a candidate that this table puts within 2%
of the best, with trials of its own (`--rounds` seeds) and answered from the table (`--seeds`); a
whole search as a user runs it, and DeepSpeed's autotuner, on the same job; and what these two
chose, trained by `plain_training.py` in turns, at the same global batch.

The folder holds every study. The same command again measures no candidate of the table twice.
The autotuner needs `pip install 'deepspeed[autotuning]'`; without it that part is left out.
"""

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deepspeed_autotuner
import pandas as pd
from deepspeed_autotuner import Autotuned
from plain_agreement import candidate_of, compared, export, plain_samples_per_s
from wall_clock_searches import (
    SHARE,
    Search,
    Table,
    search_live,
    search_table,
    summarize_searches,
)

from autotune.app.run import search
from autotune.app.session import open_session
from autotune.base.errors import AutotuneError
from autotune.base.plugins import plugin_names
from autotune.cost.constants import constants_of
from autotune.cost.predict import predict
from autotune.engines.deepspeed.plans import plans_of
from autotune.record.study import results
from autotune.search.base import Snapshot
from autotune.search.session import Session
from autotune.space.candidate import Candidate
from autotune.space.candidate import candidate_of as candidate_of_spec

SPACE = Path(__file__).with_suffix(".yaml")
JOB: dict[str, Any] = {
    "model": "tiny-llama-32k",
    "seq_len": 32,
    "global_batch": 16,
    "world": 2,
    "precision": "fp32",
    # Four more steps of every trial, for what no sampler here goes by.
    "diagnose": False,
}
SAMPLERS = plugin_names("sampler")
ANSWERS = ("live", "table")


def main() -> int:
    options = parse_arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    job = {**JOB, "space": str(options.space)}
    try:
        samplers = options.samplers
        session, table = measure_all(job, options.out)
        found = {**facts(session, table), "samplers": {}, "answered_from_table": {}}
        say_table(session, table, found)
        if "table" in options.answers:
            found["answered_from_table"] = answered_searches(session, table, samplers, options)
        if "live" in options.answers:
            found["samplers"] = live_searches(session, table, samplers, options)
        if options.plain_rounds:
            found |= side_by_side(job, table, options)
    except AutotuneError as error:
        sys.exit(f"{error.message}\n{error.hint}")
    if options.json:
        print(json.dumps(found))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the studies")
    parser.add_argument("--space", type=Path, default=SPACE, help="another space, as YAML")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--answers", nargs="+", choices=ANSWERS, default=list(ANSWERS))
    parser.add_argument("--rounds", type=int, default=2, help="live searches of each sampler")
    parser.add_argument("--seeds", type=int, default=20, help="searches answered from the table")
    parser.add_argument("--trials", type=int, default=15, help="at which a live search is capped")
    parser.add_argument("--table-trials", type=int, default=40, help="the same from the table")
    parser.add_argument(
        "--plain-rounds",
        type=int,
        default=5,
        help="of plain training of both choices; 0 leaves out the whole search, the autotuner "
        "and this",
    )
    parser.add_argument(
        "--autotuner-limit", type=float, default=900.0, help="its seconds; 0 leaves it out"
    )
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    return parser.parse_args()


def measure_all(job: dict[str, Any], out: Path) -> tuple[Session, Table]:
    """Measure every legal candidate, the fastest ones and the baseline again in the end."""
    session = open_session(
        None, {**job, "sampler": "grid", "study": "every-candidate"}, results=out
    )
    print(f"{len(session.lattice.candidates)} legal candidates", file=sys.stderr)
    answer = search(session, Progress("every candidate"), fresh=False)
    if answer.problem is not None:
        raise answer.problem.error
    return session, Table.of(session)


def facts(session: Session, table: Table) -> dict[str, Any]:
    """What the table says of itself."""
    ran = [row for row in table.rows.values() if row.samples_per_s is not None]
    environment = session.environment
    return {
        "device_name": environment.device_name,
        "versions": {
            "deepspeed": environment.deepspeed_version,
            "torch": environment.torch_version,
        },
        "candidates": len(session.lattice.candidates),
        "ran": len(ran),
        "best_over_median": (table.best.samples_per_s or 0.0) / table.median_samples_per_s,
        "within_2pct": table.n_near,
        "deviation": table.deviation,
        "disturbed": sum(bool(row.result.disturbed) for row in ran),
        "seconds_of_trials": sum(result.wall_s for result in results(session.study.trials())),
        "seconds_per_trial": statistics.median(row.result.wall_s for row in ran),
        "predicted_rank_correlation": rank_correlation(session, table),
    }


def rank_correlation(session: Session, table: Table) -> float | None:
    """Spearman's between predicted and measured step times; None: nothing can be predicted."""
    ran = [row for row in table.rows.values() if row.samples_per_s is not None]
    try:
        plans = plans_of([row.candidate for row in ran], session.job, session.environment)
    except AutotuneError:
        return None
    predicted = pd.Series(predict(plans, constants_of(session.environment)).step_time_s)
    measured = pd.Series([1 / (row.samples_per_s or 1.0) for row in ran])
    return float(predicted.rank().corr(measured.rank()))


def say_table(session: Session, table: Table, found: dict[str, Any]) -> None:
    print(
        f"{found['candidates']} candidates, {found['ran']} ran: best over median "
        f"{found['best_over_median']:.2f}, {found['within_2pct']} within {SHARE:.0%} of the best; "
        f"runs of one candidate deviate by {table.deviation:.1%}; {found['disturbed']} disturbed"
    )
    print(f"best: {said_of(session, table.best.candidate)}, {table.best.n_runs} runs")
    correlation = found["predicted_rank_correlation"]
    if correlation is not None:
        print(f"rank correlation of predicted and measured step times: {correlation:.2f}")
    print(
        f"all of that took {found['seconds_of_trials']:.0f} s of trials, "
        f"{found['seconds_per_trial']:.1f} s a trial",
        flush=True,
    )


def said_of(session: Session, candidate: Candidate) -> str:
    """The values of what varies over the space."""
    varying = {name: candidate.get(name) for name in session.lattice.values}
    return " ".join(f"{name}={value}" for name, value in varying.items() if value is not None)


def live_searches(
    session: Session, table: Table, samplers: Sequence[str], options: argparse.Namespace
) -> dict[str, Any]:
    """Searches with trials of their own, the samplers in turns."""
    print(f"searches with trials of their own, {options.rounds} of each, cap {options.trials}")
    done: dict[str, list[Search]] = {name: [] for name in samplers}
    for seed in range(options.rounds):
        # A machine that slows down meets another order in every round.
        for name in samplers[seed % len(samplers) :] + samplers[: seed % len(samplers)]:
            one = search_live(session, table, sampler=name, seed=seed, cap=options.trials)
            done[name].append(one)
            print(f"  {name} {seed}: {one.n_trials} trials, {one.seconds:.0f} s", file=sys.stderr)
    return summarized(done)


def answered_searches(
    session: Session, table: Table, samplers: Sequence[str], options: argparse.Namespace
) -> dict[str, Any]:
    """Searches that the table answers; their seconds are those that it took to measure it."""
    print(f"searches answered from the table, {options.seeds} of each, cap {options.table_trials}")
    return summarized(
        {
            name: [
                search_table(session, table, sampler=name, seed=seed, cap=options.table_trials)
                for seed in range(options.seeds)
            ]
            for name in samplers
        }
    )


def summarized(done: dict[str, list[Search]]) -> dict[str, Any]:
    """Print the means, and return them."""
    figures = {name: summarize_searches(searches) for name, searches in done.items() if searches}
    print(f"  {'sampler':11} {'trials to 2%':>13} {'worst':>6} {'seconds':>8} {'unsolved':>9}")
    for name, of_it in figures.items():
        print(
            f"  {name:11} {of_it['mean_trials_to_2pct']:13.1f} {of_it['max_trials_to_2pct']:6}"
            f" {of_it['mean_seconds_to_2pct']:8.0f} {of_it['unsolved']:4} of {of_it['searches']}",
            flush=True,
        )
    return figures


def side_by_side(job: dict[str, Any], table: Table, options: argparse.Namespace) -> dict[str, Any]:
    """Our whole search and the autotuner's, and plain training of what they chose."""
    session = open_session(None, {**job, "study": "ours"}, results=options.out)
    answer = search(session, Progress("our search"), fresh=True)
    if answer.problem is not None:
        raise answer.problem.error
    ours = chosen_by_us(session, answer.best.trial)
    trials = results(session.study.trials())
    seconds = max(r.started_at_s + r.wall_s for r in trials) - trials[0].started_at_s
    print(f"our search: {len(trials)} trials, {seconds:.0f} s: {said_of(session, ours)}")
    exports = {"autotune": export(session, ours, options.out / "choice-autotune")}
    tuned = tune(session, options)
    say_autotuned(tuned)
    theirs = chosen_by_it(session, tuned)
    if theirs is not None:
        exports["deepspeed_autotuner"] = export(session, theirs, options.out / "choice-autotuner")
    choices = {"autotune": ours, "deepspeed_autotuner": theirs}
    scores = score(session, exports, rounds=options.plain_rounds)
    return {
        "search": {"trials": len(trials), "seconds": seconds},
        "deepspeed_autotuner": dataclasses.asdict(tuned),
        "choices": {
            name: None
            if candidate is None
            else {
                "candidate": said_of(session, candidate),
                "behind_best_of_table": behind(table, candidate),
                **scores[name],
            }
            for name, candidate in choices.items()
        },
        "autotune_over_deepspeed_autotuner": scores.get("ratio"),
    }


def chosen_by_us(session: Session, number: int) -> Candidate:
    trial = next(t for t in session.study.trials() if t.spec.identity.number == number)
    return candidate_of_spec(trial.spec)


def tune(session: Session, options: argparse.Namespace) -> Autotuned:
    """Let DeepSpeed's autotuner choose."""
    if not options.autotuner_limit:
        return Autotuned(outcome="left out", why="--autotuner-limit 0")
    start = candidate_of(session, {"zero.stage": 0, "micro_batch": 1})
    exported = export(session, start, options.out / "for-autotuner")
    return deepspeed_autotuner.tune(
        session, exported, (options.out / "autotuner").resolve(), limit_s=options.autotuner_limit
    )


def say_autotuned(tuned: Autotuned) -> None:
    print(f"DeepSpeed's autotuner: {tuned.outcome}", end="")
    if tuned.outcome == "left out":
        print(f": {tuned.why}", flush=True)
        return
    ran = sum(each["samples_per_s"] is not None for each in tuned.experiments)
    print(
        f" after {tuned.seconds:.0f} s (exit code {tuned.returncode}), {len(tuned.experiments)} "
        f"experiments, {ran} with a figure"
    )
    if tuned.stage is not None:
        print(f"  {tuned.chosen_by}: stage {tuned.stage}, micro-batch {tuned.micro_batch}")
    for line in tuned.last_lines:
        print(f"  | {line}", flush=True)


def chosen_by_it(session: Session, tuned: Autotuned) -> Candidate | None:
    """Its choice at the job's global batch, which it may have left.

    A micro-batch that does not divide a rank's share of the batch gives way to the next lower one
    that does.
    """
    if tuned.stage is None or tuned.micro_batch is None:
        return None
    share = session.job.global_batch // session.job.world
    micro_batch = max(m for m in range(1, share + 1) if share % m == 0 and m <= tuned.micro_batch)
    return candidate_of(session, {"zero.stage": tuned.stage, "micro_batch": micro_batch})


def behind(table: Table, candidate: Candidate) -> float | None:
    """By which share it is below the table's best; None: it is not in the table."""
    row = table.rows.get(candidate.hash)
    return None if row is None or row.samples_per_s is None else table.behind(candidate)


def score(session: Session, exports: dict[str, Path], *, rounds: int) -> dict[str, Any]:
    """Plain training of each export, in turns, and the ratio of the first to the second."""
    rates: dict[str, list[float]] = {name: [] for name in exports}
    for turn in range(rounds):
        for name in list(exports)[:: -1 if turn % 2 else 1]:
            rates[name].append(plain_samples_per_s(session, exports[name]))
    found: dict[str, Any] = {
        name: {"samples_per_s": math.exp(statistics.fmean(map(math.log, its))), "runs": its}
        for name, its in rates.items()
    }
    for name, its in rates.items():
        runs = " ".join(f"{rate:.1f}" for rate in its)
        print(f"plain training of {name}: {found[name]['samples_per_s']:.1f} samples/s ({runs})")
    if len(rates) == 2:
        one, other = rates.values()
        ratio = compared([math.log(a / b) for a, b in zip(one, other, strict=True)])
        ratio.pop("verdict")
        found["ratio"] = ratio
        print(f"ratio {ratio['ratio']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3g})")
    return found


class Progress:
    """Says now and then how far a search is."""

    def __init__(self, name: str) -> None:
        self._name, self._said = name, 0

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Every ten trials."""
        n_ended = sum(snapshot.counts.values())
        if n_ended >= self._said + 10:
            self._said = n_ended
            print(f"  {self._name}: {n_ended} trials, {snapshot.elapsed_s:.0f} s", file=sys.stderr)

    def on_note(self, note: str) -> None:
        """Not of interest."""


if __name__ == "__main__":
    sys.exit(main())
