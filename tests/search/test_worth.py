"""The way from a baseline to a target: its order, what each change brings, and what interacts."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.base.errors import JobError
from autotune.contract import Outcome, TrialResult, TrialSpec
from autotune.record.blocks import blocks_of
from autotune.record.found import write_found
from autotune.record.study import Study
from autotune.record.worth import LADDER_FILE, Ladder, read_ladder
from autotune.report.parts import facts_in, tell_parts
from autotune.report.terminal.tables import print_told
from autotune.search.session import RecordedPlace
from autotune.search.worth import Way, WayRunner
from autotune.space.candidate import Candidate
from tests.report.told import printed
from tests.search.scripted import (
    ENVIRONMENT,
    GIB,
    Behaviour,
    ScriptedEngine,
    ScriptedFleet,
    candidate,
    fault,
    make,
    ok,
    runner_of,
)

JOB = make()
START = candidate(JOB, zero__stage=0, micro_batch=1)
TARGET = candidate(JOB, zero__stage=1, micro_batch=4, host_allocator="keep")
EFFECTS = {"zero.stage": 0.9, "micro_batch": 1.5, "host_allocator": 1.2}


def rate(spec: TrialSpec, together: float = 1.0) -> float:
    """Each change has its factor; allocator and micro-batch bring another one together."""
    knobs = spec.identity.knobs
    changed = {name for name in EFFECTS if knobs[name] != START[name]}
    factor = math.prod(EFFECTS[name] for name in changed)
    if {"micro_batch", "host_allocator"} <= changed:
        factor *= together
    wobble = 0.002 * np.random.default_rng(spec.identity.number).standard_normal()
    slow_round = 0.5 if spec.identity.confirm_round == 1 else 1.0
    return 100 * factor * slow_round * (1 + wobble)


def walk(
    folder: Path,
    behave: Behaviour,
    *,
    target: Candidate = TARGET,
    refused: Callable[[Candidate], bool] = lambda _: False,
    fleet: ScriptedFleet | None = None,
) -> tuple[Ladder | None, ScriptedFleet]:
    engine = ScriptedEngine(JOB, refused=refused)
    fleet = fleet or ScriptedFleet(behave)
    record = Study(folder, "ladder")
    record.trials_folder.mkdir(parents=True, exist_ok=True)
    way = way_between(START, target, engine, record)
    return WayRunner(session=way, runner=runner_of(record, fleet)).run(), fleet


def way_between(
    baseline: Candidate, target: Candidate, engine: ScriptedEngine, record: Study
) -> Way:
    return Way(
        job=replace(JOB, guard_steps=0),
        place=RecordedPlace(ENVIRONMENT, {}),
        engine=engine,
        study=record,
        baseline=baseline,
        target=target,
        start_engine=engine,
    )


def measured(spec: TrialSpec) -> TrialResult:
    result = ok(spec, rate(spec), peak=GIB * spec.layout.micro_batch)
    return replace(result, losses=[5.0 - 0.1 * step for step in range(12)])


def test_the_way_goes_by_the_gains_alone_and_its_steps_multiply_to_the_whole(tmp_path: Path):
    ladder, fleet = walk(tmp_path, measured)
    assert [step.change for step in ladder.up] == [
        "micro_batch=4",
        "host_allocator=keep",
        "zero.stage=1",
    ]
    for steps in (ladder.up, ladder.alone, ladder.out):
        gains = [step.gain for step in steps]
        assert [g.ratio for g in gains if g] == pytest.approx([1.5, 1.2, 0.9], rel=0.01)
        assert all(g is not None and g.low < g.ratio < g.high for g in gains)
    assert ladder.gain.ratio == pytest.approx(1.5 * 1.2 * 0.9, rel=0.01)
    # Three changes have eight combinations, each three times; half as fast a round is no noise.
    assert len(fleet.specs) == 24
    assert {spec.measure.start for spec in fleet.specs} == {"cold"}
    assert ladder.interactions == []
    assert ladder.gain.high / ladder.gain.low < 1.05
    first, *_, last = ladder.configurations
    assert (first.changes, len(last.changes)) == ([], 3)
    assert last.loss == pytest.approx(5.0 - 0.1 * (ladder.loss_step - 1))
    assert last.peak_memory_bytes == 4 * GIB


def test_a_pair_that_interacts_is_named_in_both_orders(tmp_path: Path):
    ladder, _ = walk(tmp_path, lambda spec: ok(spec, rate(spec, together=0.7)))
    (pair,) = ladder.interactions
    assert {pair.first, pair.second} == {"micro_batch=4", "host_allocator=keep"}
    assert pair.factor.ratio == pytest.approx(0.7, rel=0.01)
    firsts = (pair.first_alone, pair.first_after_second)
    assert all(gain is not None for gain in firsts)
    assert firsts[0].ratio == pytest.approx(firsts[1].ratio / 0.7, rel=0.02)
    assert "interacts" in dict(facts_in(tell_parts("ladder", {"ladder": ladder})))


def test_what_rules_refuse_or_runs_out_of_memory_has_no_figure_and_says_why(tmp_path: Path):
    def behave(spec: TrialSpec) -> TrialResult:
        if spec.layout.micro_batch == 4 and spec.identity.knobs["zero.stage"] == 0:
            return fault(spec, Outcome.OOM, "CUDA out of memory")
        return measured(spec)

    ladder, fleet = walk(
        tmp_path, behave, refused=lambda c: c["host_allocator"] == "keep" and c.micro_batch == 1
    )
    why = [ran.why for ran in ladder.configurations if ran.why]
    assert any("oom: CUDA out of memory" in text for text in why)
    assert "refused" in why
    assert ladder.gain is not None
    lost = [s for s in fleet.specs if behave(s).outcome is Outcome.OOM]
    assert len({s.identity.candidate_hash for s in lost}) == len(lost), "none is tried again"


def test_it_goes_on_from_what_ran_before(tmp_path: Path):
    whole, _ = walk(tmp_path, measured)
    again, fleet = walk(tmp_path, measured)
    assert fleet.specs == []
    assert again == whole


def test_it_is_read_as_it_was_written_and_not_where_it_is_damaged(tmp_path: Path):
    ladder, _ = walk(tmp_path, measured)
    assert ladder is not None
    path = write_found(tmp_path / LADDER_FILE, ladder)
    assert read_ladder(tmp_path) == ladder
    assert "one after the other" in printed(print_told, "ladder", {"ladder": ladder})
    path.write_text(path.read_text().replace('"place": 1', '"place": 99'), encoding="utf-8")
    assert read_ladder(tmp_path) is None


def test_nothing_to_be_worth_anything(tmp_path: Path):
    with pytest.raises(JobError, match="no change"):
        _ = way_between(START, START, ScriptedEngine(JOB), Study(tmp_path, "ladder")).changes


def test_intervals_of_blocks_hold_in_95_of_100_cases():
    numbers = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        rounds = numbers.normal(0, 0.2, 3)
        logs = {
            name: {n: mean + rounds[n] + numbers.normal(0, 0.03) for n in range(3)}
            for name, mean in (("a", 0.0), ("b", 0.1), ("c", 0.3))
        }
        del logs["c"][1]  # one that was lost
        gain = blocks_of(logs).gain({"c": 1.0, "a": -1.0})
        held += gain.low <= math.exp(0.3) <= gain.high
    assert 0.92 <= held / 400 <= 0.98
