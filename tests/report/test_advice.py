"""The knob that addresses a bound: it is there, it acts, and it changes the run."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.app.studies import explain_trial
from autotune.contract import Diagnosis, KnobValue
from autotune.engines.base import find_engine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.record.bottleneck import Bound
from autotune.report.explain.trial import Advice, advise
from autotune.report.terminal.study import print_explanation
from autotune.search.history import History
from autotune.space.candidate import Candidate, candidate_of
from autotune.space.knob import Context
from autotune.space.knobs import canonical
from tests.report.diagnosed import collective, diagnosed, diagnosis
from tests.report.test_terminal import finished
from tests.report.told import macro, printed
from tests.search import scripted
from tests.trials import spec as spec_of

DOCS = Path(__file__).parents[2] / "docs" / "explain.md"
JOB = scripted.make()
CONTEXT = Context.of(JOB, scripted.ENVIRONMENT)


def advice(bound: Bound, *seen: object, **knobs: KnobValue) -> dict[str, Advice]:
    candidate = scripted.candidate(JOB, **knobs)
    trial = spec_of(
        knobs=candidate.values,
        global_batch=16,
        micro_batch=candidate.micro_batch,
        grad_accum=candidate.grad_accum,
        dp=candidate.dp,
        tp=candidate.tp,
        pp=candidate.pp,
        sp=candidate.sp,
    )
    what = seen[0] if seen and isinstance(seen[0], Diagnosis) else diagnosis()
    found = advise(bound, trial, what, candidate, CONTEXT, History())
    return {f"{each.knob}={each.after}": each for each in found}


def test_every_rule_names_a_knob_and_the_page_names_every_rule() -> None:
    page = DOCS.read_text(encoding="utf-8")
    advice = find_engine("deepspeed").advice
    for bound, rules in advice.items():
        for rule in rules:
            assert rule.knob in KNOBS
            assert f"| {bound.value} | `{rule.knob}` |" in page
    assert set(advice) == set(Bound)


@pytest.mark.parametrize(
    ("bound", "knobs", "change"),
    [
        (Bound.COMMUNICATION, {"zero__stage": 3, "micro_batch": 2}, "micro_batch=4"),
        (Bound.COMMUNICATION, {"zero__stage": 3, "micro_batch": 8}, "zero.stage=2"),
        (Bound.COMMUNICATION, {"zero__stage": 2, "micro_batch": 2}, "zero.stage=1"),
        (Bound.COMMUNICATION, {"zero__stage": 0, "micro_batch": 2, "tp": 2}, "tp=1"),
        (Bound.COMMUNICATION, {"zero__stage": 0, "micro_batch": 2, "sp": 2}, "sp=1"),
        (Bound.COMPUTE, {"micro_batch": 2, "recompute": "full"}, "recompute=none"),
        (Bound.COMPUTE, {"micro_batch": 2}, "micro_batch=4"),
        (Bound.HOST, {"micro_batch": 2}, "micro_batch=4"),
        (Bound.MEMORY, {"micro_batch": 2, "attention": "eager"}, "attention=sdpa"),
        (Bound.MEMORY, {"micro_batch": 2}, "host_allocator=keep"),
        (Bound.BUBBLE, {"micro_batch": 2, "pp": 2}, "micro_batch=1"),
        (Bound.BUBBLE, {"micro_batch": 2, "pp": 2}, "pp=1"),
    ],
)
def test_a_bound_has_its_knob(bound: Bound, knobs: dict[str, KnobValue], change: str) -> None:
    assert change in advice(bound, **knobs)


def test_an_attention_that_the_model_lacks_is_not_advised() -> None:
    candidate = scripted.candidate(JOB, micro_batch=2, attention="eager")
    trial = spec_of(knobs=candidate.values, global_batch=16, micro_batch=2)
    workload = replace(trial.workload, model={"config": {"model_type": "gpt_oss"}})
    trial = replace(trial, workload=workload)
    found = advise(Bound.MEMORY, trial, diagnosis(), candidate, CONTEXT, History())
    assert found
    assert "attention" not in {each.knob for each in found}


def test_only_what_would_be_another_run_is_advised() -> None:
    # One micro-batch per step is all there is; on CPU ranks nothing overlaps.
    found = advice(Bound.COMMUNICATION, diagnosis(collective(4096)), zero__stage=1, micro_batch=8)
    assert not {name for name in found if name.startswith(("micro_batch", "overlap_comm"))}
    # Its default is above all gradients of this model: more of it is the same run.
    assert not {name for name in found if name.startswith("reduce_bucket_size")}
    small = advice(
        Bound.COMMUNICATION,
        diagnosis(collective(4096)),
        zero__stage=1,
        micro_batch=8,
        reduce_bucket_size=1000,
    )
    assert "reduce_bucket_size=4000" in small


@pytest.mark.parametrize("world", [1, 2])
def test_one_rank_shares_its_cores_with_no_other(world: int) -> None:
    on_gpu = Context.of(JOB, replace(scripted.ENVIRONMENT, accelerator="cuda"))
    knobs = canonical({**scripted.candidate(JOB).values, "core_binding": "none"}, on_gpu)
    candidate = Candidate.of(knobs, world=world, global_batch=16)
    trial = spec_of(knobs=candidate.values, world=world, dp=world, accelerator="cuda")
    found = advise(Bound.HOST, trial, diagnosis(), candidate, on_gpu, History())
    assert ("core_binding" in {each.knob for each in found}) == (world > 1)


def test_buckets_are_no_matter_where_messages_are_large() -> None:
    large = diagnosis(collective(64 * 2**20))
    found = advice(
        Bound.COMMUNICATION, large, zero__stage=1, micro_batch=8, reduce_bucket_size=1000
    )
    assert not {name for name in found if name.startswith("reduce_bucket_size")}


def test_every_advice_is_the_canonical_form_of_a_change() -> None:
    for bound in Bound:
        for stage in (0, 1, 2, 3):
            candidate = scripted.candidate(JOB, zero__stage=stage, micro_batch=2)
            for each in advice(bound, zero__stage=stage, micro_batch=2).values():
                changed = canonical({**candidate.values, each.knob: each.after}, CONTEXT)
                assert changed[each.knob] == each.after != each.before == candidate[each.knob]


def test_a_change_that_the_study_has_tried_says_what_it_brought(tmp_path: Path) -> None:
    study = finished(tmp_path, diagnosed, trials=40)
    history = History(study.trials())
    trials = {t.spec.identity.candidate_hash: t.spec for t in history.trials}
    third = next(
        s
        for s in trials.values()
        if s.identity.knobs["zero.stage"] == 3 and s.layout.grad_accum > 1
    )
    found = advise(Bound.COMMUNICATION, third, diagnosis(), candidate_of(third), CONTEXT, history)
    first = found[0]
    assert first.knob == "micro_batch"
    tried = next(t.spec for t in history.trials if t.spec.identity.number == first.tried)
    assert tried.identity.knobs == {**third.identity.knobs, "micro_batch": first.after}
    assert first.ratio.ratio == pytest.approx(2**0.3)
    said = f"; trial {first.tried} tried it: {macro('ratio', first.ratio)}"
    assert said.split("it: ")[1].startswith("1.23x (1.")
    told = printed(print_explanation, explain_trial(study, third.identity.number), width=400)
    assert f"{said}\n" in told
