"""Values that are tried beside a candidate's own."""

import pytest

from autotune.engines.deepspeed.knobs import KNOBS as OF_DEEPSPEED
from autotune.engines.megatron.knobs import KNOBS as OF_MEGATRON
from autotune.space.candidate import Candidate
from autotune.space.knobs import steps_of


@pytest.mark.parametrize(
    ("own", "values"), [(1, [2]), (3, [4, 2, 6, 1]), (4, [8, 2]), (6, [8, 4, 12, 3])]
)
def test_a_count_is_tried_at_the_powers_of_two_beside_it(own: int, values: list[int]) -> None:
    candidate = Candidate.of({"tp": own}, world=own, global_batch=8)
    knobs = {"tp": OF_MEGATRON["tp"]}
    assert [value for _, value in steps_of(candidate, knobs, {})] == values


def test_a_number_of_bytes_is_doubled_and_halved_alone() -> None:
    candidate = Candidate.of({"reduce_bucket_size": 500_000_000}, world=2, global_batch=8)
    knobs = {"reduce_bucket_size": OF_DEEPSPEED["reduce_bucket_size"]}
    found = [value for _, value in steps_of(candidate, knobs, {})]
    assert found == [1_000_000_000, 250_000_000]
