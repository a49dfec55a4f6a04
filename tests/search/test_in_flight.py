"""Looks at the trials in flight: how long until the next one."""

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.search import in_flight
from autotune.search.in_flight import POLL_S, TrialsInFlight


@pytest.mark.parametrize(("is_over", "pause_s"), [(False, 2.0), (True, POLL_S)])
def test_to_read_what_a_trial_left_is_gone_on_with_soon(
    monkeypatch: pytest.MonkeyPatch, is_over: bool, pause_s: float
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(in_flight.time, "thread_time", lambda: now_s[0])

    class Trial:
        """A look at it takes 20 ms."""

        def __init__(self) -> None:
            self.is_over = is_over

        def poll(self) -> None:
            now_s[0] += 0.02

    fleet = SimpleNamespace(quarantined=tuple, absent=dict)
    context: Any = SimpleNamespace(study=None, note=None, fleet=fleet)
    flight = TrialsInFlight(context)
    flight._handles.append(Trial())  # type: ignore[arg-type]
    assert not flight.collect()
    assert flight.pause_s == pause_s


def test_a_key_of_the_user_s_that_gives_way_is_told_with_the_trial_that_it_gave_way_in() -> None:
    told: dict[str, str] = {}
    context: Any = SimpleNamespace(study=None, note=None, fleet=None, note_once=told.setdefault)
    flight = TrialsInFlight(context)
    for number, key, ours in ((3, "bucket", None), (4, "stage", 1), (5, "stage", 3)):
        spec: Any = SimpleNamespace(
            engine=SimpleNamespace(overridden={key: ["auto", ours]}),
            identity=SimpleNamespace(number=number),
        )
        flight._say_overridden(spec)
    assert list(told.values()) == [
        "your configuration has bucket='auto': trial 3 runs without it, as its candidate needs",
        "your configuration has stage='auto': trial 4 runs with 1, as its candidate needs",
    ]
