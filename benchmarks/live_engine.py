"""Runs configurations with the installed DeepSpeed, Trainer and accelerate; says what happened.

    python benchmarks/live_engine.py JOBS.json ANSWERS.jsonl [EXTENSION ...]

Imports everything once, then forks the ranks of each job: two ranks at once, each in a process of
its own that starts as if nothing had run before, on the CPU. A job is a dictionary of
`check_truth.job_of`. The extensions named are compiled first where they are not yet; a job that
needs another one is not compared.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

AT_ONCE = 2
LIMIT_S = 60.0
MEMORY_BYTES = 6 * 2**30
STEPS = 2
MOST_MICRO_BATCHES = 4
"""Of one step; beyond, the last of them is made the boundary."""
ANSWER = "answer-{}.json"
LOG = "log-{}.txt"
NOT_BUILT = "this extension is not built:"
LACKING = (NOT_BUILT, "failed to build/load")
"""The second is what some of DeepSpeed's optimizers make of the first."""
NO_MEMORY = ("can't allocate memory", "MemoryError", "bad_alloc", "not enough memory")

Job = Mapping[str, Any]


@dataclass
class Running:
    """A job whose ranks run."""

    job: Job
    folder: Path
    port: int
    started: float
    ranks: dict[int, int] = field(default_factory=dict)
    """Process -> rank, of those that have not ended."""
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)


def main(jobs_file: str, answers_file: str, *extensions: str) -> None:
    """Answer every job, in the order in which they end."""
    waiting = list(reversed(json.loads(Path(jobs_file).read_text())))
    total, done = len(waiting), 0
    prepare(extensions)
    running: list[Running] = []
    with Path(answers_file).open("a") as answers, contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="check-truth-")))
        while waiting or running:
            used = sum(one.job["world"] for one in running)
            while waiting and used + waiting[-1]["world"] <= AT_ONCE:
                job = waiting.pop()
                used += job["world"]
                running.append(start(job, scratch / str(job["id"])))
            for one in list(running):
                if (answer := look(one)) is None:
                    continue
                running.remove(one)
                done += 1
                answers.write(json.dumps({"id": one.job["id"], **answer}) + "\n")
                answers.flush()
                if done % 100 == 0:
                    print(f"{done} of {total} tried", file=sys.stderr, flush=True)
            time.sleep(0.005)


def prepare(extensions: Iterable[str]) -> None:
    """Import and load what every rank needs."""
    import accelerate
    import deepspeed
    import torch
    import transformers
    from accelerate.commands import launch
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops import adam, op_builder
    from deepspeed.utils import logger
    from torch.utils import cpp_extension
    from transformers import HfArgumentParser, Trainer, TrainingArguments, training_args

    from autotune.trial.prebuilt import NEEDED, load_as_built, load_now, reuse_cpu_info

    logger.setLevel("ERROR")
    reuse_cpu_info()
    for name in extensions:
        get_accelerator().create_op_builder(name).load()
    cpp_extension.load = not_built
    load_as_built()
    load_now(NEEDED["cpu"])
    # Facts of the device, which the file does not state: many CPUs do no fp16 as far as DeepSpeed
    # knows, and Trainer asks CUDA for bf16. Torch computes both.
    get_accelerator().is_fp16_supported = lambda: True
    training_args.is_torch_bf16_gpu_available = lambda: True
    torch.set_num_threads(1)
    # What every rank would otherwise import, compile and ask again.
    for module in (adam, op_builder, Trainer, launch.launch_command_parser()):
        dir(module)
    HfArgumentParser(TrainingArguments)
    # A faster way between ranks, with buffers in /dev/shm; it says nothing of a configuration.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    with torch.no_grad():  # a backward pass would start threads, which no fork takes along
        make_model()(input_ids=torch.zeros((1, 4), dtype=torch.int64))
    print(
        f"DeepSpeed {deepspeed.__version__}, transformers {transformers.__version__}, "
        f"accelerate {accelerate.__version__}, torch {torch.__version__}",
        file=sys.stderr,
        flush=True,
    )


def not_built(name: str, *_: Any, **__: Any) -> Any:
    """A rank that compiled would be ended by its time limit, half way."""
    raise RuntimeError(f"{NOT_BUILT} {name}")


def start(job: Job, folder: Path) -> Running:
    """Fork the ranks of a job in a folder that holds its files."""
    folder.mkdir()
    for name, text in job["files"].items():
        (folder / name).write_text(text, encoding="utf-8")
    running = Running(job=job, folder=folder, port=free_port(), started=time.monotonic())
    for rank in range(job["world"]):
        process = os.fork()
        if process == 0:
            be_rank(running, rank)
        running.ranks[process] = rank
    return running


