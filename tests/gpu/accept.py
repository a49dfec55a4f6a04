"""The first minutes on a GPU, in stages in order of worth: `python -m tests.gpu.accept`.

Each stage is a command of this repository and leaves its output, its seconds and its exit code in
the folder of results. Stages that are done are not run again; a stage that does not fit into the
time that is left is not begun, and one that exceeds it is interrupted as by Ctrl-C. The exit code
is 1 if a stage failed, 3 if some are left to do, else 0.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "results" / "recorded" / "gpu"
GRACE_S = 30.0
"""Time that an interrupted stage gets to write down what it has."""
AUTOTUNE = ("-m", "autotune")


@dataclass(frozen=True)
class Stage:
    """One question to the GPU, and the command that answers it."""

    name: str
    says: str
    command: tuple[str, ...]
    """Arguments of Python; `{results}` is the folder of results."""
    least_s: float
    """Time below which there is no use in beginning."""
    wanted: tuple[int, ...] = (0,)
    """Exit codes that answer the question."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What came of a stage."""

    name: str
    command: str
    code: int
    seconds: float
    is_answered: bool


def _search(study: str, *flags: str) -> tuple[str, ...]:
    record = ("--yes", "--results", "{results}", "--study", study)
    return (*AUTOTUNE, "search", *record, "--no-knowledge", *flags)


_SMALL = ("--model", "gpt2", "--seq-len", "512", "--global-batch", "8", "--world", "1")
_LARGE = ("--model", "llama-3.2-1b", "--seq-len", "2048", "--global-batch", "32", "--world", "1")
_ONE_GPU = str(REPOSITORY / "benchmarks" / "one_gpu.yaml")
_KNOBS = str(Path(__file__).with_name("accelerator_knobs.yaml"))


def _gpu_tests() -> list[str]:
    """The files that hold tests for a GPU: to collect all the others takes half a minute."""
    files = sorted((REPOSITORY / "tests").rglob("test_*.py"))
    marked = [file for file in files if "pytest.mark.gpu" in file.read_text(encoding="utf-8")]
    return [str(file.relative_to(REPOSITORY)) for file in marked]


