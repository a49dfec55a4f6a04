"""Which files are a shell's."""

import os
import re
from contextlib import suppress
from pathlib import Path

from autotune.base.errors import RenderError
from autotune.base.user_text import read_text

SHELL_SUFFIXES = (".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch")
"""What a shell file is called."""
DATA_SUFFIXES = (".json", ".hjson", ".yaml", ".yml")
"""What a file of data is called."""
LINE = "the launch line"
"""What a line that stands in no file is called."""
_SHEBANG = re.compile(r"#!.*\b(?:ba|z|k|da)?sh\b")
_STARTS = re.compile(
    r"^[ \t]*(?:\w+=\S*[ \t]+)*(?:\S*/)?(?:torchrun|deepspeed|accelerate[ \t]+launch|python3?[ \t]"
    r"|llamafactory-cli|axolotl[ \t]+train|trl|swift)[ \t]+(?![:=])\S",
    re.MULTILINE,
)


def is_shell(text: str, path: Path) -> bool:
    """Whether a file is a shell's, by its name or its first line."""
    if path.suffix in SHELL_SUFFIXES or _SHEBANG.match(text):
        return True
    return path.suffix not in DATA_SUFFIXES and _STARTS.search(text) is not None


def file_near(name: str, *folders: Path) -> Path | None:
    """The file of a name: from where one stands, else from the first folder that has one."""
    near = (Path(name), *(folder / name for folder in folders))
    return next((one for one in near if os.path.isfile(one)), None)


def text_near(name: str, folder: Path = Path()) -> str:
    """The text of a file as of `file_near`; empty: it is not there, or cannot be read."""
    with suppress(RenderError):
        return read_text(path) if (path := file_near(name, folder)) else ""
    return ""


def may_launch(path: Path) -> bool:
    """True if the name of a file is one that a launch may have."""
    return path.suffix not in (*DATA_SUFFIXES, ".py", ".args")
