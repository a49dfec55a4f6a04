"""Accelerators of this machine, what is installed for them, and their peaks.

Nothing here imports torch: NVML and the kernel answer in milliseconds. What asks them is imported
where it is used: the rules need the values alone.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from autotune.base.errors import FleetError

if TYPE_CHECKING:  # pydantic
    from autotune.devices.accelerators import Accelerator

_BF16_CAPABILITY = (8, 0)
"""Compute capability from which CUDA computes in bf16; below, torch emulates it and calls it
supported all the same (`torch.cuda.is_bf16_supported`, unless `including_emulation=False`)."""
HOST_SHARE = 0.9
"""Share of the host's memory that ranks may take together; the rest is the system's."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Environment of a trial: the accelerator and the versions of the software on it."""

    accelerator: str
    """`cpu` or `cuda`."""
    n_devices: int
    """Accelerators of one node; for `cpu`, its cores."""
    device_name: str
    device_memory_bytes: int
    """Memory of one device; for `cpu`, a core's share of the host's memory."""
    peak_flops: float | None
    """Dense bf16/fp16 matrix peak of one device in FLOP/s by its datasheet; None if unknown."""
    deepspeed_version: str
    torch_version: str
    precisions: tuple[str, ...] = ("fp32", "bf16", "fp16")
    """Native precisions of the accelerator; most CPUs have no fp16, GPUs before Ampere no bf16."""
    has_flash_attention: bool = False
    has_deep_ep: bool = False
    nccl: str = ""
    """Release of NCCL that torch brings; empty on CPU ranks, and where nobody can say."""
    megatron_core: str = ""
    """Release of Megatron Core; empty where it is not installed."""
    has_transformer_engine: bool = True
    """Whether Transformer Engine is installed, whose layers Megatron takes on a GPU. True where a
    GPU is only described."""
    has_apex: bool = True
    """Whether the kernels of Apex are installed, which Megatron takes for gradients and softmax.
    True where a GPU is only described."""

    def release_of(self, package: str) -> str:
        """The release of an engine's package, by pip's name; empty where it is not installed."""
        name = package.replace("-", "_")
        return str(getattr(self, f"{name}_version", getattr(self, name, "")))


VERSIONED = tuple(
    entry.name.removesuffix("_version")
    for entry in fields(Environment)
    if entry.name.endswith("_version")
)
"""Packages whose versions are part of an environment: a trial elsewhere is another trial."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One visible GPU as NVML sees it now."""

    index: int
    """Position in `CUDA_VISIBLE_DEVICES`, if that is set."""
    name: str
    uuid: str
    memory_bytes: int
    memory_used_bytes: int
    """Memory in use by anybody, this user or another."""
    utilization: float | None
    """Share of the last sample period in which a kernel ran (0 to 1); None if not reported."""
    compute_capability: tuple[int, int] | None = None
    """Compute capability, such as (8, 0) of an A100; None if not reported."""


def detect_environment() -> Environment:
    """Find the accelerators of this machine and the versions of what drives them.

    GPUs count if NVML shows them, `CUDA_VISIBLE_DEVICES` does not hide them, and the installed
    torch is built for CUDA; else the cores that this process may use are the devices.
    `DS_ACCELERATOR` decides where it is set. Of unlike GPUs, the first names them, the smallest
    memory counts, and there is no peak.

    Raises:
        FleetError: torch is missing, or `DS_ACCELERATOR` names an accelerator that is not there
            or that is not supported.
    """
    if version_of("torch") is None:
        raise not_installed("torch")
    here = {**versions_here(), "megatron_core": version_of("megatron-core") or ""}
    accelerator, devices = find_accelerator()
    if accelerator == "cuda":
        names = {gpu.name for gpu in devices}
        return Environment(
            accelerator="cuda",
            n_devices=len(devices),
            device_name=devices[0].name,
            device_memory_bytes=min(gpu.memory_bytes for gpu in devices),
            peak_flops=peak_flops(devices[0].name) if len(names) == 1 else None,
            precisions=_precisions(devices),
            has_flash_attention=is_importable("flash_attn"),
            has_deep_ep=is_importable("deep_ep"),
            nccl=nccl_version(),
            has_transformer_engine=is_importable("transformer_engine"),
            has_apex=is_importable("fused_weight_gradient_mlp_cuda"),
            **here,
        )
    n_cores = len(usable_cores())
    return Environment(
        accelerator="cpu",
        n_devices=n_cores,
        device_name=cpu_name(),
        device_memory_bytes=int(usable_memory_bytes() * HOST_SHARE / n_cores),
        peak_flops=None,
        precisions=cpu_precisions(),
        **here,
    )


@cache
def is_importable(module: str) -> bool:
    """Whether a module of this name is installed; it is not imported. Rules ask it often."""
    return importlib.util.find_spec(module) is not None


