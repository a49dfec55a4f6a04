"""The way from the baseline to another candidate, one change at a time, each step run again.

Every configuration of the way runs once a round, cold: the baseline, each change alone, the
target, the target without each change, and what lies between in the order of the gains alone.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from autotune.base.errors import JobError
from autotune.engines.base import Engine
from autotune.record.answer import Speedup
from autotune.record.blocks import Blocks, blocks_of
from autotune.record.guard import guards_of
from autotune.record.spread import mean_log_rate
from autotune.record.worth import Interaction, Ladder, LadderConfiguration, LadderStep
from autotune.search.rounds import FULL_ROUNDS, Round, Rounds
from autotune.search.session import Session
from autotune.search.trial_spec import Run
from autotune.space.candidate import Candidate, format_value
from autotune.space.knobs import changed_knobs, partway

ROUNDS = FULL_ROUNDS
"""Runs of each configuration: as many as in a final comparison in which nobody drops out."""
MOST_ROUNDS = 100
MOST_CHANGES = 8
"""Changes of a way, at most: each takes about three configurations more."""

Corner = frozenset[str]
"""Changes that a configuration has of the target."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Way(Session):
    """The configurations between two candidates; its record is that of the ladder's trials."""

    baseline: Candidate
    target: Candidate
    start_engine: Engine
    """Engine that renders the baseline: with the other keys of a user's own file."""

    @cached_property
    def changes(self) -> tuple[str, ...]:
        """Knobs in which the two differ.

        Raises:
            JobError: There are none, or too many.
        """
        changes = changed_knobs(self.target, self.baseline, self.engine.context)
        if not changes:
            raise JobError.of("search.nothing_changes")
        if len(changes) > MOST_CHANGES:
            names = ", ".join(changes)
            raise JobError.of("search.too_many", n=len(changes), most=MOST_CHANGES, names=names)
        return changes

    def candidate(self, corner: Corner) -> Candidate:
        """The baseline with some of the changes."""
        return partway(self.baseline, self.target, corner, self.engine.context)

    def engine_of(self, candidate: Candidate) -> Engine:
        return self.start_engine if candidate == self.baseline else self.engine

    def words(self, change: str) -> str:
        return f"{change}={format_value(self.target.get(change))}"


