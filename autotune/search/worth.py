"""The way from the baseline to another candidate, one change at a time, each step run again.

Every configuration of the way runs once a round, cold: the baseline, each change alone, the
target, the target without each change, and what lies between in the order of the gains alone.
Where the gain of a change depends on others, pairs of such changes run in both orders.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autotune.base.errors import JobError
from autotune.base.units import format_rate, format_seconds
from autotune.contract import Role, TrialResult, TrialSpec
from autotune.engines.base import Engine
from autotune.record.answer import Speedup
from autotune.record.blocks import BlockRun, Blocks, blocks_of
from autotune.record.guard import guards_of
from autotune.record.spread import is_figure, log_rate, mean_log_rate
from autotune.record.study import Trial
from autotune.record.worth import Interaction, Ladder, LadderConfiguration, LadderStep
from autotune.search.confirm import steps_within
from autotune.search.history import counting, is_settled, results
from autotune.search.recorded import Task
from autotune.search.rounds import FULL_ROUNDS, Round, Runner, in_turn, progress_of, runs_of
from autotune.search.trial_spec import Run, make_spec
from autotune.space.candidate import Candidate, format_value
from autotune.space.knobs import canonical, settings_of

ROUNDS = FULL_ROUNDS
"""Runs of each configuration: as many as in a final comparison in which nobody drops out."""
MOST_ROUNDS = 100
MOST_CHANGES = 8
"""Changes of a way, at most: each takes about three configurations more."""
MOST_PAIRS = 3
"""Pairs whose both orders are run besides."""

Corner = frozenset[str]
"""Changes that a configuration has of the target."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Way(Task):
    """The configurations between two candidates; its record is that of the ladder's trials."""

    baseline: Candidate
    target: Candidate
    start_engine: Engine
    """Engine that renders the baseline: with the other keys of a user's own file."""
    changes: tuple[str, ...] = ()
    """Knobs in which the two differ."""

    def to_target(self) -> "Way":
        """The same with the changes that lead from the baseline to the target.

        Raises:
            JobError: There are none, or too many.
        """
        context = self.engine.context
        target, values = self.target, self.baseline.values
        ours, theirs = settings_of(target, context), settings_of(self.baseline, context)
        changes = tuple(name for name in target.values if ours.get(name) != theirs.get(name))
        way = dataclasses.replace(self, changes=changes)
        if way.candidate(frozenset(changes)) != target:  # what stands at other defaults
            changes = tuple(n for n, v in target.values.items() if values.get(n) != v)
            way = dataclasses.replace(self, changes=changes)
        if not changes:
            raise JobError(
                "the best configuration is the baseline: there is no change to be worth anything",
                "name settings to reach with --set KNOB=VALUE",
            )
        if len(changes) > MOST_CHANGES:
            raise JobError(
                f"{len(changes)} changes lead from the baseline to the target, at most "
                f"{MOST_CHANGES} are run one by one: {', '.join(changes)}",
                "name fewer of them with --set KNOB=VALUE",
            )
        return way

    def candidate(self, corner: Corner) -> Candidate:
        """The baseline with some of the changes; those that do not act there change nothing."""
        if not corner:
            return self.baseline
        chosen = {name: self.target[name] for name in self.target.values if name in corner}
        values = canonical({**self.baseline.values, **chosen}, self.engine.context)
        return Candidate.of(values, world=self.target.world, global_batch=self.target.global_batch)

    def engine_of(self, candidate: Candidate) -> Engine:
        return self.start_engine if candidate == self.baseline else self.engine

    def words(self, change: str) -> str:
        """`zero.stage=3`."""
        return f"{change}={format_value(self.target.get(change))}"


