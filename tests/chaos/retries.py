"""What a search makes of faults: the platform's are tried again, the configuration's never."""

import functools
import signal
from collections import Counter
from collections.abc import Iterator, Sequence

from autotune.contract import Outcome, Role, Start
from autotune.record.study import Trial
from autotune.search.history import MAX_RETRIES
from autotune.search.runner import MAX_FAULTS_IN_A_ROW
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, must
from tests.chaos.invariants import check_record
from tests.chaos.resume import check_no_process
from tests.searches import Search
from tests.trials import wait_until

_ANSWER_S = 300.0
# A trial's time holds the start of its template, which a busy machine takes long for.
_CONFIG_FAULTS = {
    "raise_in_first": (Outcome.INVALID, ()),
    "nan_in_forward": (Outcome.NONFINITE, ()),
    "oom_in_forward": (Outcome.OOM, ("--memory-limit", "200MiB")),
    "hang_in_forward": (Outcome.TIMEOUT, ("--trial-timeout", "40s")),
}


ASKED = {
    "platform fault": "tests/fleet/transports/test_hostfile.py::"
    "test_a_search_outlives_its_coordinator_and_a_node_and_answers_as_here",
    "configuration's fault": "tests/search/test_loop.py::test_config_faults_are_never_repeated",
}
"""Tests that ask the same in every run: the short form does not ask again."""


def faults() -> Iterator[Fault]:
    """All of them."""
    yield Fault(name="platform fault: once, and tried again", inject=_once)
    yield Fault(name="platform fault: always, tried thrice and left", inject=_always)
    yield Fault(name="platform fault: on one slot, which is left out", inject=_bad_slot)
    for factory, (outcome, flags) in _CONFIG_FAULTS.items():
        yield Fault(
            name=f"configuration's fault: {outcome}, never tried again",
            inject=functools.partial(_never_again, factory, outcome, flags),
        )


def _search(ground: Ground, factory: str, **flags: object) -> Search:
    search = Search(ground.folder())
    search.flags.update(model=f"tests.chaos.models:{factory}", **flags)
    return search


def _once(ground: Ground) -> None:
    search = _search(ground, "sigkill_once_in_forward")
    process = search.start("--trials", "4")
    wait_until(lambda: len(search.finished()) >= 2, "two trials have ended", _ANSWER_S)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=_ANSWER_S)
    must(process.returncode == 130, f"{process.returncode}: {stderr[-500:]}")
    first, second = _trials(search)[:2]
    must(_outcome(first) is Outcome.CRASH, f"the first: {_outcome(first)}")
    must(
        second.spec.provenance.retry_of == 0,
        f"the second repeats {second.spec.provenance.retry_of}",
    )
    must(
        second.spec.identity.candidate_hash == first.spec.identity.candidate_hash,
        "of another candidate",
    )
    must(second.spec.measure.start is Start.COLD, "a platform fault is answered by a cold start")
    must(_outcome(second) is Outcome.OK, f"the second: {_outcome(second)}")
    _check(search)


def _always(ground: Ground) -> None:
    search = _search(ground, "sigkill_in_forward")
    code, _, stderr = search.run("--trials", "4")
    must(code == 4, f"{code}: {stderr[-500:]}")
    must("in a row were ended by the platform" in stderr, stderr[-500:])
    trials = _trials(search)
    must(len(trials) == MAX_FAULTS_IN_A_ROW, f"{len(trials)} trials")
    runs = Counter(trial.spec.identity.candidate_hash for trial in trials)
    must(set(runs.values()) == {1 + MAX_RETRIES}, f"runs by candidate: {runs}")
    _check(search)


def _bad_slot(ground: Ground) -> None:
    """Trials on the first core are killed, those on the second are not."""
    search = _search(ground, "sigkill_bad_in_forward", world=1)
    process = search.start("--trials", "12")

    def has_gone_on() -> bool:
        ended = [_outcome(t) for t in _trials(search)]
        n_measured = sum(each is not None and each.is_measured for each in ended)
        return ended.count(Outcome.CRASH) >= 3 and n_measured >= 6

    try:
        wait_until(has_gone_on, "the search goes on without the slot", _ANSWER_S)
    finally:
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=_ANSWER_S)
    must(process.returncode == 130, f"{process.returncode}: {stderr[-500:]}")
    must("localhost:0 is left out" in stderr, f"nothing was said: {stderr[-500:]}")
    places = [(_outcome(t), t.result.devices) for t in _trials(search) if t.result is not None]
    must(places.count((Outcome.CRASH, ["localhost:0"])) == 3, f"went on there: {places}")
    must(all(devices == ["localhost:1"] for o, devices in places if o.is_measured), str(places))
    _check(search)


def _never_again(factory: str, outcome: Outcome, flags: Sequence[str], ground: Ground) -> None:
    # Few micro-batches a step: the forward pass that the fault waits for is past the first step.
    search = _search(ground, factory, global_batch=4)
    code, _, stderr = search.run("--trials", "1", *flags)
    must(code == 3, f"{code}: {stderr[-500:]}")
    trials = _trials(search)
    must({_outcome(t) for t in trials} == {outcome}, f"{[_outcome(t) for t in trials]}")
    must(sum(t.spec.identity.role is Role.SEARCH for t in trials) == 1, f"{len(trials)} trials")
    runs = Counter(trial.spec.identity.candidate_hash for trial in trials)
    must(set(runs.values()) == {1}, f"runs by candidate: {runs}")
    _check(search)


def _check(search: Search) -> None:
    check_no_process(search)
    check_record(search.study, {})


def _trials(search: Search) -> tuple[Trial, ...]:
    return search.study.trials()


def _outcome(trial: Trial) -> Outcome | None:
    return None if trial.result is None else trial.result.outcome
