"""Ask a checkout of Megatron-LM for its word on arguments: `python -m ... ANSWER < request`.

Run by `autotune.engines.megatron.pretrain_gpt` in a process of its own, since it imports torch and
the checkout, and puts the host in CUDA's place: nothing is computed.
"""

import argparse
import contextlib
import importlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn

from autotune.trial.scripts import megatron_cpu

_DEFAULTS = {"tokenizer_type": "GPT2BPETokenizer"}
"""Defaults that pretrain_gpt.py hands on."""


class _UnknownError(Exception):
    """The parser takes no such argument."""


def main() -> None:
    """Write what the checkout's parser and its `validate_args` say of each command line."""
    request, answer = json.load(sys.stdin), Path(sys.argv[1])
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        found = _answer(request)
    answer.write_text(json.dumps(found), encoding="utf-8")


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    # What has to be set for tp and cp, the trials' ranks get where they need it.
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": str(request["world"]),
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    sys.path.insert(0, request["checkout"])
    megatron_cpu.install()
    megatron_cpu.prepare_checkout()
    arguments = importlib.import_module("megatron.training.arguments")
    parser: Any = argparse.ArgumentParser
    parser.error = _refuse
    refused = {}
    for number, words in enumerate(request["lines"]):
        sys.argv = ["pretrain_gpt.py", *words]
        try:
            with warnings.catch_warnings(action="ignore"):
                arguments.validate_args(arguments.parse_args(_extra()), dict(_DEFAULTS))
        except _UnknownError as error:
            return {"error": str(error), "hint": request["hint"]}
        except Exception as error:  # it asserts, raises, and looks things up: all are its word
            refused[number] = _one_line(error)
    return {"refused": refused}


def _extra() -> Any:
    """What pretrain_gpt.py adds to the parser, where the packages for it are installed."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("megatron.post_training.arguments").add_modelopt_args
    return None


def _refuse(_: argparse.ArgumentParser, message: str) -> NoReturn:
    raise _UnknownError(message)


def _one_line(error: Exception) -> str:
    """The message, or the line that says what has to hold."""
    if text := " ".join(str(error).split()):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {frames[-1].line}"


if __name__ == "__main__":
    main()
