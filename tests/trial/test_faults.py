import builtins

import pytest
import torch

from autotune.contract import Outcome, Phase
from autotune.trial.faults import NonFiniteLossError, ReadBackError, evidence_of, outcome_of

KINDS = vars(builtins) | {
    kind.__name__: kind
    for kind in (
        *(torch.OutOfMemoryError, torch.distributed.DistBackendError),
        *(NonFiniteLossError, ReadBackError),
    )
}


@pytest.mark.cases("kinds", "arguments", "phase", "outcome")
def test_outcome_of_an_exception(kinds, arguments, phase, outcome):
    """Of several kinds the first was raised from the second."""
    *outer, kind = kinds.split(" from ")
    error = KINDS[kind](*arguments)
    for name in outer:
        cause, error = error, KINDS[name]("outer")
        error.__cause__ = cause
    assert outcome_of(error, Phase(phase)) == outcome


def test_an_allocation_that_failed_is_out_of_memory():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    assert outcome_of(raised.value, Phase.MEASURED) is Outcome.OOM


def test_evidence_is_one_short_line():
    assert evidence_of(ValueError("a\n  b" + "x" * 1000)).startswith("ValueError: a b")
    assert len(evidence_of(ValueError("x" * 1000))) == 500
    assert evidence_of(MemoryError()) == "MemoryError"
