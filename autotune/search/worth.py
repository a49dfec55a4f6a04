"""The way from the baseline to another candidate, one change at a time, each step run again.

Every configuration of the way runs once a round, cold: the baseline, each change alone, the
target, the target without each change, and what lies between in the order of the gains alone.
Where the gain of a change depends on others, pairs of such changes run in both orders.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.base.errors import JobError
from autotune.base.units import format_rate, format_seconds
from autotune.contract import Role, TrialResult, TrialSpec
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine
from autotune.fleet.base import Fleet
from autotune.job.job import Job
from autotune.record.answer import Speedup
from autotune.record.blocks import BlockRun, Blocks, blocks_of
from autotune.record.guard import guards_of
from autotune.record.spread import is_figure, log_rate, mean_log_rate
from autotune.record.study import Study, Trial
from autotune.record.worth import Interaction, Ladder, LadderConfiguration, LadderStep
from autotune.search.confirm import steps_within
from autotune.search.in_flight import CANCEL_WAIT_S
from autotune.search.interrupt import Interrupt
from autotune.search.race import FULL_ROUNDS
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
_POLL_S = 0.2

Corner = frozenset[str]
"""Changes that a configuration has of the target."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """The configurations between two candidates."""

    baseline: Candidate
    target: Candidate
    engine: Engine
    start_engine: Engine
    """Engine that renders the baseline: with the other keys of a user's own file."""
    changes: tuple[str, ...]
    """Knobs in which the two differ."""

    @classmethod
    def between(
        cls, baseline: Candidate, target: Candidate, *, engine: Engine, start_engine: Engine
    ) -> "Way":
        """The changes that lead from one to the other.

        Raises:
            JobError: There are none, or too many.
        """
        context = engine.context
        ours, theirs = settings_of(target, context), settings_of(baseline, context)
        changes = tuple(name for name in target.values if ours.get(name) != theirs.get(name))
        way = cls(
            baseline=baseline,
            target=target,
            engine=engine,
            start_engine=start_engine,
            changes=changes,
        )
        if way.candidate(frozenset(changes)) != target:  # what stands at other defaults
            values = baseline.values
            changes = tuple(n for n, v in target.values.items() if values.get(n) != v)
            way = dataclasses.replace(way, changes=changes)
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
        """Engine that renders a configuration of the way."""
        return self.start_engine if candidate == self.baseline else self.engine

    def words(self, change: str) -> str:
        """`zero.stage=3`."""
        return f"{change}={format_value(self.target.get(change))}"