STAGES: Sequence[Stage] = (
    Stage("doctor", "what is there", (*AUTOTUNE, "doctor", "--json"), 20, (0, 4)),
    Stage("build", "the kernels compile", (*AUTOTUNE, "doctor", "--build"), 60, (0, 4)),
    Stage(
        "probe",
        "speed of the device",
        (*AUTOTUNE, "probe", "--quick", "--out", "{results}/hardware.yaml", "--json"),
        40,
    ),
    Stage(
        "trial",
        "one search of one trial, compared and guarded",
        _search("trial", *_SMALL, "--space", "smoke", "--trials", "1", "--json"),
        60,
    ),
    Stage(
        "meter-and-cap",
        "the meter, out of memory under a cap, a card that is free again",
        ("-m", "pytest", "-q", "-m", "gpu", *_gpu_tests()),
        60,
    ),
    Stage(
        "listed",
        "each way of sharding and offloading, a cap, a model of 1B: measured beside predicted",
        (
            *("benchmarks/listed_candidates.py", "benchmarks/listed_candidates_gpu.yaml"),
            *("--out", "{results}/listed-candidates.csv", "--minutes", "9"),
        ),
        60,
    ),
    Stage(
        "zero-and-offload",
        "ZeRO 0 to 3, and states on the host",
        _search(
            *("zero-and-offload", *_SMALL, "--space", "zero_offload"),
            *("--sampler", "grid", "--trials", "8", "--guard-steps", "0", "--json"),
        ),
        90,
    ),
    Stage(
        "knobs",
        "each knob that acts on a GPU alone",
        _search(
            *("knobs", *_SMALL, "--space", _KNOBS),
            *("--sampler", "grid", "--trials", "12", "--guard-steps", "0", "--json"),
        ),
        120,
    ),
    Stage(
        "1b",
        "a model of 1B with the whole card",
        _search("1b", *_LARGE, "--space", _ONE_GPU, "--trials", "6", "--json"),
        150,
    ),
    Stage(
        "script",
        "a command of a user's own",
        (
            *(*AUTOTUNE, "diagnose"),
            *("--results", "{results}", "--study", "script", "--json", "--"),
            *("torchrun", "--nproc-per-node", "1", "examples/trainer/train.py", "--bf16"),
            *("--deepspeed", "examples/trainer/ds_config.json", "--output_dir", "{results}/out"),
            *("--per_device_train_batch_size", "64"),
        ),
        40,
    ),
    Stage(
        "megatron",
        "Megatron from its wheel alone",
        _search("megatron", *_SMALL, "--engine", "megatron", "--trials", "2", "--json"),
        90,
    ),
    Stage(
        "1b-capped",
        "the same with a cap that makes the choice hard",
        _search(
            *("1b-capped", *_LARGE, "--space", "zero_offload", "--trials", "12"),
            *("--memory-limit", "24GiB", "--json"),
        ),
        150,
    ),
    Stage(
        "predicted",
        "predictions against what was measured",
        (*AUTOTUNE, "report", "--results", "{results}", "--study", "1b", "--json"),
        20,
    ),
    Stage(
        "soak",
        "the best for two minutes, resumed from a checkpoint",
        (
            *(*AUTOTUNE, "soak", "--results", "{results}", "--study", "1b"),
            *("--minutes", "2", "--json"),
        ),
        180,
    ),
    Stage(
        "plain-agreement",
        "a trial's figure against plain training",
        ("benchmarks/plain_agreement.py", "--rounds", "2", "--json"),
        180,
        (0, 3),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left to do, within the time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, default=25.0, help="for all stages together")
    parser.add_argument("--stage", action="append", help="only this one; may be repeated")
    wish = parser.parse_args(arguments)
    known = [stage.name for stage in STAGES]
    if unknown := sorted(set(wish.stage or ()) - set(known)):
        parser.error(f"--stage {unknown[0]}: there are {', '.join(known)}")
    chosen = [stage for stage in STAGES if not wish.stage or stage.name in wish.stage]
    return run(chosen, wish.results.resolve(), wish.minutes * 60)


def run(stages: Iterable[Stage], results: Path, limit_s: float) -> int:
    """Run stages in turn; those that are done are passed over."""
    results.mkdir(parents=True, exist_ok=True)
    ends_s = time.monotonic() + limit_s
    left, failed = [], []
    for stage in stages:
        record = results / f"{stage.name}.stage.json"
        if record.is_file() and json.loads(record.read_text(encoding="utf-8"))["is_answered"]:
            print(f"{stage.name}: done already", flush=True)
            continue
        left_s = ends_s - time.monotonic()
        if left_s < stage.least_s:
            print(f"{stage.name}: left for later, {max(0.0, left_s):.0f} s are too few")
            left.append(stage.name)
            continue
        print(f"{stage.name}: {stage.says} ...", flush=True)
        ran = _run(stage, results, left_s)
        record.write_text(json.dumps(asdict(ran), indent=1) + "\n", encoding="utf-8")
        word = "answered" if ran.is_answered else f"FAILED with exit code {ran.code}"
        print(f"{stage.name}: {word} after {ran.seconds:.0f} s", flush=True)
        if not ran.is_answered:
            failed.append(stage.name)
            print(_end_of(results / f"{stage.name}.log"), flush=True)
    if failed:
        return 1
    return 3 if left else 0


def _run(stage: Stage, results: Path, left_s: float) -> Ran:
    arguments = [each.replace("{results}", str(results)) for each in stage.command]
    started_s = time.monotonic()
    with (
        (results / f"{stage.name}.out").open("wb") as out,
        (results / f"{stage.name}.log").open("wb") as log,
    ):
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            start_new_session=True,
        )
        code = _ended(process, left_s)
    return Ran(
        name=stage.name,
        command=" ".join(["python", *stage.command]),
        code=code,
        seconds=time.monotonic() - started_s,
        is_answered=code in stage.wanted,
    )


def _ended(process: subprocess.Popen[bytes], left_s: float) -> int:
    """The exit code; one that takes too long is interrupted, and then killed with its children."""
    try:
        return process.wait(timeout=left_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])


if __name__ == "__main__":
    sys.exit(main())
