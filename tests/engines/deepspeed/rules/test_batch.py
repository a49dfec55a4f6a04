"""The batch rules: exact arithmetic, and messages that show it."""

from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.deepspeed.rules import judge
from tests.engines.deepspeed.rules.cases import setup

MICRO = "train_micro_batch_size_per_gpu"
ACCUM = "gradient_accumulation_steps"
TOTAL = "train_batch_size"

LAYOUTS = st.sampled_from([(w, tp) for w in range(1, 9) for tp in range(1, w + 1) if w % tp == 0])
COUNTS = st.integers(1, 64)


def judged(config, world, tp, global_batch):
    tensor = {"tensor_parallel": {"autotp_size": tp}} if tp > 1 else {}
    return judge(setup(config | tensor, world=world, tp=tp, global_batch=global_batch))


@given(layout=LAYOUTS, micro=COUNTS, accum=COUNTS)
def test_an_exact_batch_is_legal(layout, micro, accum):
    world, tp = layout
    config = {MICRO: micro, ACCUM: accum}
    global_batch = micro * accum * (world // tp)
    assert judged(config, world, tp, global_batch) == []
    if tp == 1:
        assert judged(config | {TOTAL: global_batch}, world, tp, global_batch) == []
        assert judged({MICRO: micro, ACCUM: None, TOTAL: global_batch}, world, 1, None) == []
        assert judged({MICRO: None, ACCUM: accum, TOTAL: global_batch}, world, 1, None) == []


@given(micro=COUNTS, accum=COUNTS)
def test_a_pipeline_fills_in_what_is_left_out_from_its_own_replicas(micro, accum):
    whole = {MICRO: micro, ACCUM: accum, TOTAL: micro * accum * 2}
    for missing in (MICRO, ACCUM, TOTAL):
        config = whole | {missing: None}
        found = setup(config, world=8, pp=2, tp=2)
        if missing != MICRO:
            assert found.batch == (micro, accum, micro * accum * 2)
        assert [v.rule for v in judge(found) if v.rule.startswith("batch.")] == []


@given(layout=LAYOUTS, micro=COUNTS, accum=COUNTS, wanted=st.integers(1, 4096))
def test_any_other_global_batch_is_refused_with_its_arithmetic(layout, micro, accum, wanted):
    world, tp = layout
    dp = world // tp
    violations = judged({MICRO: micro, ACCUM: accum}, world, tp, wanted)
    if micro * accum * dp == wanted:
        assert violations == []
        return
    (violation,) = violations
    assert violation.rule == "batch.global_batch"
    product = f"{micro} * {accum} * {dp} = {micro * accum * dp} samples"
    assert product in violation.message
    assert str(wanted) in violation.message
    if wanted % dp == 0:
        fixed = {MICRO: micro, ACCUM: accum} | violation.changes
        assert judged(fixed, world, tp, wanted) == []


@given(world=st.integers(1, 8), micro=COUNTS, accum=COUNTS, total=st.integers(1, 4096))
def test_a_wrong_product_is_refused_with_its_arithmetic(world, micro, accum, total):
    violations = judged({MICRO: micro, ACCUM: accum, TOTAL: total}, world, 1, None)
    real = micro * accum * world
    if total == real:
        assert violations == []
        return
    (violation,) = violations
    assert violation.rule == "batch.product"
    assert f"{total}, but" in violation.message
    assert f"{micro} * {accum} * {world} = {real}" in violation.message
    keeps = total % (micro * world) == 0
    assert violation.changes == ({ACCUM: total // (micro * world)} if keeps else {})
    assert violation.choices
    ways = [violation.changes, *(choice.changes for choice in violation.choices)]
    for changes in filter(None, ways):
        assert judged({MICRO: micro, ACCUM: accum, TOTAL: total} | changes, world, 1, None) == []


@given(
    world=st.integers(1, 8),
    micro=st.none() | COUNTS,
    accum=st.none() | COUNTS,
    total=st.integers(1, 4096),
)
def test_every_way_out_of_a_wrong_product_says_what_it_keeps(world, micro, accum, total):
    sizes = {MICRO: micro, ACCUM: accum, TOTAL: total}
    for violation in judged(sizes, world, 1, None):
        assert violation.rule == "batch.product"
        assert violation.changes or violation.choices
        for choice in violation.choices:
            after = sizes | choice.changes
            assert judged(after, world, 1, None) == []
            assert ("the global batch stays" in choice.words) == (after[TOTAL] == total)


@given(world=st.integers(1, 8), micro=COUNTS, accum=COUNTS, total=COUNTS, factor=COUNTS)
def test_the_fix_for_a_wrong_product_keeps_the_global_batch(world, micro, accum, total, factor):
    wanted = factor * world
    config = {MICRO: micro, ACCUM: accum, TOTAL: total}
    violations = judged(config, world, 1, wanted)
    if violations and violations[0].rule == "batch.product":
        assert judged(config | dict(violations[0].changes), world, 1, wanted) == []


@given(world=st.integers(1, 8), micro=COUNTS, total=st.integers(1, 4096))
def test_a_total_that_does_not_divide_is_refused(world, micro, total):
    rules = [v.rule for v in judged({MICRO: micro, ACCUM: None, TOTAL: total}, world, 1, None)]
    assert rules == ([] if total % (micro * world) == 0 else ["batch.product"])


@given(layout=LAYOUTS.filter(lambda layout: layout[1] > 1), micro=COUNTS, accum=COUNTS)
def test_under_tensor_parallelism_the_total_is_left_out(layout, micro, accum):
    world, tp = layout
    dp = world // tp
    for total in {micro * accum * dp, micro * accum * world}:
        (violation,) = judged({MICRO: micro, ACCUM: accum, TOTAL: total}, world, tp, None)
        assert violation.rule == "batch.total_under_tp"
        assert f"{micro} * {accum} * {dp} = {micro * accum * dp} samples" in violation.message


def test_an_accumulation_of_none_follows_from_the_others():
    (violation,) = judged({MICRO: 2, ACCUM: 0, TOTAL: 16}, 2, 1, None)
    assert violation.changes == {ACCUM: 4}
    (violation,) = judged({MICRO: 3, ACCUM: 0, TOTAL: 16}, 2, 1, None)
    assert violation.changes == {ACCUM: None}


def test_a_huge_batch_that_nothing_divides_is_judged_at_once():
    prime, near = 10**15 + 37, 10**15
    (violation,) = judged({MICRO: near, ACCUM: 2, TOTAL: prime}, 1, 1, None)
    assert [choice.changes for choice in violation.choices] == [
        {TOTAL: 2 * near},
        {TOTAL: near, ACCUM: 1},
    ]
