"""Trials in flight."""

from types import SimpleNamespace
from typing import Any

from autotune.search.in_flight import TrialsInFlight


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
