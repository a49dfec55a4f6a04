"""The environment that a trial's ranks start with on a node, and what of it may be recorded."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.base.plugins import load_plugin
from autotune.base.secrecy import is_secret
from autotune.contract import LIST_VARIABLES, PARENT_ENV, TRIAL_ENV, TrialSpec
from autotune.devices.hardware import cuda_names, usable_cores
from autotune.fleet.node.processes import NodePart
from autotune.trial.variables import BUILT_ENV, CAPACITY_ENV, CORES_ENV, SUBMITTED_ENV

_ALLOWED = re.compile(
    r"(DS_ACCELERATOR|OMP_NUM_THREADS|OMP_PROC_BIND|OMP_PLACES|KMP_\w+|GOMP_CPU_AFFINITY|MKL_NUM_THREADS|"
    r"CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUDA_DEVICE_MAX_CONNECTIONS|CUDA_LAUNCH_BLOCKING|NCCL_\w+|GLOO_\w+|"
    r"PYTORCH_\w*ALLOC_CONF|TORCH_NCCL_\w+|TORCH_CUDA_ARCH_LIST|NVTE_\w+|MALLOC_\w+|LD_PRELOAD)"
)

MACHINE_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES"})
"""Variables that mean something else on another machine, and go there only if they are named:
numbers of GPUs would be other ones there, perhaps those of somebody else's job."""

_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
"""Folders of compilers, which would lie in /tmp and in the user's home. Trials of one search share
them, below the node's own folder, and no other search finds them."""


def rank_environment(part: NodePart, spec: TrialSpec, temporary: Path) -> dict[str, str]:
    """The environment of a trial's ranks on this node; `temporary` is theirs alone."""
    is_on_gpu = spec.layout.accelerator == "cuda"
    of_engine = load_plugin("engine", spec.engine.name).rank_variables(
        spec.layout.accelerator, os.environ
    )
    made = {
        **os.environ,
        TRIAL_ENV: part.folder,
        PARENT_ENV: str(os.getpid()),
        "TMPDIR": str(temporary),
        SUBMITTED_ENV: repr(part.began_at_s),
        CAPACITY_ENV: str(part.capacity_bytes),
        "PYTHONUNBUFFERED": "1",
    }
    if is_on_gpu:
        made["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        made["CUDA_VISIBLE_DEVICES"] = ",".join(cuda_names(part.devices))
    if spec.workload.command:
        # The user's own environment: what they did not set stays unset. Which Python the ranks
        # are run by, only they know: a shell or a launcher stands before them.
        made[BUILT_ENV] = json.dumps({"prefix": sys.prefix, "variables": of_engine})
        return _with_candidate(made, spec)
    made |= {**of_engine, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    for name, folder in _CACHES.items():
        made.setdefault(name, str(temporary.parent / folder))
    if is_on_gpu:
        # As the export's launch.sh sets it: an offloaded optimizer runs on the host's cores.
        threads = max(1, len(usable_cores()) // part.n_sharing)
        made.setdefault("OMP_NUM_THREADS", str(threads))
        # Loopback for one machine alone: nothing need listen where others could reach it.
        # The equals sign keeps NCCL from taking the name for the beginning of one.
        made.setdefault("NCCL_SOCKET_IFNAME", f"={part.interface}")
        if spec.engine.binds_cores:
            made[CORES_ENV] = _shares(usable_cores(), part.n_sharing)
    else:
        made[CORES_ENV] = ";".join(part.devices)
        made["OMP_NUM_THREADS"] = "1"
        made["LOCAL_SIZE"] = str(len(part.devices))
        made["GLOO_SOCKET_IFNAME"] = part.interface
    return _with_candidate(made, spec)


def _with_candidate(made: dict[str, str], spec: TrialSpec) -> dict[str, str]:
    for name, value in spec.engine.environment.items():
        is_added = name in LIST_VARIABLES and made.get(name)
        made[name] = f"{made[name]},{value}" if is_added else value
    return made


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be recorded: those that change speed, by name, and no secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if _ALLOWED.fullmatch(name) and not is_secret(name)
    }


def forwarded_environment(named: Sequence[str]) -> dict[str, str]:
    """The variables of this process that trials on another machine get.

    They are those that change speed, and those that the user `named`: no secret goes anywhere
    unless it is named, nor do `MACHINE_VARIABLES`.
    """
    given = {name: os.environ[name] for name in named if name in os.environ}
    allowed = allowed_environment(os.environ)
    travelling = {n: value for n, value in allowed.items() if n not in MACHINE_VARIABLES}
    return {**travelling, **given}


def _shares(cores: Sequence[int], n_ranks: int) -> str:
    """Neighbouring cores for each rank, as `CORES_ENV` spells them; a core for two if need be."""
    size = max(1, len(cores) // n_ranks)
    starts = [rank * size % len(cores) for rank in range(n_ranks)]
    return ";".join(",".join(map(str, cores[start : start + size])) for start in starts)
