"""What is the final comparison's race worth, beside three rounds of everybody? Simulated studies.

    python benchmarks/final_comparison.py [--studies N] [--seed N] [--finalists N] [--json]

Nothing is trained. In each study a search has tried a dozen candidates, each once; those whose
intervals overlap the best's are compared with the baseline. Old procedure and race judge the same
machine in turns: three cold rounds of everybody, and the rounds that `autotune.search.race` asks
for. In a third of the studies nothing differs at all: neither candidates nor baseline.

The noise is what recorded studies show (`results/recorded/repeatability-*.json` and
`search-wall-clock-cpu-2-unfitted.json`): deviations between processes of 1.9, 2.8 and 9.2% as the
middle of three kinds of machines, and a calm one; each run's own luck is drawn from the residuals
of those 100 runs (their kurtosis is 10 and 3.5), or from Student's t with 3 degrees of freedom, or
it is normal; the deviation differs from candidate to candidate. On top comes what those residuals
cannot show: a machine that drifts from run to run, phases in which everything is slower by a
sixth, and a start that changes a candidate's speed by half a percent (warm against cold).

Printed are, for both procedures: runs, seconds, how often the gain's 95% interval holds the true
gain, how often a gain is claimed among equals, how often the named one is more than 2%
slower than the best that was compared, and than the best that the search has tried, and how wide
the interval is. Exits 1 if the race holds
fewer than 95%, claims more than 5% or chooses wrongly in more than 5%.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autotune.base.student_t import CONFIDENCE, t_quantile
from autotune.contract import Start
from autotune.record.answer import Speedup
from autotune.record.spread import Spread
from autotune.search.confirm import MAX_FINALISTS
from autotune.search.race import BLOCK, COLD, WARM, Race, Rules, blocks_in

RECORDED = Path(__file__).parents[1] / "results" / "recorded"
RECORDS = ("repeatability-cpu-2.json", "repeatability-cpu-2-noisy.json")
DEVIATIONS = {"calm": 0.007, "quiet": 0.019, "usual": 0.028, "noisy": 0.092}
"""Kind of machine -> middle deviation of log samples/s between processes."""
SHARES = (0.25, 0.35, 0.3, 0.1)
OWN_DEVIATION = {"warm": 0.014, "brief": 0.014, "cold": 0.008}
"""Deviation of a run's median by its own steps: of 3 s of them, and of 10 s. A brief run starts
cold and measures like those beside it that start warm."""
SECONDS = {"warm": 4.0, "brief": 10.0, "cold": 17.0}
"""Seconds that one run takes, start included, as on two CPU cores."""
CANDIDATES = 12
ROUNDS = 3
"""Of the old procedure."""
WRONG = 0.02


def residuals() -> list[np.ndarray]:
    """Residuals of log samples/s of each recorded study, standardised."""
    found = []
    for name in RECORDS:
        runs: dict[str, list[float]] = {}
        for run in json.loads((RECORDED / name).read_text(encoding="utf-8"))["runs"]:
            runs.setdefault(run["candidate"], []).append(math.log(run["samples_per_s"]))
        rest = np.concatenate([np.array(own) - statistics.fmean(own) for own in runs.values()])
        found.append(rest / rest.std())
    return found


@dataclass
class Machine:
    """A machine with its noise, and the candidates that run on it."""

    draw: np.random.Generator
    kind: str
    luck: np.ndarray | str
    deviations: Mapping[str, float]
    truths: Mapping[str, float]
    """log samples/s of a cold start."""
    shifts: Mapping[str, float]
    """What a warm start adds to it."""
    is_equal: bool
    """Whether all candidates and the baseline are equally fast."""
    drift: float
    """Deviation by which the machine's speed moves from run to run."""
    phases: float
    """Probability that a run begins a slow phase."""
    level: float = 0.0
    is_slow: bool = False
    n_runs: int = 0
    seconds: float = 0.0

    def run(self, key: str, start: str) -> float:
        """One run's log samples/s."""
        self.n_runs += 1
        self.seconds += SECONDS[start]
        self.level += self.draw.normal(0, self.drift)
        self.is_slow = self.draw.random() < (0.75 if self.is_slow else self.phases)
        noise = self._luck() * self.deviations[key]
        noise += self.draw.normal(0, OWN_DEVIATION[start])
        slower = math.log(6 / 5) if self.is_slow else 0.0
        shift = self.shifts[key] if start == "warm" else 0.0
        return self.truths[key] + shift + self.level - slower + noise

    def _luck(self) -> float:
        if isinstance(self.luck, str):
            return float(self.draw.normal()) if self.luck == "normal" else self._heavy()
        return float(self.draw.choice(self.luck))

    def _heavy(self) -> float:
        return float(self.draw.standard_t(3)) / math.sqrt(3)


