"""Which files are a shell's."""

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


def text_near(name: str, folder: Path = Path()) -> str:
    """The text of a file from where one stands, else from a folder; empty: it is not there."""
    for path in (Path(name), folder / name):
        if path.is_file():
            with suppress(RenderError):
                return read_text(path)
    return ""


def may_launch(path: Path) -> bool:
    """True if the name of a file is one that a launch may have."""
    return path.suffix not in (*DATA_SUFFIXES, ".py", ".args")
