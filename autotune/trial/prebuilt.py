"""What a rank of DeepSpeed loads before its memory base is taken: modules, and built extensions.

Both are no part of a configuration's memory. And modules that nothing uses are not waited for:
DeepSpeed's ZeRO loads its Muon functions, which compile on import and drag in torch's whole
inductor (1.5 s and 40 MiB per rank), for any optimizer.

`python -m autotune.trial.prebuilt NAME FOLDER` builds an extension, run by
`autotune.engines.deepspeed.extensions`, which holds the lock and collects the output.

For every extension that it loads, built or not, DeepSpeed asks py-cpuinfo for compiler flags:
about a second each time, in every rank. The answer is saved once, beside the extensions. And each
time a rank loads an extension, built or not, torch writes its build.ninja anew and runs ninja
behind a lock *file*. A rank killed in that moment leaves the lock, and every later trial waits on
it; and what ninja then takes for outdated is compiled again, minutes in the middle of a trial.
"""

import importlib
import importlib.util
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.contract import ContractError, read_json, write_json
from autotune.trial.variables import BUILT_ENV

BUILT_FILE = "autotune.built"
"""File in an extension's folder once its build has ended well; a library may be half linked."""

COMPILER_PREFIX = ".compiler-"
"""How the names of folders begin in which a build has its compiler."""
NEEDED = {
    "cpu": ("deepspeed_shm_comm", "fused_adam", "cpu_adam"),
    "cuda": ("fused_adam", "cpu_adam"),
}
"""Extensions that trials on an accelerator load, whatever their configuration."""

_BUILDERS = {
    "deepspeed_shm_comm": "ShareMemCommBuilder",
    "fused_adam": "FusedAdamBuilder",
    "cpu_adam": "CPUAdamBuilder",
    "async_io": "AsyncIOBuilder",
    "pin_memory": "PinMemoryBuilder",
}
_CPU_INFO_FILE = "cpu_info.json"
_ENGINE = (
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.bf16_optimizer",
    "deepspeed.module_inject.auto_tp",
)
_MUON = "deepspeed.runtime.zero.muon.original_muon"
_HUGGING_FACE = ("transformers.modeling_utils", "transformers.models.auto.modeling_auto")


def main() -> None:
    """Compile the extension, mark it as built, and save what was learned of the processor."""
    import cpuinfo  # installed with deepspeed
    from deepspeed.accelerator import get_accelerator  # heavy

    name, folder = sys.argv[1], Path(sys.argv[2])
    if not (folder / _CPU_INFO_FILE).exists():
        write_json(folder / _CPU_INFO_FILE, cpuinfo.get_cpu_info())
    with without_debug_information():
        get_accelerator().create_op_builder(_BUILDERS[name]).load(verbose=True)
    (folder / name / BUILT_FILE).touch()


@contextmanager
def without_debug_information() -> Iterator[None]:
    """Make the default compiler leave out what `-g` asks for: it takes time, and nobody reads it.

    DeepSpeed's builders pass `-g` and take no flags from outside. The commands in build.ninja stay
    as torch writes them: if they differed, a user of the folder without autotune would compile all
    of it again.
    """
    compiler = shutil.which("c++")
    if compiler is None or "CXX" in os.environ:
        yield
        return
    before = os.environ["PATH"]
    # Beside the extensions, where nobody else can write: what lies there is run.
    with tempfile.TemporaryDirectory(prefix=COMPILER_PREFIX, dir=_folder()) as folder:
        script = Path(folder, "c++")
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(compiler)} "$@" -g0\n', encoding="utf-8")
        script.chmod(0o755)
        os.environ["PATH"] = os.pathsep.join([folder, before])
        try:
            yield
        finally:
            os.environ["PATH"] = before


def reuse_cpu_info() -> None:
    """Answer py-cpuinfo's question from the saved file; without one nothing changes."""
    folder = _folder()
    if folder is None:
        return
    try:
        saved = read_json(folder / _CPU_INFO_FILE)
    except ContractError:
        return
    import cpuinfo  # installed with deepspeed

    cpuinfo.get_cpu_info = lambda: saved


def built_variables() -> dict[str, str]:
    """Variables that lead to what was built for the Python of this process; empty: nothing was."""
    built = json.loads(os.environ.get(BUILT_ENV, "{}"))
    return dict(built["variables"]) if built.get("prefix") == sys.prefix else {}


def use_built() -> None:
    """Load extensions as they were built for the Python of this process, if any were.

    The environment stays as it is: what a launcher starts, of this Python or not, inherits it.
    """
    if built_variables():
        reuse_cpu_info()
        load_as_built()


def load_as_built() -> None:
    """Make torch load those extensions that are built for this process as they are.

    Any other is compiled by torch as ever. Without a folder of them nothing changes, nor if this
    was called before.
    """
    if _folder() is None:
        return
    from torch.utils import cpp_extension

    compile_and_load = cpp_extension.load
    if compile_and_load.__module__ == __name__:
        return

    def load(name: str, *args: Any, **kwargs: Any) -> Any:
        return _load_built(name) or compile_and_load(name, *args, **kwargs)

    cpp_extension.load = load


def load_now(names: Iterable[str]) -> None:
    """Load those of the named extensions that are built, before the memory base is taken.

    They are code as imports are. DeepSpeed, which finds them loaded, then neither looks for ninja
    nor asks the processor for compiler flags.
    """
    from deepspeed.ops.op_builder.builder import OpBuilder

    loaded = OpBuilder._loaded_ops
    loaded |= {n: module for n in names if n not in loaded and (module := _load_built(n))}


def preload(ds_config: dict[str, Any], model: dict[str, Any]) -> None:
    """Import the modules of the engine, whose optimizer decides about Muon, and of the model."""
    optimizer = str(ds_config.get("optimizer", {}).get("type", ""))
    if "muon" not in optimizer.lower():
        _import_uncompiled(_MUON)
    # The engine brings it in, or the model does; under zero.Init, which replaces
    # Tensor.__new__, that would be too late (seen with Mixtral).
    _import_if_there("torch._dynamo")
    for module in _ENGINE:
        _import_if_there(module)
    if "lora" in model:
        _import_if_there("peft")
    if "config" in model:
        for module in _HUGGING_FACE:
            _import_if_there(module)
        _import_if_there(f"transformers.models.{model['config'].get('model_type')}")


def _import_uncompiled(module: str) -> None:
    from deepspeed.runtime import compiler

    if not hasattr(compiler, "compile"):  # before 0.18, when nothing compiled on import
        return
    compile_decorator = compiler.compile
    compiler.compile = lambda *_args, **_kwargs: lambda function: function
    try:
        _import_if_there(module)
    finally:
        compiler.compile = compile_decorator


def _import_if_there(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        return  # another version's layout: it is then loaded when it is needed


def _folder() -> Path | None:
    named = {**os.environ, **built_variables()}.get("TORCH_EXTENSIONS_DIR")
    return Path(named) if named else None


def _load_built(name: str) -> ModuleType | None:
    """Import an extension; None: it is not built."""
    folder = _folder()
    if folder is None or not (folder / name / BUILT_FILE).exists():
        return None
    library = folder / name / f"{name}.so"
    spec = importlib.util.spec_from_file_location(name, library)
    if spec is None or spec.loader is None:
        raise ImportError(f"{library} is no Python extension", name=name, path=str(library))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