def machine_of(
    draw: np.random.Generator, recorded: list[np.ndarray], *, is_equal: bool
) -> Machine:
    """A machine and candidates of a study; the baseline's key is `baseline`."""
    kind = str(draw.choice(list(DEVIATIONS), p=SHARES))
    luck = [recorded[int(kind == "noisy")], "heavy", "normal"][draw.integers(3)]
    keys = [f"c{i:02}" for i in range(CANDIDATES)]
    middle = DEVIATIONS[kind] * math.exp(draw.normal(0, 0.2))
    offsets = dict.fromkeys(keys, 0.0)
    if not is_equal:
        offsets = {key: -abs(draw.normal(0, 0.08)) for key in keys}
    gain = 0.0 if is_equal else float(draw.choice([0.0, *draw.uniform(0, 0.7, 3)]))
    truths = {"baseline": max(offsets.values()) - gain, **offsets}
    return Machine(
        draw=draw,
        kind=kind,
        luck=luck,
        deviations={key: middle * math.exp(draw.normal(0, 0.3)) for key in truths},
        truths=truths,
        shifts={key: 0.0 if is_equal else draw.normal(0, 0.005) for key in truths},
        is_equal=is_equal,
        drift=float(draw.choice([0.0, 0.002, 0.006])),
        phases=float(draw.choice([0.0, 0.0, 0.02])),
    )


