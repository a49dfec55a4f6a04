"""A coordinator's death is nobody's fault: its trials run again, and nobody takes their place."""

import itertools

import pytest

from autotune.contract import COORDINATOR_ENDED, Outcome, Role
from autotune.record.study import Study
from autotune.record.table import make_table
from autotune.search import history
from autotune.search.history import MAX_RETRIES, History
from tests.search.scripted import (
    Notebook,
    ScriptedEngine,
    ScriptedFleet,
    candidate,
    fault,
    make,
    realistic,
    search,
)


class DiedError(BaseException):
    """The coordinator is gone; nothing writes what it knew."""


def small(**changes):
    # The grid's order is the same, whatever is in the record.
    return make(trials=3, sampler="grid", **changes)


def first_of(role):
    """Says of a spec whether it is of the candidate that first ran in a role."""
    chosen = []

    def is_it(spec):
        if not chosen and spec.identity.role is role:
            chosen.append(spec.identity.candidate_hash)
        return spec.identity.role is role and spec.identity.candidate_hash in chosen

    return is_it


@pytest.mark.parametrize(
    ("role", "deaths"),
    [
        (Role.BASELINE, MAX_RETRIES + 1),
        (Role.SEARCH, MAX_RETRIES + 3),
        (Role.CONFIRM, MAX_RETRIES + 1),
    ],
)
def test_however_often_it_dies_the_answer_is_the_same(tmp_path, monkeypatch, role, deaths):
    monkeypatch.setattr(history, "MAX_DEATHS", MAX_RETRIES + 3)  # each is a search
    job = small()
    undisturbed = search(Study(tmp_path, "one"), job)
    study, notes, is_it, left = Study(tmp_path, "two"), Notebook(), first_of(role), [deaths]

    def behave(spec):
        if left[0] and is_it(spec):
            left[0] -= 1
            raise DiedError
        return realistic(spec)

    for _ in range(deaths):
        with pytest.raises(DiedError):
            search(study, job, behave, observer=notes)
    answer = search(study, job, behave, observer=notes)
    assert answer.baseline.candidate == undisturbed.baseline.candidate
    assert answer.best.candidate == undisturbed.best.candidate
    assert answer.counts[Outcome.OK] == undisturbed.counts[Outcome.OK]
    assert answer.counts[Outcome.LOST] == deaths
    assert [p.candidate for p in answer.passed_over] == [
        p.candidate for p in undisturbed.passed_over
    ]
    assert not answer.is_substitute
    assert not any("left without a figure" in note for note in notes.notes)


def test_a_candidate_that_ends_every_coordinator_is_left_at_last_and_named(tmp_path, monkeypatch):
    """Only what starts the search anew again and again gets here: nothing else would end it."""
    monkeypatch.setattr(history, "MAX_DEATHS", 4)
    job, study, notes, is_it = small(), Study(tmp_path, "s"), Notebook(), first_of(Role.SEARCH)

    def behave(spec):
        if is_it(spec):
            raise DiedError
        return realistic(spec)

    for _ in range(5):
        with pytest.raises(DiedError):
            search(study, job, behave)
    answer = search(study, job, behave, observer=notes)
    assert answer.best is not None
    (said,) = [note for note in notes.notes if "left without a figure" in note]
    assert "the coordinator ended 5 times while it ran" in said


def test_deaths_do_not_add_to_what_the_platform_did(tmp_path):
    """Twice of each leaves the candidate its third try."""
    job, study, is_it = small(), Study(tmp_path, "s"), first_of(Role.BASELINE)
    faults = [DiedError(), Outcome.CRASH, DiedError(), Outcome.COMM, DiedError()]
    plan = itertools.chain(faults, itertools.repeat(None))

    def behave(spec):
        if not is_it(spec):
            return realistic(spec)
        what = next(plan)
        if isinstance(what, DiedError):
            raise what
        return realistic(spec) if what is None else fault(spec, what)

    for _ in range(3):
        with pytest.raises(DiedError):
            search(study, job, behave)
    answer = search(study, job, behave)
    first = study.trials()[0].spec.identity.candidate_hash
    tried = next(t for t in History(study.trials()).tried if t.candidate.hash == first)
    assert tried.trials[0].result.evidence == COORDINATOR_ENDED
    assert tried.measured is not None or tried.fault is not None, "it had its third try"
    assert not answer.is_substitute


def roomy(**changes):
    """A job whose first rung runs, so that the ladder passes nothing over by itself."""
    return small(memory_limit="60GiB", **changes)


@pytest.mark.parametrize("outcome", [Outcome.CRASH, Outcome.LOST])
def test_a_baseline_that_the_platform_ended_is_told_as_replaced_everywhere(tmp_path, outcome):
    job, study, is_it = roomy(), Study(tmp_path, "s"), first_of(Role.BASELINE)
    notes = Notebook()

    def behave(spec):
        return fault(spec, outcome, "a cable") if is_it(spec) else realistic(spec)

    answer = search(study, job, behave, observer=notes)
    asked = study.trials()[0].spec.identity.candidate_hash
    assert answer.baseline.candidate.hash != asked
    (passed,) = [p for p in answer.passed_over if p.by_platform]
    assert (passed.candidate_hash, passed is answer.passed_over[0]) == (asked, True)
    assert f"ended {MAX_RETRIES + 1} trials of it" in passed.why
    assert "a cable" in passed.why

    assert answer.is_substitute
    assert any("is a substitute" in note for note in notes.notes)
    facts = study.facts().baseline
    assert facts.is_substitute
    frame = make_table("s", study.read(), study.facts()).set_index("candidate_hash")
    assert set(frame.loc[[asked], "baseline"]) == {f"passed over: {passed.why}"}
    told = set(frame.loc[[answer.baseline.candidate.hash], "baseline"])
    assert told == {f"substitute for trial {passed.trial}"}


def test_what_does_not_fit_is_passed_over_and_no_substitute(tmp_path):
    """The ladder's own way: the largest micro-batch that fits. The first choice is said."""
    study = Study(tmp_path, "s")
    answer = search(study, small(memory_limit="19GiB"))
    assert answer.passed_over
    assert not answer.is_substitute
    assert all("oom" in p.why for p in answer.passed_over)
    frame = make_table("s", study.read(), study.facts()).set_index("candidate_hash")
    assert set(frame.loc[[answer.baseline.candidate.hash], "baseline"]) == {"baseline"}


def test_the_users_own_baseline_is_never_replaced(tmp_path):
    job = roomy(baseline=tmp_path / "mine.json")
    own = candidate(job, zero__stage=1, micro_batch=2)
    engine, fleet = (
        ScriptedEngine(job, own=own),
        ScriptedFleet(
            lambda spec: (
                fault(spec, Outcome.CRASH, "a cable")
                if spec.identity.candidate_hash == own.hash
                else realistic(spec)
            )
        ),
    )
    answer = search(Study(tmp_path, "s"), job, fleet=fleet, engine=engine)
    assert (answer.baseline, answer.speedup) == (None, None)
    assert [p.candidate_hash for p in answer.passed_over] == [own.hash]
    assert "a cable" in answer.passed_over[0].why
