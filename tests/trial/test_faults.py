import errno

import pytest
import torch

from autotune.contract import Outcome, Phase
from autotune.trial.faults import NonFiniteLossError, ReadBackError, evidence_of, outcome_of


def failed_allocation():
    try:
        torch.empty(2**60)
    except RuntimeError as error:
        return error
    raise AssertionError("two exabytes were allocated")


def caused_by(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "phase", "outcome"),
    [
        (failed_allocation(), Phase.MEASURED, Outcome.OOM),
        (MemoryError(), Phase.MODEL, Outcome.OOM),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), Phase.WARM_UP, Outcome.OOM),
        (RuntimeError("std::bad_alloc"), Phase.ENGINE_INIT, Outcome.OOM),
        (caused_by(ValueError("outer"), MemoryError()), Phase.MODEL, Outcome.OOM),
        (torch.distributed.DistBackendError("NCCL"), Phase.MEASURED, Outcome.COMM),
        # What is chosen of NCCL would leave nothing the next time as well.
        (
            torch.distributed.DistBackendError(
                "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
                "Last error:\nNo algorithm/protocol available for function AllReduce with "
                "datatype ncclFloat32. NCCL_ALGO was set to allreduce:NVLS,NVLSTree."
            ),
            Phase.PROCESS_GROUP,
            Outcome.INVALID,
        ),
        (RuntimeError("Connection closed by peer [127.0.0.1]:1"), Phase.WARM_UP, Outcome.COMM),
        (ConnectionResetError("reset"), Phase.MEASURED, Outcome.COMM),
        (ImportError("no module named x"), Phase.IMPORT, Outcome.LAUNCH),
        (RuntimeError("no route"), Phase.PROCESS_GROUP, Outcome.COMM),
        (AssertionError("micro batch"), Phase.ENGINE_INIT, Outcome.INVALID),
        (TypeError("bad forward"), Phase.WARM_UP, Outcome.INVALID),
        (RuntimeError("who knows"), Phase.MEASURED, Outcome.CRASH),
        # A full disk is no configuration's fault, whenever it is met.
        (OSError(errno.ENOSPC, "No space left on device"), Phase.WARM_UP, Outcome.CRASH),
        (caused_by(ValueError("x"), OSError(errno.EIO, "I/O")), Phase.MODEL, Outcome.CRASH),
        (FileNotFoundError(errno.ENOENT, "no such file"), Phase.MODEL, Outcome.INVALID),
        # Nor is a process beside the rank that somebody killed.
        (
            RuntimeError("DataLoader worker (pid 4711) is killed by signal: Killed. "),
            Phase.WARM_UP,
            Outcome.CRASH,
        ),
        (
            RuntimeError("DataLoader worker (pid(s) 4711, 4712) exited unexpectedly"),
            Phase.WARM_UP,
            Outcome.CRASH,
        ),
        (NonFiniteLossError("nan"), Phase.MEASURED, Outcome.NONFINITE),
        (
            RuntimeError("found NaN in local grad norm for bucket #0 in"),
            Phase.WARM_UP,
            Outcome.NONFINITE,
        ),
        (ReadBackError("stage"), Phase.WARM_UP, Outcome.INVALID),
        # The word alone is no evidence: a value error may speak of memory as well.
        (ValueError("the memory of past errors"), Phase.MEASURED, Outcome.CRASH),
    ],
)
def test_outcome_of_an_exception(error, phase, outcome):
    assert outcome_of(error, phase) is outcome


def test_evidence_is_one_short_line():
    assert evidence_of(ValueError("a\n  b" + "x" * 1000)).startswith("ValueError: a b")
    assert len(evidence_of(ValueError("x" * 1000))) == 500
    assert evidence_of(MemoryError()) == "MemoryError"
