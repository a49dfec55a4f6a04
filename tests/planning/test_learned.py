"""How far predictions reach, by what trials of the same job taught."""

import dataclasses

import numpy as np
import pytest

from autotune.cost import predict
from autotune.cost.constants import load_constants
from autotune.planning.learned import learned_from
from tests.cost.test_knowledge import HERE, lessons, plans


def test_a_bound_on_a_peak_is_no_measurement_of_it() -> None:
    far = [dataclasses.replace(o, peak_bytes=None, limit_bytes=1e15) for o in lessons()[1:]]
    found = learned_from(far, situation=HERE, job=plans(), constants=load_constants())
    assert found.n_here == 3
    peaks = found.recalled.peaks
    assert peaks.side.tolist() == [-1.0] * 3
    blind = dataclasses.replace(found.recalled, peaks=peaks.take(np.array([], np.intp)))
    reaches = [
        one.correct(predict(plans()))[1].peak_memory.high
        for one in (found, dataclasses.replace(found, recalled=blind))
    ]
    assert reaches[0] == pytest.approx(reaches[1], rel=1e-4)
