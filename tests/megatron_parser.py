"""Asks a checkout of Megatron-LM what it makes of command lines: its parser, checks and config.

python -m tests.megatron_parser CHECKOUT WORLD < LINES

LINES is JSON, a list of lists of words, or of objects with `words`, `variables` and `world`; so is
the answer, a line of JSON: for each of them the arguments that come out of it, or what refused
it: the parser, the checks of arguments, the model's configuration, the count of micro-batches or
the groups of ranks. It runs without a GPU: what the checks ask of one, its compute capability, is
answered for an H100, and so is Transformer Engine's release.
"""

import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.captured import captured
from tests.record_megatron_flags import import_arguments

REFUSED = "refused"
"""Key of an answer that says why there are no arguments."""
_WITHOUT_TRANSFORMER_ENGINE = ("--no-rope-fusion",)
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_PLAIN = (bool, int, float, str, list, type(None))


def validated(
    checkout: Path, lines: Sequence[Sequence[str] | Mapping[str, Any]], *, world: int
) -> list[dict[str, Any]]:
    """The arguments with which Megatron trains, by name, for each command line."""
    done = captured(
        [sys.executable, "-m", "tests.megatron_parser", str(checkout), str(world)],
        input=json.dumps([line if isinstance(line, Mapping) else list(line) for line in lines]),
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(checkout: str, world: str) -> None:
    """Parse and check, in the process that imports the checkout."""
    os.environ.update(RANK="0", WORLD_SIZE=world, LOCAL_RANK="0", CUDA_DEVICE_MAX_CONNECTIONS="1")
    arguments = import_arguments(checkout)
    import torch
    from megatron.core.optimizer import optimizer_config
    from megatron.core.transformer import transformer_config

    hopper = SimpleNamespace(major=9, minor=0, name="NVIDIA H100 80GB HBM3")
    torch.cuda.get_device_properties = lambda *_: hopper
    torch.cuda.get_device_capability = lambda *_: (hopper.major, hopper.minor)
    torch.cuda.device_count = lambda: 8
    for module in (arguments, transformer_config, optimizer_config):
        if hasattr(module, "is_te_min_version"):
            module.is_te_min_version = lambda *_, **__: True
    answers = []
    for line in json.load(sys.stdin):
        told = line if isinstance(line, dict) else {"words": line}
        os.environ["WORLD_SIZE"] = str(told.get("world", world))
        os.environ.pop(_CONNECTIONS, None)
        os.environ.update(told.get("variables", {_CONNECTIONS: "1"}))
        answers.append(_answer(arguments, told["words"]))
    print(json.dumps(answers, default=str))


def _answer(arguments: Any, words: list[str]) -> dict[str, Any]:
    sys.argv = ["pretrain_gpt.py", *words, *_WITHOUT_TRANSFORMER_ENGINE]
    try:
        args = arguments.parse_args()
        arguments.validate_args(args)
        arguments.core_transformer_config_from_args(args)
        _start(args)
    except (Exception, SystemExit) as error:
        return {REFUSED: f"{type(error).__name__}: {error or _where(error)}"}
    return {name: value for name, value in vars(args).items() if isinstance(value, _PLAIN)}


def _where(error: BaseException) -> str:
    """The line that raised an error without words."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.name}: {frame.line}"


def _start(args: Any) -> None:
    """What comes after the checks of arguments: micro-batches, and the groups of ranks."""
    import torch
    from megatron.core import num_microbatches_calculator, parallel_state
    from megatron.core.optimizer.optimizer_config import OptimizerConfig
    from torch.testing._internal.distributed.fake_pg import FakeStore

    num_microbatches_calculator.destroy_num_microbatches_calculator()
    num_microbatches_calculator.init_num_microbatches_calculator(
        args.rank,
        args.rampup_batch_size,
        args.global_batch_size,
        args.micro_batch_size,
        args.data_parallel_size,
        args.decrease_batch_size_if_needed,
    )
    named = {
        field.name: vars(args)[field.name]
        for field in fields(OptimizerConfig)
        if field.name in vars(args)
    }
    try:
        OptimizerConfig(**named)
    except RuntimeError as error:
        if "TransformerEngine" not in str(error):
            raise
    torch.distributed.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=args.world_size
    )
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=args.tensor_model_parallel_size,
            pipeline_model_parallel_size=args.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=args.virtual_pipeline_model_parallel_size,
            context_parallel_size=args.context_parallel_size,
            expert_model_parallel_size=args.expert_model_parallel_size,
            expert_tensor_parallel_size=args.expert_tensor_parallel_size,
            order="tp-cp-ep-pp-dp" if args.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
            create_gloo_process_groups=False,
        )
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