def be_rank(running: Running, rank: int) -> None:
    """Run a job as one of its ranks, write the answer, and end."""
    job, folder = running.job, running.folder
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        log = os.open(LOG.format(rank), os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(job["world"]),
            LOCAL_WORLD_SIZE=str(job["world"]),
            LOCAL_SIZE=str(job["world"]),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(running.port),
        )
        try:
            answer = {"error": None, "reads": CONSUMERS[job["consumer"]](job)}
        except BaseException as error:  # argparse ends the process
            text = str(error) or type(error).__name__
            answer = {"error": f"{type(error).__name__}: {text}"[:2000], "trace": places(error)}
        Path(ANSWER.format(rank)).write_text(json.dumps(answer, default=str))
    finally:
        os._exit(0)


def places(error: BaseException) -> list[str]:
    """The last places in the code that an exception came through."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return [f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in frames]


def look(running: Running) -> dict[str, Any] | None:
    """The answer of a job that has ended; one rank that raises ends the others."""
    for process, rank in list(running.ranks.items()):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            del running.ranks[process]
            running.answers[rank] = read_answer(running, rank, status)
    seconds = time.monotonic() - running.started
    failed = [one for one in running.answers.values() if one["error"] is not None]
    if running.ranks and not failed and seconds < LIMIT_S:
        return None
    for process in running.ranks:
        # Its own group, or none yet.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    if running.ranks and not failed:
        failed = [{"error": "hung", "log": tail(running, next(iter(running.ranks.values())))}]
    shutil.rmtree(running.folder, ignore_errors=True)
    answer = failed[0] if failed else running.answers[0]
    if answer["error"] and any(word in answer["error"] for word in NO_MEMORY):
        answer["error"] = f"memory: {answer['error']}"
    if answer["error"] and any(word in answer["error"] for word in LACKING):
        answer["error"] = f"not built: {answer['error']}"
    return {**answer, "seconds": round(seconds, 2)}


def read_answer(running: Running, rank: int, status: int) -> dict[str, Any]:
    path = running.folder / ANSWER.format(rank)
    try:
        answer: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {"error": f"died: wait status {status}", "log": tail(running, rank)}
    return answer


def tail(running: Running, rank: int) -> str:
    """The end of what a rank printed."""
    path = running.folder / LOG.format(rank)
    return path.read_text(errors="replace")[-1500:] if path.exists() else ""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


def make_model() -> Any:
    """A Llama of two layers, which every consumer knows."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=64,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            use_cache=False,
        )
    )


def by_deepspeed(job: Job) -> dict[str, Any]:
    """A script that calls `deepspeed.initialize` with the file."""
    import deepspeed
    import torch

    named = job["named"]
    model = make_model()
    parameters = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=parameters,
        optimizer=own_optimizer(parameters, named),
        config=named,
    )
    generator = torch.Generator().manual_seed(1)
    micro_batches = min(engine.gradient_accumulation_steps(), MOST_MICRO_BATCHES)
    is_cut = micro_batches < engine.gradient_accumulation_steps()
    for _ in range(STEPS):
        for index in range(micro_batches):
            if is_cut:
                engine.set_gradient_accumulation_boundary(index == micro_batches - 1)
            size = min(int(engine.train_micro_batch_size_per_gpu()), 2)
            ids = torch.randint(0, 64, (size, 8), generator=generator)
            engine.backward(engine(input_ids=ids, labels=ids).loss)
            engine.step()
    return read_back(engine)


def own_optimizer(parameters: list[Any], path: str) -> Any:
    """What a script builds for a file that names no optimizer; None where it names one."""
    import hjson  # as DeepSpeed reads it
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    try:
        config = hjson.loads(Path(path).read_text(encoding="utf-8-sig"))
        if not isinstance(config, dict):
            return None
    except ValueError:
        return None
    section = config.get("optimizer")
    if section is not None and not (isinstance(section, dict) and section.get("type") is None):
        return None
    zero = config.get("zero_optimization")
    offload = zero.get("offload_optimizer") if isinstance(zero, dict) else None
    is_offloaded = isinstance(offload, dict) and offload.get("device") in ("cpu", "nvme")
    is_offloaded |= isinstance(zero, dict) and bool(zero.get("cpu_offload"))
    kind = DeepSpeedCPUAdam if is_offloaded else torch.optim.AdamW
    return kind(parameters, lr=1e-3)