def versions_here(*, unknown: str = "") -> dict[str, Any]:
    """The installed versions, by an environment's fields; `unknown` where one is not installed."""
    return {f"{package}_version": version_of(package) or unknown for package in VERSIONED}


def not_installed(package: str) -> FleetError:
    """The error where a package is missing that trials cannot do without; the fix names all."""
    missing = {package}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a node has the code alone
        for line in importlib.metadata.requires("autotune") or ():
            name = re.split(r"[^\w.-]", line)[0]
            if "extra ==" not in line and version_of(name) is None:
                missing.add(name)
    install = f"pip install {' '.join(sorted(missing))}"
    instead = "what runs no trial needs none of them: `autotune plan`"
    return FleetError(f"{package} is not installed: trials need it", f"{install}; {instead}")


def find_accelerator() -> tuple[str, list[Gpu]]:
    """`cuda` with its GPUs, or `cpu` with none.

    Raises:
        FleetError: `DS_ACCELERATOR` asks for what is not there or not supported.
    """
    asked = os.environ.get("DS_ACCELERATOR", "")
    if asked not in ("", "cpu", "cuda"):
        raise FleetError.of("devices.no_such_choice", asked=asked)
    if asked == "cpu":
        return "cpu", []
    devices = visible_gpus()
    if devices and torch_cuda_version() is not None:
        return "cuda", devices
    if asked == "cuda":
        what, fix = "torch is built without CUDA", "install a torch for CUDA"
        if not devices:
            what = "NVML shows no visible GPU"
            fix = "see that nvidia-smi lists one here and CUDA_VISIBLE_DEVICES does not hide it"
        raise FleetError.of("devices.no_gpu", what=what, fix=fix)
    return "cpu", []


def peak_flops_of(
    precision: str, environment: Environment | None, table: "Sequence[Accelerator] | None" = None
) -> float | None:
    """FLOP/s of one device, dense, that MFU is a share of; None where that is not known.

    In fp8 and fp4 that of the table, by default the shipped one.
    """
    if environment is None or not environment.peak_flops or precision == "fp32":
        return None
    if precision in ("fp8", "fp4"):
        return peak_flops(environment.device_name, precision, table)
    return environment.peak_flops


def peak_flops(
    device_name: str, precision: str = "bf16", table: "Sequence[Accelerator] | None" = None
) -> float | None:
    """Dense matrix peak of one GPU in FLOP/s, by its datasheet; of V100 and T4 fp16 for bf16.

    None: a device that is not in the table, or a slice of one (MIG), or without that precision.
    """
    from autotune.devices import accelerators  # its table is checked by pydantic

    try:
        peaks = accelerators.find_accelerator(device_name, table=table).peak_flops
    except FleetError:
        return None
    return peaks.get(precision, peaks.get("fp16") if precision == "bf16" else None)


