"""Build one DeepSpeed extension: `python -m autotune.trial.build_extension NAME FOLDER`.

Run by `autotune.engines.deepspeed.extensions`, which holds the lock and collects the output.
"""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepspeed.accelerator import get_accelerator

from autotune.trial.prebuilt import BUILT_FILE, save_cpu_info

_BUILDERS = {
    "deepspeed_shm_comm": "ShareMemCommBuilder",
    "fused_adam": "FusedAdamBuilder",
    "cpu_adam": "CPUAdamBuilder",
    "async_io": "AsyncIOBuilder",
    "pin_memory": "PinMemoryBuilder",
}


def main() -> None:
    """Compile the extension, mark it as built, and save what was learned of the processor."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    save_cpu_info(folder)
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
    with tempfile.TemporaryDirectory(prefix="autotune-compiler-") as folder:
        script = Path(folder, "c++")
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(compiler)} "$@" -g0\n', encoding="utf-8")
        script.chmod(0o755)
        os.environ["PATH"] = os.pathsep.join([folder, before])
        try:
            yield
        finally:
            os.environ["PATH"] = before


if __name__ == "__main__":
    main()