@dataclass(kw_only=True)
class WayRunner:
    """Runs the configurations of a way in rounds."""

    way: Way
    runner: Runner
    target_name: str = "best"
    n_rounds: int = ROUNDS
    _runs: dict[tuple[str, int], list[Trial]] = field(default_factory=dict, init=False)
    _members: dict[str, Candidate] = field(default_factory=dict, init=False)
    """Candidates that were asked for, by hash."""
    _refused: dict[str, str] = field(default_factory=dict, init=False)
    """What rules say of candidates, by hash."""

    def run(self) -> Ladder | None:
        """Run all rounds, and what shows interactions; None if the user ended it.

        Trials that the record holds of the same configurations count: it goes on from them.

        Raises:
            StudyError: The record cannot be written.
            FleetError: No gang is free.
            RenderError: A configuration does not render.
        """
        self._runs = runs_of(t for t in self.way.study.trials() if self.way.is_answered_by(t))
        self._note_plan()
        while (at := progress_of(self._round_after, self._runs)).round is not None:
            key = next(
                k for k in in_turn(at.round.keys, at.number, self.way.job.seed) if k in at.missing
            )
            if not self._run_once(self._members[key], at.number):
                return None
        return self._ladder()

    @cached_property
    def _first_corners(self) -> list[Corner]:
        """The baseline, the target, each change alone, and the target without each."""
        whole, changes = frozenset(self.way.changes), self.way.changes
        alone = [frozenset({change}) for change in changes]
        return [frozenset(), whole, *alone, *(whole - corner for corner in alone)]

    @property
    def _corners(self) -> list[Corner]:
        """These, and what lies between in the order of the gains alone, once these are known."""
        order = self._order
        between = [frozenset(order[:n]) for n in range(1, len(order))]
        return list(dict.fromkeys([*self._first_corners, *between]))

    @property
    def _order(self) -> list[str]:
        """The changes by their gain alone in the first round, those without a figure last."""
        rates = {key: log_rate(run) for (key, number), run in self._figures.items() if not number}

        def alone(change: str) -> float:
            return rates.get(self.way.candidate(frozenset({change})).hash, float("-inf"))

        return sorted(self.way.changes, key=alone, reverse=True)

    def _round_after(self, n_rounds: int) -> Round | None:
        """The rule: all in each of the rounds, then pairs that may interact in as many."""
        corners = self._first_corners
        if n_rounds or self._is_over(0, corners):
            corners = self._corners
        if n_rounds >= self.n_rounds:
            pairs = self._open_pairs
            # Each round has the baseline, which ties it to the others.
            corners = [frozenset(), *pairs] if pairs and n_rounds < 2 * self.n_rounds else []
        members = {c.hash: c for c in map(self.way.candidate, corners) if not self._why_not(c)}
        self._members.update(members)
        return Round(keys=tuple(members), cold=True) if members else None

    def _is_over(self, number: int, corners: Sequence[Corner]) -> bool:
        members = [c for c in map(self.way.candidate, corners) if not self._why_not(c)]
        return all(is_settled(self._runs.get((c.hash, number), ())) for c in members)

    def _why_not(self, candidate: Candidate) -> str:
        """Why a candidate does not run; empty: it does."""
        key = candidate.hash
        if key not in self._refused:
            violations = self.way.engine_of(candidate).judge(candidate)
            self._refused[key] = violations[0].message if violations else ""
        faults = (
            f"{run.outcome}: {run.evidence}"
            for (of, _), trials in self._runs.items()
            if of == key
            for run in results(trials)
            if run.outcome.is_config_fault
        )
        return self._refused[key] or next(faults, "")

    def _note_plan(self) -> None:
        corners, changes = self._first_corners, self.way.changes
        n = len({self.way.candidate(corner) for corner in corners}) + max(0, len(changes) - 3)
        self.runner.note(
            f"ladder: {len(changes)} changes ({', '.join(map(self.way.words, changes))}), about "
            f"{n} configurations in {self.n_rounds} rounds: {n * self.n_rounds} trials"
        )

    def _run_once(self, candidate: Candidate, number: int) -> bool:
        """Run a configuration in a round; False if the user ended it."""
        spec = self._spec(candidate, number)
        trial = self.runner.run(spec, self.way.engine_of(candidate).files(candidate))
        if trial is None or trial.result is None:
            return False
        self._runs.setdefault((candidate.hash, number), []).append(trial)
        changes = [c for c in self.way.changes if candidate.get(c) != self.way.baseline.get(c)]
        self.runner.note(
            f"round {number + 1}: {', '.join(map(self.way.words, changes)) or 'the baseline'}: "
            f"{trial.result.outcome}, {format_rate(trial.result.samples_per_s)} samples/s in "
            f"{format_seconds(trial.result.wall_s)}"
        )
        return True

    def _spec(self, candidate: Candidate, number: int) -> TrialSpec:
        step_s = max(
            filter(None, (run.step_time_s for run in self._figures.values())), default=None
        )
        return make_spec(
            Run(
                candidate=candidate,
                role=Role.CONFIRM,
                confirm_round=number,
                least_steps=steps_within(self.way.job.guard_steps, step_s),
            ),
            study=self.way.study.name,
            number=self.way.study.next_number(),
            job=self.way.job,
            engine=self.way.engine_of(candidate),
            environment=self.way.environment,
        )

    @property
    def _figures(self) -> dict[tuple[str, int], TrialResult]:
        """The result that counts of each run that has one."""
        counted = ((at, counting(trials)) for at, trials in self._runs.items())
        return {at: run for at, run in counted if run is not None and is_figure(run)}

    def _blocks(self, n_rounds: float = math.inf) -> Blocks:
        return blocks_of(
            [
                BlockRun(of=key, round_number=number, log_rate=log_rate(run))
                for (key, number), run in self._figures.items()
                if number < n_rounds
            ]
        )

    @cached_property
    def _open_pairs(self) -> list[Corner]:
        """Pairs of changes whose gains depend on other changes, and that did not run together.

        They follow from the rounds of everybody, once these are over.
        """
        blocks, whole = self._blocks(self.n_rounds), frozenset(self.way.changes)
        suspects = []
        for change in self.way.changes:
            weights = self._contrast(frozenset(), frozenset({change}), whole - {change})
            factor = blocks.gain(weights, of_many=len(self.way.changes))
            if factor is not None and factor.is_told_apart:
                suspects.append(change)
        pairs = [frozenset(pair) for pair in itertools.combinations(suspects, 2)]
        pairs = [pair for pair in pairs if pair not in self._corners][:MOST_PAIRS]
        if pairs:
            self.runner.note(
                "pairs that may interact run in both orders: "
                + ", ".join(" and ".join(map(self.way.words, sorted(pair))) for pair in pairs)
            )
        return pairs

    def _contrast(self, within: Corner, first: Corner, second: Corner) -> Mapping[str, float]:
        """Weights of: both over the product of each alone, beside what is there already."""
        weights: dict[str, float] = {}
        for corner, weight in (
            (within | first | second, 1.0),
            (within | first, -1.0),
            (within | second, -1.0),
            (within, 1.0),
        ):
            key = self.way.candidate(corner).hash
            weights[key] = weights.get(key, 0.0) + weight
        return {key: weight for key, weight in weights.items() if weight}

    def _ladder(self) -> Ladder:
        order, whole = self._order, frozenset(self.way.changes)
        shown = [*self._corners, *self._open_pairs]
        shown.sort(key=lambda corner: (len(corner), sorted(corner)))
        place = {corner: n for n, corner in enumerate(shown)}
        blocks = self._blocks()

        def gain(over: Corner, of: Corner) -> Speedup | None:
            return self._gain(blocks, of, over)

        def step(change: str, over: Corner, of: Corner) -> LadderStep:
            return LadderStep(
                change=self.way.words(change),
                place=place[of],
                before=place[over],
                gain=gain(over, of),
            )

        losses = [run.losses for run in self._figures.values() if run.losses]
        n_common = min(map(len, losses), default=0)
        trials = [trial for ran in self._runs.values() for trial in ran]
        guards = guards_of(trials, self.way.baseline.hash, self.way.job.guard_steps)
        up = [
            step(change, frozenset(order[:n]), frozenset(order[: n + 1]))
            for n, change in enumerate(order)
        ]
        return Ladder(
            study=self.way.study.root.name,
            target=self.target_name,
            n_rounds=self.n_rounds,
            loss_step=n_common,
            configurations=[self._configuration(corner, n_common, guards) for corner in shown],
            up=up,
            alone=[step(change, frozenset(), frozenset({change})) for change in order],
            out=[step(change, whole - {change}, whole) for change in order],
            interactions=self._interactions(blocks, place),
            gain=gain(frozenset(), whole),
            device_name=self.way.environment.device_name,
        )

    def _gain(self, blocks: Blocks, of: Corner, over: Corner) -> Speedup | None:
        ours, theirs = self.way.candidate(of).hash, self.way.candidate(over).hash
        if ours == theirs:  # the change does not act there
            return Speedup(ratio=1.0, low=1.0, high=1.0)
        return blocks.gain({ours: 1.0, theirs: -1.0})

    def _configuration(
        self, corner: Corner, n_common: int, guards: Mapping[str, object]
    ) -> LadderConfiguration:
        candidate = self.way.candidate(corner)
        key = candidate.hash
        runs = [run for (of, _), run in self._figures.items() if of == key]
        peaks = [r.peak_memory_bytes for r in runs if r.peak_memory_bytes is not None]
        ends = [r.losses[n_common - 1] for r in runs if n_common and r.losses]
        why = self._why_not(candidate) or "its runs were ended by the platform"
        return LadderConfiguration(
            changes=sorted(corner, key=self.way.changes.index),
            candidate=dict(candidate.values),
            samples_per_s=math.exp(mean_log_rate(runs)) if runs else None,
            peak_memory_bytes=max(peaks, default=None),
            loss=sum(ends) / len(ends) if ends else None,
            guard=str(guards[key]) if key in guards else "",
            n_runs=len(runs),
            why="" if runs else why,
        )

    def _interactions(self, blocks: Blocks, place: Mapping[Corner, int]) -> list[Interaction]:
        """Pairs whose gain together is told apart from the product of their gains alone.

        Beside the baseline where the pair ran there, else beside the other changes of the target.
        """
        whole, found = frozenset(self.way.changes), []
        n_pairs = math.comb(len(self.way.changes), 2)
        for first, second in itertools.combinations(self.way.changes, 2):
            one, other = frozenset({first}), frozenset({second})
            for within in (frozenset(), whole - one - other):
                needed = (within, within | one, within | other, within | one | other)
                if any(corner not in place for corner in needed):
                    continue
                weights = self._contrast(within, one, other)
                factor = blocks.gain(weights, of_many=n_pairs)
                if factor is None or not factor.is_told_apart:
                    continue
                found.append(
                    Interaction(
                        first=self.way.words(first),
                        second=self.way.words(second),
                        first_alone=self._gain(blocks, within | one, within),
                        first_after_second=self._gain(
                            blocks, within | one | other, within | other
                        ),
                        second_alone=self._gain(blocks, within | other, within),
                        second_after_first=self._gain(blocks, within | one | other, within | one),
                        factor=factor,
                    )
                )
                break
        return found
