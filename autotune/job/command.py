"""A user's own command line: whose Python it runs in, and which files it names."""

import itertools
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
_LAUNCHER = re.compile(
    r"(?:.*/)?(?:i?python[\d.]*|torchrun|deepspeed|accelerate|uv)"
    r"|torch\.distributed\.(?:run|launch)|deepspeed\.launcher\.runner|accelerate\.commands\.launch"
)
"""What starts a script, or with `-m` a module."""
_PROGRAM = re.compile(r"\bcli\b|^(?:axolotl|llamafactory|swift|trl)\b")
"""A module that says less than the file of settings behind it."""
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


def name_of(command: Sequence[str]) -> str:
    """A word for a command or a shell's text: its script, module, file of settings or program."""
    words, is_started = [part for word in command for part in _words_in(word)], False
    for at, (before, word) in enumerate(itertools.pairwise(["", *words])):
        is_started &= not before.startswith((";", "&", "|"))
        is_started |= bool(_LAUNCHER.fullmatch(before))
        if scripts := _stems([word], ".py"):
            return scripts[0]
        if is_started and before in ("-m", "--module") and not _LAUNCHER.fullmatch(word):
            settings = _stems(words[at:], ".yaml", ".yml") if _PROGRAM.search(word) else []
            return [*settings, *re.sub(r"(\.(cli|__main__))+$", "", word).split(".")[-1:]][0]
    return next(iter(_stems(words, ".yaml", ".yml")), Path(command[0]).name.lstrip("."))


def _words_in(text: str) -> list[str]:
    """A word, or the value of its flag; of a shell's text its words, and what ends a command."""
    is_text = re.search(r"\s", text)
    return re.findall(r"[;&|]+|[^\s;&|()<>'\"`=]+", text) if is_text else text.split("=")[-1:]


def _stems(words: Sequence[str], *suffixes: str) -> list[str]:
    """Names of files with such an end, of which a shell leaves nothing open."""
    stems = [Path(word).stem for word in words if word.endswith(suffixes)]
    return [stem for stem in stems if re.fullmatch(r"\w[^$*?{}\[\]]*", stem)]
