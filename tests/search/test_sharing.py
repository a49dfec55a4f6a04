"""What running beside others cost, as the final comparison shows it."""

import pytest

from autotune.contract import Role
from tests.search.scripted import Notebook, ScriptedFleet, make, ok, rate_of, search, with_budget


@pytest.fixture
def job():
    return with_budget(make(), trials=31)


def slowed(of):
    """Trials of the search run at this share of their speed; whatever runs alone at its own."""

    def behave(spec):
        share = of if spec.identity.role is Role.SEARCH else 1.0
        # The baseline is the largest micro-batch: others have to beat it to be compared.
        handicap = 0.5 if spec.layout.micro_batch == 8 else 1.0
        return ok(spec, rate_of(spec) * share * handicap)

    return behave


def notes_of(study, job, behave, n_gangs):
    notebook = Notebook()
    search(study, job, fleet=ScriptedFleet(behave, n_gangs=n_gangs), observer=notebook)
    return [note for note in notebook.notes if "--exclusive" in note]


def test_what_others_slow_is_told_once(study, job):
    (said,) = notes_of(study, job, slowed(0.8), 4)
    assert "25% longer for a step beside other trials than alone" in said


@pytest.mark.parametrize(("share", "n_gangs"), [(1.0, 4), (0.97, 4), (0.8, 1)])
def test_nothing_is_said_where_nothing_shows(study, job, share, n_gangs):
    assert notes_of(study, job, slowed(share), n_gangs) == []


def test_a_machine_that_changed_its_speed_is_no_sharing(study, job):
    def behave(spec):
        faster = 1.25 if spec.identity.role is Role.CONFIRM else 1.0
        return ok(spec, slowed(1.0)(spec).samples_per_s * faster)

    assert notes_of(study, job, behave, 4) == []
