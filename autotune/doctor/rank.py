"""One rank of the measurement: `python -m autotune.doctor.rank FOLDER ACCELERATOR DEVICES`.

Started by a launcher: a matrix product on its own device while all others do the same, then an
all-reduce over all.
"""

import time
from collections.abc import Callable
from typing import Any

from autotune.trial.report_rank import report

_MATMUL_S = 1.5
_WARM_UPS, _ALL_REDUCES = 2, 7


def main() -> None:
    """Measure, write, and leave."""
    report(_measure)


def _measure(accelerator: str, local_rank: int) -> dict[str, Any]:
    import torch  # only after the process is pinned

    if accelerator == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.init()  # says in words what is wrong with the driver or the build
        torch.cuda.set_device(device)
        has_bf16 = torch.cuda.get_device_capability(device) >= (8, 0)
        n, dtype = 8192, torch.bfloat16 if has_bf16 else torch.float16
        wait, buffer_bytes, backend = torch.cuda.synchronize, 256 * 2**20, "nccl"
    else:
        device, n, dtype = torch.device("cpu"), 1024, torch.float32
        wait, buffer_bytes, backend = _nothing, 32 * 2**20, "gloo"
        torch.set_num_threads(1)
    torch.distributed.init_process_group(backend)
    left, right = (torch.rand(n, n, device=device).to(dtype) for _ in range(2))
    buffer = torch.zeros(buffer_bytes // 4, device=device)

    def multiply() -> None:
        torch.matmul(left, right)

    def reduce() -> None:
        torch.distributed.all_reduce(buffer)

    for _ in range(_WARM_UPS):
        _timed(multiply, wait)
        _timed(reduce, wait)
    torch.distributed.barrier()
    matmul_s: list[float] = []
    end_s = time.perf_counter() + _MATMUL_S
    while not matmul_s or time.perf_counter() < end_s:
        matmul_s.append(_timed(multiply, wait))
    torch.distributed.barrier()
    all_reduce_s = [_timed(reduce, wait) for _ in range(_ALL_REDUCES)]
    torch.distributed.barrier()
    return {
        "n": n,
        "matmul": f"{n} x {n} {_SHORT[str(dtype)]}",
        "matmul_s": matmul_s,
        "all_reduce_bytes": buffer.numel() * buffer.element_size(),
        "all_reduce_s": all_reduce_s,
    }


_SHORT = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32"}


def _timed(work: Callable[[], None], wait: Callable[[], None]) -> float:
    wait()
    start_s = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start_s


def _nothing() -> None:
    """Work on the CPU is done when the call returns."""


if __name__ == "__main__":
    main()
