import random
from dataclasses import replace

from autotune.contract import Fidelity, Outcome, Role
from autotune.record.study import Trial
from autotune.search.history import History
from autotune.search.objective import Objective
from tests.search.scripted import ENVIRONMENT, GIB, fault, make, ok
from tests.search.test_sampler import spec_of, trial
from tests.trials import changed

JOB = make()
OBJECTIVE = Objective.of(JOB, ENVIRONMENT)


def random_trial(draw: random.Random, number: int) -> Trial:
    """A trial of some candidate that has ended in some way."""
    role = draw.choice([Role.SEARCH] * 3 + [Role.CONFIRM])
    knobs = {"zero__stage": draw.randrange(4), "micro_batch": 2 ** draw.randrange(2)}
    spec = spec_of(JOB, number, role, **knobs)
    if draw.random() < 0.2:
        spec = changed(spec, fidelity=Fidelity(layers=1))
    if draw.random() < 0.2:
        spec = changed(spec, repeat_of=0)
    if draw.random() < 0.3:
        return trial(spec, fault(spec, draw.choice([Outcome.OOM, Outcome.LOST])))
    result = ok(spec, draw.uniform(50.0, 150.0), peak=draw.choice([4, 40]) * GIB)
    return trial(spec, replace(result, disturbed="load" if draw.random() < 0.4 else ""))


def check_same(found: History, expected: History) -> None:
    """Check that two lists of the same trials say the same."""
    assert found.recorded == expected.recorded
    for one, other in ((found, expected), (found.reduced, expected.reduced)):
        assert (one.trials, one.tried) == (other.trials, other.tried)
        assert (one.to_repeat, one.spread) == (other.to_repeat, other.spread)
        assert one.explored.tried == other.explored.tried
        for part, whole in ((one, other), (one.explored, other.explored)):
            assert list(OBJECTIVE.figures(part).items()) == list(OBJECTIVE.figures(whole).items())


def test_a_list_with_one_more_trial_says_what_one_of_all_trials_does():
    for seed in range(4):
        draw = random.Random(seed)
        ended = [random_trial(draw, number) for number in range(40)]
        history, open_ones = History(), []
        while ended or open_ones:
            if ended and (len(open_ones) < 3 or draw.random() < 0.5):
                open_ones.append(ended.pop(0))
                history = history.with_trial(replace(open_ones[-1], result=None))
            else:
                history = history.with_trial(open_ones.pop(draw.randrange(len(open_ones))))
            check_same(history, History(history.recorded))
