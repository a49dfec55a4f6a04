"""Ask Megatron in a process of its own, with the host in CUDA's place: `... ANSWER < request`.

Run by `probed` and `pretrain_gpt` beside it. Either a checkout's parser and `validate_args` say
what they make of command lines, or single ranks of a layout train for a step, each alone. The
other ranks are not there: torch's fake process group sends nothing, and what would be received
are random numbers. Losses mean nothing. What a rank allocates is what it would allocate among
the others.
"""

import argparse
import contextlib
import functools
import importlib
import importlib.util
import json
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from autotune.trial.engines import megatron as driver
from autotune.trial.memory import CpuMeter
from autotune.trial.scripts import megatron_cpu, train_megatron

_DEFAULTS = {"tokenizer_type": "GPT2BPETokenizer"}
"""Defaults that pretrain_gpt.py hands on."""


class _UnknownError(Exception):
    """The parser takes no such argument."""


class _SeenError(BaseException):
    """The step is done; the rest of a checkout's script need not run."""


def main() -> None:
    """Write what was asked for."""
    request, answer = json.load(sys.stdin), Path(sys.argv[1])
    if "lines" in request:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            found = _parsed(request)
    else:
        found = _trained(request, answer)
    answer.write_text(json.dumps(found), encoding="utf-8")


def _as_rank(rank: int, world: int) -> None:
    # What has to be set for tp and cp, the trials' ranks get where they need it.
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": "0",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }


# ---------------------------------------------------------------- command lines


def _parsed(request: dict[str, Any]) -> dict[str, Any]:
    """What the checkout's parser and its `validate_args` say of each command line."""
    _as_rank(0, request["world"])
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


# ---------------------------------------------------------------- single ranks


def _trained(request: dict[str, Any], answer: Path) -> dict[str, Any]:
    """What each rank allocated."""
    script = request["script"]
    if script:
        sys.path.insert(0, str(Path(script).parent))
        megatron_cpu.install()
        megatron_cpu.mend_megatron()
    else:
        driver.load_code("cpu")
    found = []
    for rank in request["ranks"]:
        answered = answer.with_suffix(f".{rank}")
        # Forked: what is imported by now need not be again, and each has its own memory.
        if (child := os.fork()) == 0:
            os._exit(_in_child(request, rank, answered))
        os.waitpid(child, 0)
        if not answered.exists():
            error = f"rank {rank}: it was killed: there may be too little memory for it"
            found = [{"error": error}]
            break
        found.append(json.loads(answered.read_text(encoding="utf-8")))
        if "error" in found[-1]:
            break
    failed = found[-1].get("error")
    hint = "try a smaller model, fewer tokens or more ranks: it has to train on this machine's CPU"
    return {"error": failed, "hint": hint} if failed else {"ranks": found}


def _in_child(request: dict[str, Any], rank: int, answer: Path) -> int:
    _as_rank(rank, request["world"])
    train = _of_checkout if request["script"] else _of_built_in
    torch.empty = _with_numbers(torch.empty)
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            found = {"rank": rank, **train(request, rank)}
    except BaseException as error:  # whatever Megatron ends with is its word
        traceback.print_exc()
        text = " ".join(str(error).split()) or type(error).__name__
        found = {"error": f"rank {rank}: {text[:300]}"}
    answer.write_text(json.dumps(found), encoding="utf-8")
    return 0


def _with_numbers(make: Any) -> Any:
    """Let tensors that something is received into hold what a router of experts can sort."""

    @functools.wraps(make)
    def filled(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        with torch.no_grad():
            return made.normal_() if made.is_floating_point() else made

    return filled


def _of_built_in(request: dict[str, Any], rank: int) -> dict[str, Any]:
    arguments = request["arguments"]
    dist.init_process_group(
        backend="fake", store=FakeStore(), rank=rank, world_size=request["world"]
    )
    settings = train_megatron.settings_of(request["settings"], arguments)
    train_megatron.draw_weights = _leave  # it draws whole tensors, more than a rank's part
    meter = _started()
    training = train_megatron.make_training(arguments, settings)
    _keep_finite(training)
    next(train_megatron.steps(training))
    return _figures(training, meter)


def _of_checkout(request: dict[str, Any], rank: int) -> dict[str, Any]:
    from autotune.trial.engines import megatron_checkout  # it imports Megatron

    script, meters, found = request["script"], [], {}

    def before() -> None:
        # A middle stage has no samples, and is told by the first rank whether there are any.
        sys.modules["megatron.training"].get_args().do_train = True
        train_megatron.draw_weights = _leave
        meters.append(_started())

    def after(training: Any) -> None:
        _keep_finite(training)
        step = training.step

        def seen(*args: Any, **kwargs: Any) -> None:
            step(*args, **kwargs)
            found.update(_figures(training, meters[0]))
            raise _SeenError

        training.step = seen

    megatron_checkout.watch_imports(before, after)
    sys.argv = [script, *request["words"]]
    with contextlib.suppress(_SeenError):
        runpy.run_path(script, run_name="__main__")
    return found


def _leave(*_: Any, **__: Any) -> None:
    """Leave the weights as Megatron drew them."""


def _started() -> CpuMeter:
    meter = CpuMeter()
    meter.start(None)
    return meter


def _keep_finite(training: Any) -> None:
    """Let the optimizer take its step and make its states: what was received is no gradient."""
    update: Callable[[], Any] = training.update

    def finite_update() -> Any:
        for chunk in training.chunks:
            chunk.zero_grad_buffer()
        return update()

    training.update = finite_update


def _figures(training: Any, meter: CpuMeter) -> dict[str, Any]:
    from autotune.trial import megatron_readback  # after Megatron: it may be a checkout's

    return {
        **megatron_readback.states(training),
        "peak_memory_bytes": meter.read()["peak"],
        "n_layers": sum(
            len(train_megatron.unwrapped(chunk).decoder.layers) for chunk in training.chunks
        ),
    }


if __name__ == "__main__":
    main()