def by_trainer(job: Job) -> dict[str, Any]:
    """A training script of transformers' Trainer, with its arguments or its YAML file."""
    from transformers import HfArgumentParser, Trainer, TrainingArguments

    parser = HfArgumentParser(TrainingArguments)
    if job["named"].endswith(".yaml"):
        (arguments,) = parser.parse_yaml_file(job["named"])
    else:
        (arguments,) = parser.parse_args_into_dataclasses(args=list(job["arguments"]))
    trainer = Trainer(model=make_model(), args=arguments, train_dataset=data())
    trainer.train()
    engine = trainer.model_wrapped
    reads = read_back(engine)
    # Its own name for the rest of the process: what Trainer itself counts by.
    reads["per_device_train_batch_size"] = arguments.per_device_train_batch_size
    return reads


def data() -> list[dict[str, Any]]:
    import torch

    generator = torch.Generator().manual_seed(1)
    drawn = torch.randint(0, 64, (256, 8), generator=generator)
    return [{"input_ids": ids, "labels": ids} for ids in drawn]


def by_accelerate(job: Job) -> dict[str, Any]:
    """A script that prepares its objects, started as `accelerate launch` starts it."""
    import torch
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    line = ["--config_file", job["named"], "train.py"]
    arguments = launch_command_parser().parse_args(line)
    arguments, defaults, has_precision = _validate_launch_command(arguments)
    if not arguments.use_deepspeed or arguments.cpu:
        return {"deepspeed": False}
    fields = list(defaults.deepspeed_config)  # as launch_command does
    arguments.deepspeed_fields_from_accelerate_config = ",".join(
        [*fields, *(["mixed_precision"] if has_precision else [])]
    )
    _, environment = prepare_deepspeed_cmd_env(arguments)
    os.environ.update({name: str(value) for name, value in environment.items()})
    if int(arguments.num_processes) != job["world"]:
        raise ValueError(f"num_processes={arguments.num_processes} starts another world")

    from accelerate import Accelerator
    from accelerate.utils import DummyOptim, DummyScheduler

    accelerator = Accelerator()
    said = accelerator.state.deepspeed_plugin.deepspeed_config
    model = make_model()
    optimizer: Any
    if "optimizer" in said:
        optimizer = DummyOptim(model.parameters(), lr=1e-3, weight_decay=0.0)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    micro = said.get("train_micro_batch_size_per_gpu")
    size = micro if type(micro) is int and 0 < micro < 64 else 2
    loader = torch.utils.data.DataLoader(data(), batch_size=size)
    objects = [model, optimizer, loader]
    if "scheduler" in said:
        objects.append(DummyScheduler(optimizer, total_num_steps=10, warmup_num_steps=2))
    model, optimizer, loader, *_ = accelerator.prepare(*objects)
    accum = accelerator.gradient_accumulation_steps
    micro_batches = min(int(accum), MOST_MICRO_BATCHES)
    batches = iter(loader)
    for _ in range(STEPS * micro_batches):
        batch = next(batches)
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    return read_back(model)


def read_back(engine: Any) -> dict[str, Any]:
    """What the live engine says that it runs."""
    inner = engine.optimizer
    wrapped = getattr(engine, "basic_optimizer", None)
    group = next(iter(getattr(wrapped, "param_groups", [])), {})
    scheduler = getattr(engine, "lr_scheduler", None)
    return {
        "stage": engine.zero_optimization_stage(),
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "grad_accum": engine.gradient_accumulation_steps(),
        "train_batch_size": engine.train_batch_size(),
        "clipping": engine.gradient_clipping(),
        "dtype": str(next(engine.module.parameters()).dtype).removeprefix("torch."),
        "optimizer": type(wrapped).__name__,
        "scheduler": None if scheduler is None else type(scheduler).__name__,
        "optimizer_offload": bool(
            getattr(inner, "cpu_offload", False) or getattr(inner, "offload_optimizer", False)
        ),
        "param_offload": bool(getattr(inner, "offload_param", False)),
        "group": dict(plain_values(group)),
    }


def plain_values(group: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in group.items():
        if isinstance(value, (bool, int, float, str, tuple, list)) and name != "params":
            yield name, value


CONSUMERS: Mapping[str, Callable[[Job], dict[str, Any]]] = {
    "deepspeed": by_deepspeed,
    "trainer": by_trainer,
    "accelerate": by_accelerate,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
