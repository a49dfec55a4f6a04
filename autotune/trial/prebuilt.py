"""Load DeepSpeed's extensions as they were built, without asking ninja again.

Each time a rank loads an extension, built or not, torch writes its build.ninja anew and runs ninja
behind a lock *file*. A rank killed in that moment leaves the lock, and every later trial waits on
it; and what ninja then takes for outdated is compiled again, minutes in the middle of a trial.
"""

import functools
import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

BUILT_FILE = "autotune.built"
"""In an extension's folder once its build has ended well; a library alone may be half linked."""


def load_as_built() -> None:
    """Make torch load those extensions that are built below `TORCH_EXTENSIONS_DIR` as they are.

    Any other is compiled by torch as ever. Without the variable nothing changes.
    """
    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    if not named:
        return
    from torch.utils import cpp_extension

    folder = Path(named)
    compile_and_load = cpp_extension.load

    @functools.wraps(compile_and_load)
    def load(name: str, *args: Any, **kwargs: Any) -> Any:
        if (folder / name / BUILT_FILE).exists():
            return _import_library(name, folder / name / f"{name}.so")
        return compile_and_load(name, *args, **kwargs)

    cpp_extension.load = load


def _import_library(name: str, library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, library)
    if spec is None or spec.loader is None:
        raise ImportError(f"{library} is no Python extension", name=name, path=str(library))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