@dataclass(kw_only=True)
class WayRunner:
    """Runs the configurations of a way in rounds."""

    way: Way
    job: Job
    environment: Environment
    record: Study
    fleet: Fleet
    interrupt: Interrupt
    note: Callable[[str], None]
    target_name: str = "best"
    guard_steps: int = 0
    """First steps whose losses are compared."""
    n_rounds: int = ROUNDS
    seed: int = 0
    trials: list[Trial] = field(default_factory=list)
    """Those that count, by the order in which they ran."""
    refused: dict[str, str] = field(default_factory=dict)
    """Candidate -> why it does not run."""
    _past: dict[tuple[str, int], list[Trial]] = field(default_factory=dict, init=False)
    """Candidate and round -> its measured trials of the record, as it was when this began."""

    def run(self) -> Ladder | None:
        """Run all rounds, and what shows interactions; None if the user ended it.

        Trials that the record holds of the same configurations count: it goes on from them.

        Raises:
            StudyError: The record cannot be written.
            FleetError: No gang is free.
            RenderError: A configuration does not render.
        """
        whole = frozenset(self.way.changes)
        self._past = _measured_by_round(self.record.trials())
        corners: list[Corner] = [frozenset(), whole]
        corners += [frozenset({change}) for change in self.way.changes]
        corners += [whole - {change} for change in self.way.changes]
        self._say(corners)
        if not self._round(0, corners):
            return None
        order = self._order()
        between = [frozenset(order[:n]) for n in range(1, len(order))]
        fresh = [corner for corner in between if corner not in corners]
        if not self._round(0, fresh):
            return None
        corners += fresh
        for number in range(1, self.n_rounds):
            if not self._round(number, corners):
                return None
        pairs = self._open_pairs(corners)
        if pairs:
            self.note(
                "pairs that may interact run in both orders: "
                + ", ".join(" and ".join(map(self.way.words, sorted(pair))) for pair in pairs)
            )
        for number in range(self.n_rounds, self.n_rounds + (self.n_rounds if pairs else 0)):
            # Each round has the baseline, which ties it to the others.
            if not self._round(number, [frozenset(), *pairs]):
                return None
        return self._ladder([*corners, *pairs], order)

    def _say(self, corners: Sequence[Corner]) -> None:
        n = len({self.way.candidate(corner) for corner in corners}) + max(
            0, len(self.way.changes) - 3
        )
        changes = ", ".join(map(self.way.words, self.way.changes))
        self.note(
            f"ladder: {len(self.way.changes)} changes ({changes}), about {n} configurations in "
            f"{self.n_rounds} rounds: {n * self.n_rounds} trials"
        )

    def _round(self, number: int, corners: Sequence[Corner]) -> bool:
        """Run each configuration once, in an order of its own; whether it went through."""
        members = list(dict.fromkeys(self.way.candidate(corner) for corner in corners))
        members.sort(key=lambda member: member.hash)
        random.Random(f"{self.seed} {number}").shuffle(members)
        return all(self._run_once(member, number) for member in members)

    def _run_once(self, candidate: Candidate, number: int) -> bool:
        """Run a configuration in a round, unless it ran there or never will."""
        key = candidate.hash
        if key in self.refused or any(
            t.spec.identity.candidate_hash == key and t.spec.identity.confirm_round == number
            for t in self.trials
        ):
            return True
        engine = self.way.engine_of(candidate)
        if violations := engine.judge(candidate):
            self.refused[key] = violations[0].message
            return True
        trial = self._recorded(candidate, number) or self._trial(candidate, number)
        if trial is not None and trial.result and trial.result.outcome.is_platform_fault:
            trial = self._trial(candidate, number)
        if trial is None or trial.result is None:
            return False
        result = trial.result
        if result.outcome.is_config_fault:
            self.refused[key] = f"{result.outcome}: {result.evidence}"
        elif is_figure(result):
            self.trials.append(trial)
        return True

    def _spec(self, candidate: Candidate, number: int) -> TrialSpec:
        ran = [t.result.step_time_s for t in self.trials if t.result is not None]
        step_s = max(filter(None, ran), default=None)
        return make_spec(
            Run(
                candidate=candidate,
                role=Role.CONFIRM,
                confirm_round=number,
                least_steps=steps_within(self.guard_steps, step_s),
            ),
            study=self.record.name,
            number=self.record.next_number(),
            job=self.job,
            engine=self.way.engine_of(candidate),
            environment=self.environment,
        )

    def _recorded(self, candidate: Candidate, number: int) -> Trial | None:
        """The record's measured trial of the same configuration in the same round."""
        spec = self._spec(candidate, number)
        files = self.way.engine_of(candidate).files(candidate)
        for trial in self._past.get((candidate.hash, number), ()):
            own = trial.spec
            is_same = (
                own.layout == spec.layout
                and own.workload == spec.workload
                and own.measure.memory_limit_bytes == spec.measure.memory_limit_bytes
            )
            if is_same and self.record.read_files(trial) == files:
                return trial
        return None

    def _trial(self, candidate: Candidate, number: int) -> Trial | None:
        """Run one; None if the user ended it."""
        spec = self._spec(candidate, number)
        folder = self.record.write_spec(spec, self.way.engine_of(candidate).files(candidate))
        handle = self.fleet.submit(spec, folder)
        result: TrialResult | None = None
        try:
            while (result := handle.poll()) is None:
                if self.interrupt.draining:
                    return None
                self.interrupt.wait(_POLL_S)
        finally:
            # Whatever happened, nothing runs on and the record says how it ended.
            if result is None:
                handle.cancel()
                result = handle.wait(CANCEL_WAIT_S)
            if result is not None:
                result = self.record.take_result(folder, spec, result)
        changes = [c for c in self.way.changes if candidate.get(c) != self.way.baseline.get(c)]
        rate = format_rate(result.samples_per_s)
        self.note(
            f"round {number + 1}: {', '.join(map(self.way.words, changes)) or 'the baseline'}: "
            f"{result.outcome}, {rate} samples/s in {format_seconds(result.wall_s)}"
        )
        return Trial(folder=folder, spec=spec, result=result)

    def _blocks(self) -> Blocks:
        return blocks_of(
            [
                BlockRun(
                    of=trial.spec.identity.candidate_hash,
                    round_number=trial.spec.identity.confirm_round or 0,
                    log_rate=log_rate(trial.result),
                )
                for trial in self.trials
                if trial.result is not None
            ]
        )

    def _order(self) -> list[str]:
        """The changes by their gain alone, the largest first; those without a figure last."""
        rates = {
            trial.spec.identity.candidate_hash: log_rate(trial.result)
            for trial in self.trials
            if trial.result is not None
        }

        def alone(change: str) -> float:
            return rates.get(self.way.candidate(frozenset({change})).hash, float("-inf"))

        return sorted(self.way.changes, key=alone, reverse=True)

    def _open_pairs(self, corners: Sequence[Corner]) -> list[Corner]:
        """Pairs of changes whose gains depend on other changes, and that did not run together."""
        blocks, whole = self._blocks(), frozenset(self.way.changes)
        suspects = []
        for change in self.way.changes:
            weights = self._contrast(frozenset(), frozenset({change}), whole - {change})
            factor = blocks.gain(weights, of_many=len(self.way.changes))
            if factor is not None and factor.is_told_apart:
                suspects.append(change)
        pairs = [frozenset(pair) for pair in itertools.combinations(suspects, 2)]
        return [pair for pair in pairs if pair not in corners][:MOST_PAIRS]

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

    def _ladder(self, corners: Sequence[Corner], order: Sequence[str]) -> Ladder:
        whole = frozenset(self.way.changes)
        shown = list(dict.fromkeys(corners))
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

        losses = [t.result.losses for t in self.trials if t.result and t.result.losses]
        n_common = min((len(each) for each in losses), default=0)
        guards = guards_of(self.trials, self.way.baseline.hash, self.guard_steps)
        up = [
            step(change, frozenset(order[:n]), frozenset(order[: n + 1]))
            for n, change in enumerate(order)
        ]
        return Ladder(
            study=self.record.root.name,
            target=self.target_name,
            n_rounds=self.n_rounds,
            loss_step=n_common,
            configurations=[self._configuration(corner, n_common, guards) for corner in shown],
            up=up,
            alone=[step(change, frozenset(), frozenset({change})) for change in order],
            out=[step(change, whole - {change}, whole) for change in order],
            interactions=self._interactions(blocks, place),
            gain=gain(frozenset(), whole),
            device_name=self.environment.device_name,
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
        own = [t for t in self.trials if t.spec.identity.candidate_hash == key]
        results = [t.result for t in own if t.result is not None]
        peaks = [r.peak_memory_bytes for r in results if r.peak_memory_bytes is not None]
        ends = [r.losses[n_common - 1] for r in results if n_common and r.losses]
        why = "" if results else self.refused.get(key, "its runs were ended by the platform")
        return LadderConfiguration(
            changes=sorted(corner, key=self.way.changes.index),
            candidate=dict(candidate.values),
            samples_per_s=_rate(results),
            peak_memory_bytes=max(peaks, default=None),
            loss=sum(ends) / len(ends) if ends else None,
            guard=str(guards[key]) if key in guards else "",
            n_runs=len(results),
            why=why,
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


def _measured_by_round(trials: Sequence[Trial]) -> dict[tuple[str, int], list[Trial]]:
    found: dict[tuple[str, int], list[Trial]] = {}
    for trial in trials:
        identity, result = trial.spec.identity, trial.result
        if identity.confirm_round is None or result is None or not result.outcome.is_measured:
            continue
        found.setdefault((identity.candidate_hash, identity.confirm_round), []).append(trial)
    return found


def _rate(results: Sequence[TrialResult]) -> float | None:
    return math.exp(mean_log_rate(results)) if results else None
