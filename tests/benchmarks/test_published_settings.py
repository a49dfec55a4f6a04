"""What a row says of its mixture of experts: by its cells, and by settings that its notes name."""

import pytest

from autotune.cost import Plans
from autotune.devices.accelerators import shipped_accelerators
from benchmarks.published import rows_to_plans
from tests.benchmarks.rows import row

MIXTURE = {
    "n_experts": "16",
    "experts_per_token": "2",
    "ep": "8",
    "framework": "megatron-bridge",
    "recompute": "none",
}


DEVICES = shipped_accelerators()


def read(*rows: dict[str, str]) -> Plans:
    found = rows_to_plans(rows, DEVICES)
    assert found.plans is not None, found.reasons
    return found.plans


def columns(**changes: str) -> dict[str, float]:
    plans = read(row(**{**MIXTURE, **changes}))
    return {name: float(column[0]) for name, column in plans.columns().items()}


@pytest.mark.cases("notes", "expected")
def test_settings_that_notes_name_are_read(notes: str, expected: dict[str, float]) -> None:
    found = columns(notes=notes)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.cases("changes", "expected")
def test_columns_of_a_mixture_follow_from_cells(changes, expected) -> None:
    found = columns(**changes)
    assert {name: found[name] for name in expected} == expected


def test_a_module_that_is_not_known_is_said() -> None:
    read = rows_to_plans([row(**{**MIXTURE, "recompute": "selective: [mlp, foo]"})], DEVICES)
    assert "recompute=mlp (foo is not known)" in read.assumed[0]


def test_settings_of_the_row_above_count_where_notes_say_they_are_the_same() -> None:
    rows = [
        row(**MIXTURE, notes="EP overlap off; alltoall dispatcher, CUDA graphs attn"),
        row(**MIXTURE, notes="EP overlap on; the same"),
        row(**MIXTURE, notes="EP overlap on"),
    ]
    plans = read(*rows)
    assert list(plans.overlap_experts) == [0.0, 1.0, 1.0]
    assert list(plans.flex_dispatch) == [0.0, 0.0, 1.0]
    assert list(plans.launch_free) == [0.25, 0.25, 0.0]


@pytest.mark.cases("offload", "expected")
def test_offload_in_parts(offload: str, expected: dict[str, float]) -> None:
    found = columns(offload=offload)
    assert {name: found[name] for name in expected} == expected
