"""Load DeepSpeed's extensions as they were built, without asking ninja or the processor again.

For every extension that it loads, built or not, DeepSpeed asks py-cpuinfo for compiler flags:
about a second each time, in every rank. The answer is saved once, beside the extensions. And each
time a rank loads an extension, built or not, torch writes its build.ninja anew and runs ninja
behind a lock *file*. A rank killed in that moment leaves the lock, and every later trial waits on
it; and what ninja then takes for outdated is compiled again, minutes in the middle of a trial.
"""

import importlib.util
import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

BUILT_FILE = "autotune.built"
"""File in an extension's folder once its build has ended well; a library may be half linked."""

NEEDED = {
    "cpu": ("deepspeed_shm_comm", "fused_adam", "cpu_adam"),
    "cuda": ("fused_adam", "cpu_adam"),
}
"""Extensions that trials on an accelerator load, whatever their configuration."""

_CPU_INFO_FILE = "cpu_info.json"


def save_cpu_info(folder: Path) -> None:
    """Ask py-cpuinfo once and keep its answer in the extensions folder."""
    import cpuinfo  # installed with deepspeed

    path = folder / _CPU_INFO_FILE
    if not path.exists():
        aside = folder / f".{_CPU_INFO_FILE}.{os.getpid()}"
        aside.write_text(json.dumps(cpuinfo.get_cpu_info()), encoding="utf-8")
        aside.replace(path)


def reuse_cpu_info() -> None:
    """Answer py-cpuinfo's question from the saved file; without one nothing changes."""
    folder = _folder()
    if folder is None:
        return
    try:
        saved = json.loads((folder / _CPU_INFO_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    import cpuinfo  # installed with deepspeed

    cpuinfo.get_cpu_info = lambda: saved


def load_as_built() -> None:
    """Make torch load those extensions that are built below `TORCH_EXTENSIONS_DIR` as they are.

    Any other is compiled by torch as ever. Without the variable nothing changes, nor if this was
    called before.
    """
    folder = _folder()
    if folder is None:
        return
    from torch.utils import cpp_extension

    compile_and_load = cpp_extension.load
    if compile_and_load.__module__ == __name__:
        return

    def load(name: str, *args: Any, **kwargs: Any) -> Any:
        if (folder / name / BUILT_FILE).exists():
            return _import_library(name, folder / name / f"{name}.so")
        return compile_and_load(name, *args, **kwargs)

    cpp_extension.load = load


def load_now(names: Iterable[str]) -> None:
    """Load those of the named extensions that are built, before the memory base is taken.

    They are code as imports are. DeepSpeed, which finds them loaded, then neither looks for ninja
    nor asks the processor for compiler flags.
    """
    from deepspeed.ops.op_builder.builder import OpBuilder

    folder = _folder()
    if folder is None:
        return
    for name in names:
        if name not in OpBuilder._loaded_ops and (folder / name / BUILT_FILE).exists():
            OpBuilder._loaded_ops[name] = _import_library(name, folder / name / f"{name}.so")


def _folder() -> Path | None:
    """Where the extensions are built, if anybody said so."""
    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    return Path(named) if named else None


def _import_library(name: str, library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, library)
    if spec is None or spec.loader is None:
        raise ImportError(f"{library} is no Python extension", name=name, path=str(library))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
