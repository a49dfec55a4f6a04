"""The ladder of the baseline, climbed by a forecast: few trials, and the same baseline."""

from collections.abc import Sequence

import pytest

from autotune.search.climb import CERTAIN, Rung, UntriedError, climb
from autotune.space.candidate import Candidate
from benchmarks.baseline_trials import count_trials, problem_of
from tests.search.scripted import candidate, make

JOB = make()
LADDER = [
    [candidate(JOB, zero__stage=stage, micro_batch=size) for size in (1, 2, 4, 8)]
    for stage in (0, 1, 2)
]
FLAT = [c for rung in LADDER for c in reversed(rung)]


class Climb:
    """Climbs `LADDER` where some candidates run, and remembers what it tried."""

    def __init__(
        self, runs: set[Candidate], risk: dict[Candidate, float], refused: Sequence[Candidate] = ()
    ) -> None:
        self.tried: list[Candidate] = []
        self._runs, self._risk, self._refused = runs, risk, refused

    def known(self, its: Candidate) -> Rung | None:
        if its not in self.tried:
            return None
        return Rung.RUNS if its in self._runs else Rung.TOO_LARGE

    def ask(self, its: Candidate) -> Rung:
        if its in self._refused:
            return Rung.FAILS
        if (known := self.known(its)) is None:
            raise UntriedError(its)
        return known

    def risks(self, candidates: Sequence[Candidate]) -> list[float]:
        return [self._risk.get(each, 1.0) for each in candidates]

    def climb(self, *, blindly: bool = False) -> tuple[Candidate | None, list[Candidate]]:
        while True:
            try:
                return climb(LADDER, self.known, self.ask, None if blindly else self.risks)
            except UntriedError as untried:
                self.tried.append(untried.candidate)


def test_one_trial_where_nothing_that_is_wanted_more_may_fit():
    wanted = LADDER[1][2]
    climb = Climb({wanted}, {wanted: 0.1, LADDER[1][0]: 0.0})
    assert climb.climb() == (wanted, FLAT[: FLAT.index(wanted)])
    assert climb.tried == [wanted]


def test_what_may_fit_and_is_wanted_more_is_tried_before_it_is_left_out():
    larger, expected = LADDER[0][1], LADDER[0][0]
    climb = Climb({larger, expected}, {expected: 0.1, larger: CERTAIN - 0.01})
    assert climb.climb()[0] == larger
    assert climb.tried == [expected, larger]


def test_one_that_ran_out_of_memory_answers_for_all_that_need_more():
    risk = dict.fromkeys(FLAT, 0.9)
    risk[LADDER[0][0]] = risk[LADDER[1][0]] = 0.8
    risk[LADDER[2][0]] = 0.85
    climb = Climb({LADDER[2][0]}, risk)
    found, left_out = climb.climb()
    assert (found, left_out) == (LADDER[2][0], [])
    assert climb.tried[:3] == [LADDER[0][0], LADDER[1][0], LADDER[2][0]]


def test_a_refused_candidate_says_nothing_of_its_neighbours():
    wanted = LADDER[0][2]
    climb = Climb({wanted}, dict.fromkeys(FLAT, 0.1), refused=[LADDER[0][3]])
    assert climb.climb() == (wanted, [])
    assert climb.tried == [wanted]


def test_nothing_is_tried_where_nothing_can_fit():
    climb = Climb(set(), {})
    assert climb.climb() == (None, FLAT)
    assert climb.tried == []


@pytest.mark.parametrize(("off", "most"), [(1 / 1.2, 4), (1.2, 5)])
def test_the_baseline_is_found_in_few_trials_even_if_the_model_is_off(off: float, most: int):
    problems = [
        problem_of("llama-3-8b", "H100", 8, 4096, 64),
        problem_of("llama-2-7b", "A100-40GB", 8, 2048, 256),
    ]
    counts, n_others = count_trials(problems, off=off, seeds=range(2), blindly=False)
    assert n_others == 0
    assert max(counts) <= most
    blind, n_others = count_trials(problems, off=off, seeds=range(2), blindly=True)
    assert (n_others, sum(blind) >= 2 * sum(counts)) == (0, True)


def test_a_rung_whose_candidates_fail_is_left_after_two():
    tried: list[Candidate] = []

    def known(one: Candidate) -> Rung | None:
        if one not in tried:
            return None
        return Rung.FAILS if one in LADDER[0] else Rung.RUNS

    def ask(one: Candidate) -> Rung:
        if (found := known(one)) is None:
            raise UntriedError(one)
        return found

    best = None
    while best is None:
        try:
            best, _ = climb(LADDER, known, ask)
        except UntriedError as untried:
            tried.append(untried.candidate)
    assert tried == [LADDER[0][-1], LADDER[0][0], best]
    assert best == LADDER[1][-1]