def finalists(machine: Machine, most: int) -> dict[str, float]:
    """Log samples/s of the search's own trials of those that are compared, and the baseline's."""
    own = {key: machine.run(key, "warm") for key in machine.truths}
    others = sorted((key for key in own if key != "baseline"), key=lambda key: -own[key])
    reach = 2 * Spread().half_width(OWN_DEVIATION["warm"] ** 2)
    near = [key for key in others if own[others[0]] - own[key] <= reach]
    return {key: own[key] for key in (*near[:most], "baseline")}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a procedure says."""

    best: str
    gain: Speedup


def old_answer(machine: Machine, own: Mapping[str, float]) -> Answer:
    """Three cold rounds of everybody, and one look at the end."""
    logs: dict[str, dict[int, float]] = {key: {} for key in own}
    order = sorted(own)
    machine.draw.shuffle(order)
    for turn in range(ROUNDS):
        for place in range(len(order)):
            key = order[(turn + place) % len(order)]
            logs[key][turn] = machine.run(key, "cold")
    best = max(logs, key=lambda key: math.fsum(logs[key].values()))
    blocks = blocks_in(logs)
    confidence = 1 - (1 - CONFIDENCE) / (len(logs) - 1)
    half = t_quantile(confidence, blocks.degrees) * math.sqrt(2 * blocks.variance / ROUNDS)
    mean = statistics.fmean(logs[best][n] - logs["baseline"][n] for n in range(ROUNDS))
    ratio, low, high = (math.exp(mean + sign * half) for sign in (0, -1, 1))
    return Answer(best=best, gain=Speedup(ratio=ratio, low=low, high=high))


def race_answer(machine: Machine, own: Mapping[str, float], rules: Rules) -> Answer:
    """The race."""
    peaks = {key: float(place) for place, key in enumerate(machine.draw.permutation(sorted(own)))}
    logs: dict[str, dict[int, float]] = {key: {} for key in own}
    order = sorted(own)
    machine.draw.shuffle(order)
    confirmed: set[str] = set()
    kinds = {Start.WARM: "warm", Start.COLD: "brief" if rules.start is Start.WARM else "cold"}
    for turn in range(BLOCK + 1):
        race = Race(
            peaks={key: peaks[key] for key in own},
            trial_logs=own,
            baseline="baseline",
            logs=logs,
            n_rounds=turn,
            confirmed=confirmed,
            rules=rules,
        )
        asked = race.next_round()
        if asked is None:
            break
        for place in range(len(order)):
            key = order[(turn + place) % len(order)]
            if key in asked.keys:
                logs[key][turn] = machine.run(key, kinds[asked.start])
        confirmed |= set(asked.keys) if asked.start is Start.COLD else set()
    gain = race.gain(race.best, "baseline")
    assert gain is not None
    return Answer(best=race.best, gain=gain)


@dataclass
class Tally:
    """What a procedure did over many studies."""

    runs: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)
    claimed: list[bool] = field(default_factory=list)
    """Of equals: whether a gain was claimed."""
    wrong: list[bool] = field(default_factory=list)
    """Of others: whether a choice was wrong."""
    missed: list[bool] = field(default_factory=list)
    """Of others: whether it is as far behind the best of all that the search tried."""
    widths: list[float] = field(default_factory=list)
    """Half widths of the interval in log samples/s."""

    def add(self, machine: Machine, own: Mapping[str, float], answer: Answer) -> None:
        """Judge an answer by the truth."""
        self.runs.append(machine.n_runs)
        self.seconds.append(machine.seconds)
        true = machine.truths[answer.best] - machine.truths["baseline"]
        self.held.append(answer.gain.low <= math.exp(true) <= answer.gain.high)
        if machine.is_equal:
            self.claimed.append(answer.gain.low > 1)
        else:
            best = max(machine.truths[key] for key in own)
            self.wrong.append(best - machine.truths[answer.best] > WRONG)
            best_of_all = max(machine.truths.values())
            self.missed.append(best_of_all - machine.truths[answer.best] > WRONG)
        self.widths.append(math.log(answer.gain.high / answer.gain.low) / 2)

    def figures(self) -> dict[str, float]:
        """Means and shares, and the median width."""
        return {
            "studies": len(self.runs),
            "runs": statistics.fmean(self.runs),
            "seconds": statistics.fmean(self.seconds),
            "coverage": statistics.fmean(self.held),
            "false_gains": statistics.fmean(self.claimed or [False]),
            "wrong_choices": statistics.fmean(self.wrong or [False]),
            "behind_all": statistics.fmean(self.missed or [False]),
            "half_width": statistics.median(self.widths),
        }


PROCEDURES: dict[str, Callable[[Machine, Mapping[str, float]], Answer]] = {
    "three rounds": old_answer,
    "race": lambda machine, own: race_answer(machine, own, WARM),
    "race, all cold": lambda machine, own: race_answer(machine, own, COLD),
}


def simulate(
    n: int, seed: int, most: int = MAX_FINALISTS
) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by kind of machine and procedure; `all` is every study."""
    recorded = residuals()
    tallies: dict[str, dict[str, Tally]] = {"all": {}, **{kind: {} for kind in DEVIATIONS}}
    for number in range(n):
        for name, answers in PROCEDURES.items():
            draw = np.random.default_rng([seed, number])
            machine = machine_of(draw, recorded, is_equal=number % 3 == 0)
            own = finalists(machine, most)
            machine.n_runs, machine.seconds = 0, 0.0
            answer = answers(machine, own)
            for kind in ("all", machine.kind):
                tallies[kind].setdefault(name, Tally()).add(machine, own, answer)
    return {
        kind: {name: tally.figures() for name, tally in own.items()}
        for kind, own in tallies.items()
    }


def is_good(figures: Mapping[str, float]) -> bool:
    """Whether a procedure holds what an interval of 95% and a choice promise."""
    errors = max(figures["false_gains"], figures["wrong_choices"])
    return figures["coverage"] >= 0.95 and errors <= 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--finalists", type=int, default=MAX_FINALISTS, help="compared, at most")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    found = simulate(options.studies, options.seed, options.finalists)
    names = ("runs", "seconds", "held", "false gain", "wrong", "of all", "half width")
    print(f"{'machine':8}{'procedure':16}" + "".join(f"{name:>12}" for name in names))
    for kind, procedures in found.items():
        for name, figures in procedures.items():
            shares = ("coverage", "false_gains", "wrong_choices", "behind_all", "half_width")
            print(
                f"{kind:8}{name:16}{figures['runs']:12.1f}{figures['seconds']:12.0f}"
                + "".join(f"{figures[share]:12.1%}" for share in shares)
            )
    if options.json:
        print(json.dumps(found))
    return 0 if is_good(found["all"]["race"]) else 1


if __name__ == "__main__":
    sys.exit(main())
