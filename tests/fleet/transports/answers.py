"""Whether two fleets give the same answer to the same job."""

from collections.abc import Iterator, Mapping

import pytest

from autotune.contract import KnobValue, Role
from autotune.engines.base import bind_engine
from autotune.job.job import make_job, read_job_file
from autotune.planning.lattice import Lattice, lattice_of
from autotune.record.answer import SearchAnswer, answer_of
from autotune.record.study import Study, Trial

Choice = frozenset[tuple[str, KnobValue | None]]
"""The values of the knobs that vary. Others follow from them and from the fleet: what quantises
between nodes is a knob only where there are several."""


def check_same_answer(here: Study, there: Study) -> None:
    """Check that two searches agree in all but speed.

    They have the same legal choices, tried the same ones in the same order (as far as the time
    of both went), the engines said the same of each, and its losses are the same. Where both had
    time for a final comparison, neither's best is one that the other tells apart from its own:
    single trials on a busy machine do not say which is best.
    """
    lattices = _lattice(here), _lattice(there)
    names = list(lattices[0].values)
    assert names == list(lattices[1].values)
    one, other = ({_choice(c.values, names) for c in lattice.candidates} for lattice in lattices)
    assert one == other
    orders = zip(_tried(here, names), _tried(there, names), strict=False)
    assert all(first == second for first, second in orders)
    twins = {_choice(trial.spec.identity.knobs, names): trial for trial in _ended(there)}
    for trial in _ended(here):
        twin = twins.get(_choice(trial.spec.identity.knobs, names))
        if twin is None:
            continue
        assert trial.spec.engine.expected == twin.spec.engine.expected
        assert trial.result.read_back == twin.result.read_back
        both = zip(trial.result.losses, twin.result.losses, strict=False)
        for step, (loss, there_loss) in enumerate(both):
            assert loss == pytest.approx(there_loss, rel=1e-6), f"losses of step {step}"
    answers = _answer(here), _answer(there)
    for first, second in (answers, answers[::-1]):
        if 1 in (first.best.n_runs, second.best.n_runs):
            continue
        alike = [
            _choice(standing.candidate.values, names) for standing in (second.best, *second.ties)
        ]
        assert _choice(first.best.candidate.values, names) in alike, (first.best, second.best)


def _lattice(study: Study) -> Lattice:
    environment = study.facts().environment
    assert environment is not None
    job = make_job(read_job_file(study.job_file), where=str(study.job_file))
    return lattice_of(bind_engine(job, environment))


def _choice(values: Mapping[str, KnobValue], names: list[str]) -> Choice:
    return frozenset((name, values.get(name)) for name in names)


def _tried(study: Study, names: list[str]) -> list[Choice]:
    """What the search tried, in the order in which it first did."""
    identities = [trial.spec.identity for trial in study.trials()]
    chosen = [_choice(i.knobs, names) for i in identities if i.role is not Role.CONFIRM]
    return list(dict.fromkeys(chosen))


def _ended(study: Study) -> Iterator[Trial]:
    for trial in study.trials():
        if trial.result is not None and trial.result.outcome.is_measured:
            yield trial


def _answer(study: Study) -> SearchAnswer:
    answer = answer_of(study)
    assert answer is not None
    return answer
