"""Ask a checkout of Megatron-LM in a process of its own: `... ANSWER < request`.

Run by `pretrain_gpt` beside it: the checkout's parser and `validate_args`, with the host in CUDA's
place, say what they make of command lines.
"""

import argparse
import contextlib
import importlib
import importlib.util
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
    """Write what was asked for."""
    request, answer = json.load(sys.stdin), Path(sys.argv[1])
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        found = _parsed(request)
    answer.write_text(json.dumps(found), encoding="utf-8")


def _parsed(request: dict[str, Any]) -> dict[str, Any]:
    """What the checkout's parser and its `validate_args` say of each command line."""
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": str(request["world"]),
        "LOCAL_RANK": "0",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # has to be set for tp and cp
    }
    sys.path.insert(0, request["checkout"])
    megatron_cpu.install()
    megatron_cpu.prepare_checkout()
    if importlib.util.find_spec("transformer_engine") is None:
        utils: Any = importlib.import_module("megatron.core.utils")
        utils._te_version = utils.PkgVersion("99")  # as on the GPUs that the launch is for
    arguments = importlib.import_module("megatron.training.arguments")
    parser: Any = argparse.ArgumentParser
    parser.error = _refuse
    extra = None  # what pretrain_gpt.py adds to the parser, where its packages are installed
    with contextlib.suppress(ImportError):
        extra = importlib.import_module("megatron.post_training.arguments").add_modelopt_args
    refused = {}
    for number, words in enumerate(request["lines"]):
        sys.argv = ["pretrain_gpt.py", *words]
        try:
            with warnings.catch_warnings(action="ignore"):
                arguments.validate_args(arguments.parse_args(extra), dict(_DEFAULTS))
        except _UnknownError as error:
            return {"error": str(error), "hint": request["hint"]}
        except Exception as error:  # it asserts, raises, and looks things up: all are its word
            frames = traceback.extract_tb(error.__traceback__)
            line = f"{type(error).__name__}: {frames[-1].line}"  # that says what has to hold
            refused[number] = " ".join(str(error).split()) or line
    return {"refused": refused}


def _refuse(_: argparse.ArgumentParser, message: str) -> NoReturn:
    raise _UnknownError(message)


if __name__ == "__main__":
    main()
