"""A user's own command line: whose Python it runs in, and which files it names."""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autotune.base.errors import JobError

PLACEHOLDER = re.compile(r"\{([a-z][a-z_.]*)(?:=([A-Za-z0-9_.+-]+)(?::(-[^\s{}]+))?)?\}")
"""`{micro_batch=4}` in a command: a knob by its name, and its value where nothing was chosen.

`{recompute=none:--gradient_checkpointing}` is a flag that stands there where the knob is on."""
_LARGEST_BYTES = 2**20
"""Files above this are data, not code or settings."""
_LIMIT_FILES = 500


def check_command(command: Sequence[str]) -> None:
    """See that a command can be started.

    Raises:
        JobError: There is none, or its program is not found.
    """
    if not command:
        raise JobError.of("job.no_command")
    if shutil.which(command[0]) is None:
        fix = "activate the environment that you train in, or give its path"
        if command[0].endswith(".py"):
            fix = f"write what starts it: python {command[0]}, or torchrun {command[0]}"
        raise JobError(f"{command[0]}: there is no such program on the PATH", fix)


def is_of_this_environment(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a command, or the `python` that a shell would find for it, is our Python's."""
    ours = os.path.join(sys.prefix, "bin")
    found = [shutil.which(name, path=environment.get("PATH")) for name in (command[0], "python")]
    return any(path and os.path.dirname(os.path.abspath(path)) == ours for path in found)


def files_named(command: Sequence[str], folder: Path) -> Iterator[str]:
    """Files among the words of a command, small enough for code or settings; absolute."""
    for word in command:
        for part in (word, word.rpartition("=")[2]):
            path = folder / os.path.expanduser(part)
            try:
                if part and path.is_file() and path.stat().st_size <= _LARGEST_BYTES:
                    yield os.path.abspath(path)
            except (OSError, ValueError):
                continue


def sources_of(command: Sequence[str], folder: Path, loaded: Sequence[str]) -> list[str]:
    """Files that make a command what it is: those that it names, and the code that it loaded."""
    return sorted({*files_named(command, folder), *loaded[:_LIMIT_FILES]})


def words_in(text: str) -> list[str]:
    """A word, or its flag's value, or a shell's words; a hidden or open file's name is empty."""
    words = re.split(r"[\s;&|()<>'\"`=]+", text)
    words = words if re.search(r"\s", text) else text.split("=")[-1:]
    is_name = re.compile(r"[^.$*?{}\[\]][^$*?{}\[\]]*").fullmatch
    return [word if is_name(Path(word).name) else "" for word in words]