@dataclass(kw_only=True)
class WayRunner(Rounds):
    """Runs the configurations of a way in rounds."""

    session: Way
    n_rounds: int = ROUNDS
    target_name: str = "best"
    _refused: dict[str, str] = field(default_factory=dict, init=False)
    """What rules say of candidates, by hash."""

    def run(self) -> Ladder | None:
        """Run all rounds; None if the user ended it.

        Trials that the record holds of the same configurations count: it goes on from them.

        Errors are those of `run_all`.
        """
        way, changes = self.session, self.session.changes
        n = len(set(map(way.candidate, self._first_corners))) + max(0, len(changes) - 3)
        self.runner.note(
            f"ladder: {len(changes)} changes ({', '.join(map(way.words, changes))}), about "
            f"{n} configurations in {self.n_rounds} rounds: {n * self.n_rounds} trials"
        )
        return self._ladder() if self.run_all() else None

    @cached_property
    def _first_corners(self) -> list[Corner]:
        """The baseline, the target, each change alone, and the target without each."""
        whole, changes = frozenset(self.session.changes), self.session.changes
        alone = [frozenset({change}) for change in changes]
        return [frozenset(), whole, *alone, *(whole - corner for corner in alone)]

    @property
    def _corners(self) -> list[Corner]:
        """These, and what lies between in the order of the gains alone, once these are known."""
        first, order = Round(keys=tuple(self._members(self._first_corners))), self._order
        if self.runs.progress(lambda n: None if n else first, self.to_repeat).missing:
            return self._first_corners
        between = [frozenset(order[:n]) for n in range(1, len(order))]
        return list(dict.fromkeys([*self._first_corners, *between]))

    @property
    def _order(self) -> list[str]:
        """The changes by their gain alone in the first round, those without a figure last."""
        way, logs = self.session, self.runs.logs

        def alone(change: str) -> float:
            return logs.get(way.candidate(frozenset({change})).hash, {}).get(0, -math.inf)

        return sorted(way.changes, key=alone, reverse=True)

    def round_after(self, n_rounds: int) -> Round | None:
        keys = tuple(self._members(self._corners)) if n_rounds < self.n_rounds else ()
        return Round(keys=keys) if keys else None

    def candidate_of(self, key: str) -> Candidate:
        return self._members(self._corners)[key]

    def about(self, run: Run, number: int) -> str:
        way, candidate = self.session, run.candidate
        changes = [c for c in way.changes if candidate.get(c) != way.baseline.get(c)]
        return f"round {number + 1}: {', '.join(map(way.words, changes)) or 'the baseline'}"

    def _members(self, corners: list[Corner]) -> dict[str, Candidate]:
        """The candidates of corners that may run, by hash."""
        members = map(self.session.candidate, corners)
        return {member.hash: member for member in members if not self._why_not(member)}

    def _why_not(self, candidate: Candidate) -> str:
        """Why a candidate does not run; empty: it does."""
        key = candidate.hash
        if key not in self._refused:
            violations = self.session.engine_of(candidate).judge(candidate)
            self._refused[key] = violations[0].message if violations else ""
        ended = self.runs.ended_of(key)
        faults = (f"{r.outcome}: {r.evidence}" for r in ended if r.outcome.is_config_fault)
        return self._refused[key] or next(faults, "")

    def _ladder(self) -> Ladder:
        order, whole = self._order, frozenset(self.session.changes)
        shown = sorted(self._corners, key=lambda corner: (len(corner), sorted(corner)))
        place = {corner: n for n, corner in enumerate(shown)}
        runs = self.runs
        blocks = blocks_of(runs.logs)

        def step(change: str, over: Corner, of: Corner) -> LadderStep:
            gain = self._gain(blocks, of, over)
            words = self.session.words(change)
            return LadderStep(change=words, place=place[of], before=place[over], gain=gain)

        n_losses = [len(run.losses) for run in runs.figures.values() if run.losses]
        n_common = min(n_losses, default=0)
        guards = guards_of(
            self.runner.history.trials, self.session.baseline.hash, self.session.job.guard_steps
        )
        below = [frozenset(order[:n]) for n in range(len(order))]
        return Ladder(
            study=self.session.study.root.name,
            target=self.target_name,
            n_rounds=self.n_rounds,
            loss_step=n_common,
            configurations=[self._configuration(corner, n_common, guards) for corner in shown],
            up=[step(change, b, b | {change}) for change, b in zip(order, below, strict=True)],
            alone=[step(change, frozenset(), frozenset({change})) for change in order],
            out=[step(change, whole - {change}, whole) for change in order],
            interactions=[*self._interactions(blocks, place)],
            gain=self._gain(blocks, whole, frozenset()),
            device_name=self.session.environment.device_name,
        )

    def _gain(self, blocks: Blocks, of: Corner, over: Corner) -> Speedup | None:
        key, before = self.session.candidate(of).hash, self.session.candidate(over).hash
        if key == before:  # the change does not act there
            return Speedup(ratio=1.0, low=1.0, high=1.0)
        return blocks.gain({key: 1.0, before: -1.0})

    def _configuration(
        self, corner: Corner, n_common: int, guards: Mapping[str, object]
    ) -> LadderConfiguration:
        candidate = self.session.candidate(corner)
        key = candidate.hash
        runs = self.runs.figures_of(key)
        peaks = [r.peak_memory_bytes for r in runs if r.peak_memory_bytes is not None]
        ends = [r.losses[n_common - 1] for r in runs if n_common and r.losses]
        why = self._why_not(candidate) or "its runs were ended by the platform"
        return LadderConfiguration(
            changes=sorted(corner, key=self.session.changes.index),
            candidate=dict(candidate.values),
            samples_per_s=math.exp(mean_log_rate(runs)) if runs else None,
            peak_memory_bytes=max(peaks, default=None),
            loss=sum(ends) / len(ends) if ends else None,
            guard=str(guards[key]) if key in guards else "",
            n_runs=len(runs),
            why="" if runs else why,
        )

    def _interactions(self, blocks: Blocks, place: Mapping[Corner, int]) -> Iterator[Interaction]:
        """Pairs whose gain together is told apart from the product of their gains alone.

        Beside the baseline where the pair ran there, else beside the other changes of the target.
        """
        whole = frozenset(self.session.changes)
        pairs = list(itertools.combinations(self.session.changes, 2))
        for first, second in pairs:
            one, other = frozenset({first}), frozenset({second})
            for base in (frozenset(), whole - one - other):
                both = base | one | other
                corners = {both: 1.0, base | one: -1.0, base | other: -1.0, base: 1.0}
                if not corners.keys() <= place.keys():
                    continue
                weights: dict[str, float] = {}
                for corner, weight in corners.items():
                    key = self.session.candidate(corner).hash
                    weights[key] = weights.get(key, 0.0) + weight
                acting = {key: weight for key, weight in weights.items() if weight}
                factor = blocks.gain(acting, of_many=len(pairs))
                if factor is None or not factor.is_told_apart:
                    continue
                gain = self._gain
                yield Interaction(
                    first=self.session.words(first),
                    second=self.session.words(second),
                    first_alone=gain(blocks, base | one, base),
                    first_after_second=gain(blocks, both, base | other),
                    second_alone=gain(blocks, base | other, base),
                    second_after_first=gain(blocks, both, base | one),
                    factor=factor,
                )
                break
