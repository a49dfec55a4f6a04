"""NVML without a GPU: a small driver library whose GPUs stand in a text file."""

import functools
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("nvml.c")
H100_MIB = 81_559


@dataclass(frozen=True, kw_only=True)
class StubGpu:
    """One GPU as the driver tells it; the fields are those of a line in nvml.c."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total_mib: int = H100_MIB
    used_mib: int = 4
    percent: int = 0
    capability: str = "9.0"
    bus: str = "0000:18:00.0"
    power_w: int = 120
    celsius: int = 40
    mhz: int = 1980
    throttle: int = 0
    nvlink: int = 1
    state: str = "ok"

    def line(self) -> str:
        """The GPU as a line of the driver's file."""
        fields = (
            *(self.uuid, self.name.replace(" ", "_"), self.total_mib, self.used_mib, self.percent),
            *(self.capability, self.bus, self.power_w, self.celsius, self.mhz, self.throttle),
            *(self.nvlink, self.state),
        )
        return " ".join(map(str, fields)) + "\n"


def gpus(number: int, **fields: object) -> list[StubGpu]:
    """GPUs of one kind, all joined."""
    return [
        StubGpu(uuid=f"GPU-{index:08d}-0000-0000-0000-000000000000", **fields)  # type: ignore[arg-type]
        for index in range(number)
    ]


@functools.cache
def _compiled() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1")
        command = [os.environ.get("CC", "cc"), *flags, "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        return library.read_bytes()


class StubDriver:
    """A folder with the library; processes find it by their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "libnvidia-ml.so.1").write_bytes(_compiled())

    def show(self, *devices: StubGpu) -> None:
        """Have these GPUs from now on, also for those that watch already."""
        made = self.folder / "gpus.new"
        made.write_text("".join(device.line() for device in devices))
        made.rename(self.folder / "gpus")

    def hide(self) -> None:
        """Be a driver that is not loaded."""
        (self.folder / "gpus").unlink(missing_ok=True)

    def environment(self) -> dict[str, str]:
        """The variables with which a process finds it."""
        return {"LD_LIBRARY_PATH": str(self.folder)}


def torch_of_cuda(folder: Path) -> Path:
    """A folder for PYTHONPATH with the installed torch, which says that it is built for CUDA.

    What is decided before the first kernel reads no more of torch than that.
    """
    import torch

    own = Path(torch.__file__).parent
    overlay = folder / "torch"
    overlay.mkdir(parents=True)
    for entry in own.iterdir():
        if entry.name != "version.py":
            (overlay / entry.name).symlink_to(entry)
    said = (own / "version.py").read_text(encoding="utf-8")
    (overlay / "version.py").write_text(f"{said}\ncuda: str = '12.8'\n", encoding="utf-8")
    return folder
