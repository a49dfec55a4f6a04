"""Depths to trace, and what two of them tell of every other one."""

import pytest

from autotune.tracing.moments import (
    Kind,
    Part,
    StepPhase,
    Traced,
    at_depth,
    depths,
    differs,
    same_parts,
)
from benchmarks.trace_memory import largest

NOTHING = dict.fromkeys(Kind, 0.0)


def step(n_layers: int, *, period: int = 1, odd: float = 0.0) -> Traced:
    """A step as recomputation makes it: logits lead while it is shallow, gradients when deep."""
    held = 1.0 * n_layers
    parts = {
        Part(phase=StepPhase.FORWARD, place="layers"): {**NOTHING, Kind.ACTIVATIONS: held + odd},
        Part(phase=StepPhase.BACKWARD, place="head"): {
            **NOTHING,
            Kind.ACTIVATIONS: held,
            Kind.LOGITS: 40.0,
        },
    }
    for index in range(n_layers):
        parts[Part(phase=StepPhase.BACKWARD, place="layer", index=index)] = {
            **NOTHING,
            Kind.ACTIVATIONS: float(index),
            Kind.TEMPORARIES: 2.0 if index % period else 1.0,
            Kind.GRADIENTS: 5.0 * (n_layers - 1 - index),
        }
    return Traced(n_layers=n_layers, n_params=100 + 7 * n_layers, parts=parts)


def test_small_models_are_traced_whole() -> None:
    assert depths(15, 1) is None
    assert depths(0, 1) is None
    assert depths(16, 1) == (4, 5, 6)


def test_depths_end_where_the_model_does_in_its_period() -> None:
    for n_layers in (60, 61, 62):
        found = depths(n_layers, 3)
        assert found is not None
        assert {depth % 3 for depth in found} == {n_layers % 3}
    assert depths(32, 16) is None


@pytest.mark.parametrize("period", [1, 2, 3])
def test_every_part_is_told_where_the_peak_of_all_is_not(period: int) -> None:
    n_layers = 61
    chosen = depths(n_layers, period)
    assert chosen is not None
    first, second, third = (step(depth, period=period) for depth in chosen)
    whole = step(n_layers, period=period)
    extrapolated = at_depth(first, second, n_layers)
    assert extrapolated.peak_bytes == whole.peak_bytes
    assert extrapolated.n_params == whole.n_params
    assert {p: sum(h.values()) for p, h in largest(extrapolated.parts).items()} == {
        p: sum(h.values()) for p, h in largest(whole.parts).items()
    }
    assert differs(third, at_depth(first, second, third.n_layers)) == 0
    periods = (n_layers - first.n_layers) / period
    line = first.peak_bytes + (second.peak_bytes - first.peak_bytes) * periods
    assert abs(line - whole.peak_bytes) > 0.1 * whole.peak_bytes


def test_a_depth_off_the_line_is_seen() -> None:
    extrapolated = at_depth(step(4), step(5), 6)
    assert differs(step(6, odd=4.6), extrapolated) == pytest.approx(0.1)


def test_steps_of_other_parts_are_not_compared() -> None:
    whole = step(4)
    parts = {part: held for part, held in whole.parts.items() if part.place != "head"}
    assert same_parts([whole, step(5)])
    assert not same_parts([whole, Traced(n_layers=4, n_params=1, parts=parts)])


def test_json_and_back() -> None:
    assert Traced.from_dict(step(4).as_dict()) == step(4)