def visible_gpus() -> list[Gpu]:
    """The GPUs that a process started here would see, with their state; none without a driver.

    NVML counts by PCI bus; `CUDA_VISIBLE_DEVICES` counts so too where all GPUs are alike or
    `CUDA_DEVICE_ORDER=PCI_BUS_ID`.

    Raises:
        FleetError: The driver is there and does not answer for a GPU.
    """
    with _driver() as nvml:
        if nvml is None:
            return []
        try:
            handles = _visible_handles(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
            return [_gpu(nvml, index, handle) for index, handle in enumerate(handles)]
        except nvml.NVMLError as error:
            raise FleetError.of("devices.no_answer", error=error) from error


def cuda_names(uuids: Sequence[str]) -> list[str]:
    """Names of GPUs for `CUDA_VISIBLE_DEVICES` with `CUDA_DEVICE_ORDER=PCI_BUS_ID`: numbers.

    DeepSpeed takes the entries for numbers (accelerator/cuda_accelerator.py, `_get_nvml_gpu_id`).
    A slice of a GPU has none and keeps its UUID, as does a GPU that the driver does not show.
    """
    numbers: dict[str, str] = {}
    with _driver() as nvml:
        if nvml is None:
            return list(uuids)
        with contextlib.suppress(nvml.NVMLError):
            for index in range(nvml.nvmlDeviceGetCount()):
                with contextlib.suppress(nvml.NVMLError):  # one that is lost hides no other
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    numbers[nvml.nvmlDeviceGetUUID(handle)] = str(index)
    return [numbers.get(uuid, uuid) for uuid in uuids]


@contextlib.contextmanager
def _driver() -> Iterator[ModuleType | None]:
    """NVIDIA's driver, as the module that speaks to it; None: there is none."""
    import pynvml  # tens of milliseconds

    is_there = False
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        is_there = True
    try:
        yield pynvml if is_there else None
    finally:
        if is_there:
            pynvml.nvmlShutdown()


def usable_cores() -> list[int]:
    """The logical cores that this process may use: by affinity and cgroup quota."""
    from autotune.devices import cgroup  # with what measures in ranks

    cores = sorted(os.sched_getaffinity(0))
    quota = cgroup.cpu_quota()
    return cores if quota is None else cores[: max(1, int(quota))]


def usable_memory_bytes() -> int:
    """The host's memory, or the cgroup's limit if that is less."""
    import psutil  # tens of milliseconds

    from autotune.devices import cgroup  # as in `usable_cores`

    total_bytes: int = psutil.virtual_memory().total
    limit_bytes = cgroup.memory_limit_bytes()
    return total_bytes if limit_bytes is None else min(total_bytes, limit_bytes)


def cpu_name() -> str:
    """The processor as the kernel names it."""
    return _cpuinfo("model name") or "CPU"


def cpu_precisions() -> tuple[str, ...]:
    """Precisions in which an engine trains on this machine's processor."""
    return ("fp32", "bf16", *(("fp16",) if cpu_has_fp16() else ()))


def cpu_has_fp16() -> bool:
    """Whether oneDNN computes in fp16 here: AVX512-FP16, AMX-FP16 or AVX-NE-CONVERT.

    It is what DeepSpeed's CPU accelerator asks torch (`is_fp16_supported`).
    """
    return not {"avx512_fp16", "amx_fp16", "avx_ne_convert"}.isdisjoint(_cpu_features())


def cpu_has_bf16() -> bool:
    """Whether this machine's processor multiplies in bf16.

    Where it does not, torch does so many times slower than in 32 bits.
    """
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(_cpu_features())


def _cpu_features() -> set[str]:
    """Names of the processor's instruction sets: x86 calls the field flags, Arm Features."""
    return {*_cpuinfo("flags").split(), *_cpuinfo("Features").split()}


def _cpuinfo(key: str) -> str:
    """Field of the kernel's for the first processor; empty where it has none."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        found = re.search(rf"^{key}\s*:(.*)$", text, re.MULTILINE)
        return found[1].strip() if found else ""
    return ""


def version_of(package: str) -> str | None:
    """The installed version of a package, without importing it; None if it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cuda_version() -> str | None:
    """The CUDA version that the installed torch is built for; None for none."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    with contextlib.suppress(OSError):
        text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8")
        match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        return match[1] if match else None
    return None


def nccl_version() -> str:
    """The release of NCCL that the installed torch loads; empty where it brings its own build.

    It is that of the package that torch's wheel needs (`nvidia-nccl-cu12`), which
    `torch.cuda.nccl.version()` would name as well, after seconds.
    """
    cuda = torch_cuda_version()
    package = f"nvidia-nccl-cu{cuda.partition('.')[0]}" if cuda else ""
    return (version_of(package) or "") if package else ""


def _visible_handles(nvml: ModuleType, visible: str | None) -> list[Any]:
    """As CUDA reads the variable: indices or UUID prefixes, cut at the first that is not there."""
    n_gpus = nvml.nvmlDeviceGetCount()
    if visible is None:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(n_gpus)]
    chosen: list[Any] = []
    for entry in (part.strip() for part in visible.split(",")):
        handle = _handle(nvml, entry, n_gpus)
        if handle is None:
            break
        chosen.append(handle)
    return chosen


def _handle(nvml: ModuleType, entry: str, n_gpus: int) -> Any | None:
    """The GPU that an entry names; one that is hidden is not asked, it may be the broken one."""
    if entry.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(entry)) if int(entry) < n_gpus else None
    if entry.startswith("MIG-"):
        with contextlib.suppress(nvml.NVMLError):
            return nvml.nvmlDeviceGetHandleByUUID(entry)
        return None
    if not entry.startswith("GPU-"):
        return None
    named = []
    for index in range(n_gpus):
        with contextlib.suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if nvml.nvmlDeviceGetUUID(handle).startswith(entry):
                named.append(handle)
    return named[0] if len(named) == 1 else None


def _precisions(devices: list[Gpu]) -> tuple[str, ...]:
    """Precisions of all of them; one that does not report its capability counts as a new one."""
    known = [gpu.compute_capability for gpu in devices if gpu.compute_capability is not None]
    has_bf16 = all(capability >= _BF16_CAPABILITY for capability in known)
    return ("fp32", *(("bf16",) if has_bf16 else ()), "fp16")


def _gpu(nvml: ModuleType, index: int, handle: Any) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    utilization = None
    with contextlib.suppress(nvml.NVMLError):  # MIG slices do not report it
        utilization = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    capability = None
    with contextlib.suppress(nvml.NVMLError):
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        capability = (int(major), int(minor))
    return Gpu(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        memory_bytes=int(memory.total),
        memory_used_bytes=int(memory.used),
        utilization=utilization,
        compute_capability=capability,
    )
