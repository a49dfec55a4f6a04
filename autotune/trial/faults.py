"""Maps what went wrong in a rank to an outcome and the line that says so.

Typed exceptions decide; their text only where the type says nothing (torch raises RuntimeError for
a failed allocation on CPU and for much else).
"""

import errno

from autotune.contract import Outcome, Phase

_OOM_TYPES = {"OutOfMemoryError", "MemoryError"}
_COMM_TYPES = {"DistBackendError", "DistNetworkError", "DistStoreError", "ConnectionError"}

_OOM_TEXTS = (
    "can't allocate memory",
    "cannot allocate memory",
    "out of memory",
    "std::bad_alloc",
    "failed to allocate",
    "cublas_status_alloc_failed",
    "cublas_status_not_initialized",  # cuBLAS could not allocate its workspace
    # A thread's stack is private data as well: under RLIMIT_DATA it fails like any allocation.
    "can't start new thread",
    "resource temporarily unavailable",
)
_COMM_TEXTS = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "timed out waiting",
    "nccl error",
    "socket timeout",
    "gloo/transport",
)

_SAID: tuple[tuple[Outcome, set[str], tuple[str, ...], tuple[type, ...]], ...] = (
    (Outcome.OOM, _OOM_TYPES, _OOM_TEXTS, (RuntimeError, OSError)),
    # Megatron's words for a loss, or for gradients before they are reduced.
    (Outcome.NONFINITE, set(), ("found nan in local", "found inf in local"), (RuntimeError,)),
    # NCCL's own words since 2.24 where NCCL_ALGO or NCCL_PROTO leaves nothing (src/enqueue.cc:
    # topoGetAlgoInfo); torch passes them on as "Last error".
    (Outcome.INVALID, set(), ("no algorithm/protocol available",), (RuntimeError,)),
    (Outcome.COMM, _COMM_TYPES, _COMM_TEXTS, (RuntimeError,)),
)
"""Outcomes by the names of types and by texts of an error, the first that fits."""

_WORKER_TEXTS = (
    # torch's words where a data loader's process was killed or ended without a Python error
    # (torch/utils/data/dataloader.py, _utils/signal_handling.py): nothing that it raised itself.
    "dataloader worker (pid",
)

_HOST_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE}
"""A full or broken disk, too many open files: the host's trouble, in whatever phase it shows."""

_CONFIG_PHASES = (Phase.MODEL, Phase.ENGINE_INIT, Phase.WARM_UP)


class NonFiniteLossError(RuntimeError):
    """A loss is not a finite number on a step that the optimizer applied."""


class OutOfMemoryError(RuntimeError):
    """The rank failed while its memory stood at the limit."""


class ReadBackError(RuntimeError):
    """The live engine does not run what was asked for."""


def outcome_of(error: BaseException, phase: Phase) -> Outcome:
    """Name the outcome of an exception, or of its causes, that ended a rank in a phase.

    What the engine raises while it is set up or in its first steps it would raise again: the
    configuration's fault.
    """
    if isinstance(error, NonFiniteLossError):
        return Outcome.NONFINITE
    if isinstance(error, ReadBackError):
        return Outcome.INVALID
    chain = _chain(error)
    for outcome, types, texts, read in _SAID:
        if any(_says(link, types, texts, read) for link in chain):
            return outcome
    if phase in (Phase.SPAWN, Phase.IMPORT):
        return Outcome.LAUNCH
    if any(isinstance(link, OSError) and link.errno in _HOST_ERRNOS for link in chain):
        return Outcome.CRASH
    if any(_says(link, set(), _WORKER_TEXTS, (RuntimeError,)) for link in chain):
        return Outcome.CRASH
    if phase is Phase.PROCESS_GROUP:
        return Outcome.COMM
    return Outcome.INVALID if phase in _CONFIG_PHASES else Outcome.CRASH


def evidence_of(error: BaseException) -> str:
    """The exception in one line of at most 500 characters."""
    text = " ".join(str(error).split())
    line = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return line[:500]


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return chain


def _says(
    error: BaseException, types: set[str], texts: tuple[str, ...], read: tuple[type, ...]
) -> bool:
    """True for an exception of one of the types, or of a kind to `read` with such a text."""
    if types & {cls.__name__ for cls in type(error).__mro__}:
        return True
    text = str(error).lower()
    return isinstance(error, read) and any(part in text for part in texts)
