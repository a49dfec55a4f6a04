"""Build one DeepSpeed extension: `python -m autotune.trial.build_extension NAME FOLDER`.

Run by `autotune.extensions`, which holds the lock and collects the output.
"""

import sys
from pathlib import Path

from deepspeed.accelerator import get_accelerator

from autotune.trial.cpu_info import save_cpu_info
from autotune.trial.prebuilt import BUILT_FILE

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
    get_accelerator().create_op_builder(_BUILDERS[name]).load(verbose=True)
    (folder / name / BUILT_FILE).touch()


if __name__ == "__main__":
    main()
