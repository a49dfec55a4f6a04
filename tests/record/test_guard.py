"""The convergence guard: who passes and who fails, when nothing can be said, and its errors."""

import math
from dataclasses import replace
from pathlib import Path

import numpy
import pytest

from autotune.contract import Outcome, Role, TrialResult
from autotune.record.guard import (
    LEARNED_SHARE,
    MIN_STEPS,
    PADDED_VOCAB,
    Convergence,
    GuardVerdict,
    compare_losses,
    guards_of,
    roundoff_of,
)
from autotune.record.study import Trial
from tests.trials import spec

STEPS = 20
COURSE = [10.0 - 0.05 * step for step in range(STEPS)]
"""A loss that falls by 0.95."""
LEARNED = 0.95


def compare(ours, theirs, *, roundoff=1e-7, is_same_start=True, is_seeded=True) -> GuardVerdict:
    return compare_losses(
        ours, theirs, roundoff=roundoff, is_same_start=is_same_start, is_seeded=is_seeded
    )


def off(by, *, since=0):
    """The course, off by so much from a step on."""
    return [loss + (by if step >= since else 0) for step, loss in enumerate(COURSE)]


@pytest.mark.cases("ours", "theirs", "how", "verdict", "why")
def test_who_passes_and_what_is_said(ours, theirs, how, verdict, why):
    """Runs are the course of a loss, off by so much from a step on; or the losses themselves."""

    def runs(rows):
        return [off(row[0], since=row[1]) if len(row) == 2 else row for row in rows]

    said = compare(runs(ours), runs(theirs), **how)
    assert said.verdict == verdict
    assert why in said.why


def test_the_deviation_and_what_is_allowed_are_told():
    same = compare([COURSE] * 3, [COURSE] * 3)
    assert (same.deviation, same.tolerance) == (0.0, pytest.approx(LEARNED_SHARE * LEARNED))
    late = compare([off(0.009, since=12)], [COURSE] * 2)
    assert (late.step >= 13, late.deviation) == (True, pytest.approx(0.009))


def test_the_baselines_own_repeat_widens_the_tolerance():
    """By hand: deviation 0.01, t of 2 degrees at 99.5% is 9.925, root of 1/3 + 1/3."""
    theirs = [off(by, since=5) for by in (-0.01, 0.0, 0.01)]
    allowed = 9.925 * 0.01 * math.sqrt(2 / 3)
    said = compare([off(0.9 * allowed, since=5)] * 3, theirs)
    assert said.tolerance == pytest.approx(allowed, rel=1e-4)
    assert said.verdict is Convergence.PASS
    assert "by the baseline's own repeat" in said.why
    assert compare([off(1.1 * allowed, since=5)] * 3, theirs).verdict is Convergence.FAIL


def test_rounding_is_allowed_where_repeats_are_equal_to_the_bit():
    flat = [10.0 - 1e-5 * step for step in range(STEPS)]
    rounded = [loss * (1 + 1e-6) for loss in flat]
    said = compare([rounded], [flat] * 3, roundoff=1e-6)
    assert said.deviation == pytest.approx(1e-5, rel=0.01)
    assert said.tolerance == pytest.approx(2e-5, rel=0.01)


def _noise(kind, draw, shape):
    """Differences of runs, by run and step."""
    steps = numpy.arange(shape[-1])
    own = draw.normal(size=shape)
    if kind == "of each step":
        return own
    if kind == "that add up":
        return numpy.cumsum(own, axis=-1)
    if kind == "that grow":
        return own[..., :1] * numpy.exp(0.3 * steps)
    grown = numpy.zeros(shape)
    for step in steps:  # each update amplifies the differences before it
        grown[..., step] = 1.3 * grown[..., step - 1] + own[..., step]
    return grown


@pytest.mark.parametrize("n_runs", [2, 3])
@pytest.mark.parametrize("kind", ["of each step", "that add up", "that grow", "that amplify"])
def test_of_a_hundred_that_train_alike_one_is_refused(kind, n_runs):
    """Of losses that do not move, so that nothing but the repeat allows for a difference."""
    draw = numpy.random.default_rng(19)
    n_tries, n_false = 1000, 0
    for _ in range(n_tries):
        noise = 1e-3 * _noise(kind, draw, (2, n_runs, STEPS))
        ours, theirs = 1 + noise
        said = compare(ours.tolist(), theirs.tolist(), roundoff=0.0)
        n_false += said.verdict is Convergence.FAIL
    # Three standard errors of a count of 1% come on top.
    assert n_false <= 0.01 * n_tries + 3 * math.sqrt(0.01 * n_tries)


def run(
    number,
    *,
    round_number,
    losses,
    candidate="a",
    skipped=0,
    outcome=Outcome.OK,
    wrapper="",
    **fields,
):
    its_spec = spec(
        number, role=Role.CONFIRM, confirm_round=round_number, candidate_hash=candidate, **fields
    )
    result = TrialResult(
        number=number,
        role=Role.CONFIRM,
        candidate_hash=candidate,
        outcome=outcome,
        losses=losses,
        losses_skipped=skipped,
        read_back={"optimizer_wrapper": wrapper},
    )
    return Trial(folder=Path(), spec=its_spec, result=result)


