"""Asks a checkout of Megatron-LM what it makes of command lines: its parser, checks and config.

python -m tests.megatron_parser CHECKOUT WORLD < LINES

LINES is JSON, a list of lists of words; so is the answer, a line of JSON: for each of them the
arguments that come out of it, or what refused it. It runs without a GPU: what the checks ask of
one, its compute capability, is answered for an H100.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.record_megatron_flags import import_arguments

REFUSED = "refused"
"""Key of an answer that says why there are no arguments."""
_WITHOUT_TRANSFORMER_ENGINE = ("--no-rope-fusion",)
_PLAIN = (bool, int, float, str, list, type(None))


def validated(
    checkout: Path, lines: Sequence[Sequence[str]], *, world: int
) -> list[dict[str, Any]]:
    """The arguments with which Megatron trains, by name, for each command line."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.megatron_parser", str(checkout), str(world)],
        input=json.dumps([list(words) for words in lines]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(checkout: str, world: str) -> None:
    """Parse and check, in the process that imports the checkout."""
    os.environ.update(RANK="0", WORLD_SIZE=world, LOCAL_RANK="0", CUDA_DEVICE_MAX_CONNECTIONS="1")
    arguments = import_arguments(checkout)
    import torch

    hopper = SimpleNamespace(major=9, minor=0, name="NVIDIA H100 80GB HBM3")
    torch.cuda.get_device_properties = lambda *_: hopper
    torch.cuda.get_device_capability = lambda *_: (hopper.major, hopper.minor)
    torch.cuda.device_count = lambda: 8
    print(json.dumps([_answer(arguments, words) for words in json.load(sys.stdin)], default=str))


def _answer(arguments: Any, words: list[str]) -> dict[str, Any]:
    sys.argv = ["pretrain_gpt.py", *words, *_WITHOUT_TRANSFORMER_ENGINE]
    try:
        args = arguments.parse_args()
        arguments.validate_args(args)
        arguments.core_transformer_config_from_args(args)
    except (Exception, SystemExit) as error:
        return {REFUSED: f"{type(error).__name__}: {error}"}
    return {name: value for name, value in vars(args).items() if isinstance(value, _PLAIN)}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
