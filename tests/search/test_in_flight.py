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