def pair(*, n_base=2, ours=COURSE, **fields):
    base = [run(n, round_number=n, losses=COURSE, candidate="b") for n in range(n_base)]
    return [*base, run(9, round_number=0, losses=ours, **fields)]


def said_of(trials, n_steps=STEPS):
    return guards_of(trials, "b", n_steps)["a"]


def test_every_candidate_of_the_comparison_is_judged():
    found = guards_of(pair(), "b", STEPS)
    assert {key: said.verdict for key, said in found.items()} == {
        "a": Convergence.PASS,
        "b": Convergence.PASS,
    }
    assert "the baseline itself" in found["b"].why
    assert guards_of(pair(), "b", 0) == {}, "it is off"


def test_no_more_steps_are_compared_than_wanted_and_than_both_have():
    assert len(said_of(pair(), n_steps=10).losses) == 10
    assert len(said_of(pair(ours=COURSE[:7])).losses) == 7


@pytest.mark.parametrize(
    ("trials", "words"),
    [
        (pair(n_base=1), "ran once"),
        (pair(n_base=0), "ran never"),
        (pair(ours=COURSE[: MIN_STEPS - 1]), "4 steps are known, 5 are needed"),
        (pair(pp=2), "a pipeline"),
        (pair(name="mine", skipped=2), "skipped 2 of the first steps"),
        (
            pair(lengths={"kind": "histogram", "histogram": [[16, 1]]}, micro_batch=4),
            "micro-batches of 4 and of 2 samples",
        ),
    ],
)
def test_why_nothing_can_be_said(trials, words):
    said = said_of(trials)
    assert said.verdict is Convergence.NOT_COMPARABLE
    assert words in said.why


def test_a_pipeline_of_megatron_has_the_weights_of_a_layout_without():
    trials = [
        replace(
            trial, spec=replace(trial.spec, engine=replace(trial.spec.engine, name="megatron"))
        )
        for trial in pair(pp=2)
    ]
    assert said_of(trials).verdict is Convergence.PASS


def test_steps_that_a_loss_scale_skipped_are_done_again_by_the_built_in_script():
    assert said_of(pair(skipped=3)).verdict is Convergence.PASS


def test_a_repeated_run_takes_the_first_ones_place():
    first = run(5, round_number=1, losses=[9.0] * STEPS, candidate="b")
    disturbed = [first, *pair()]
    assert said_of(disturbed).verdict is Convergence.PASS


def test_runs_of_another_seed_do_not_count():
    others = [
        run(n, round_number=n, losses=[3.0] * STEPS, candidate=of, seed=1)
        for of in ("a", "b")
        for n in (3, 4)
    ]
    assert said_of([*others[2:], *pair()]).verdict is Convergence.PASS
    assert "ran never" in said_of(pair(seed=2)).why


def test_many_tokens_average_their_roundings_out():
    small = spec(0)
    large = replace(small, workload=replace(small.workload, seq_len=1600))
    fp32 = replace(small, workload=replace(small.workload, precision="fp32"))
    theirs = replace(small, workload=replace(small.workload, name="mine"))
    assert roundoff_of(theirs) > roundoff_of(small) > roundoff_of(large) > roundoff_of(fp32)


def test_vocabularies_of_other_padding_are_not_compared():
    """Megatron pads to a multiple of tp, and padded token ids count in the loss."""

    def padded(trial, size):
        engine = replace(trial.spec.engine, expected={PADDED_VOCAB: size})
        return replace(trial, spec=replace(trial.spec, engine=engine))

    trials = pair()
    told = said_of(
        [padded(trial, 256 if trial.spec.identity.number == 9 else 128) for trial in trials]
    )
    assert told.verdict is Convergence.NOT_COMPARABLE
    assert "padded to 256 and 128" in told.why
    assert said_of([padded(trial, 128) for trial in trials]).verdict is said_of(trials).verdict


STAGE_2 = [5.463, 5.3179, 5.2332, 5.2223, 5.1544, 5.2104, 5.1692, 5.0479, 4.9926, 5.0055]
STAGE_0 = [5.463, 5.3326, 5.2617, 5.2488, 5.1856, 5.2422, 5.1987, 5.0779, 5.0166, 5.0268]
"""First losses of `examples/trainer` in bf16 with DeepSpeed 0.19.8."""


@pytest.mark.parametrize(
    ("ours", "wrapper", "verdict"),
    [
        (STAGE_0, "FP16_UnfusedOptimizer", Convergence.PASS),
        (STAGE_0, "DeepSpeedZeroOptimizer", Convergence.FAIL),
        ([STAGE_2[0]] * 10, "FP16_UnfusedOptimizer", Convergence.FAIL),
    ],
    ids=["counts from 1", "counts as the baseline does", "learns nothing"],
)
def test_an_adam_that_counts_from_another_step_is_one_update_behind_at_the_most(
    ours, wrapper, verdict
):
    base = [
        run(n, round_number=n, losses=STAGE_2, candidate="b", wrapper="DeepSpeedZeroOptimizer")
        for n in range(2)
    ]
    own = run(9, round_number=0, losses=ours, wrapper=wrapper, name="script", precision="fp16")
    said = said_of([*base, own])
    assert said.verdict is verdict
    assert ("counts Adam's steps from 1" in said.why) == (wrapper == "FP16_UnfusedOptimizer")
