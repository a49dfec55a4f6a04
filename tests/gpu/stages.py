"""What one GPU is asked, in order of worth, and the same on one CPU rank for the rehearsal."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
AUTOTUNE = ("-m", "autotune")
HERE = Path(__file__).parent
EXAMPLE = REPOSITORY / "examples" / "trainer"
_NO_TESTS = 5
"""Exit code of pytest where it has deselected all, as without a GPU."""
LISTED = "listed.csv"
"""Table of the listed candidates, in the folder where stages work."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One question, and the command that answers it."""

    name: str
    answers: str
    """What it answers, in a sentence."""
    command: tuple[str, ...]
    """Arguments of Python; `{work}` is the folder in which stages work."""
    least_s: float
    """Time below which there is no use in beginning."""
    leaves: str
    """What is there if it is cut off."""
    answering_codes: tuple[int, ...] = (0,)
    """Exit codes that answer the question."""


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Sizes of the stages' jobs on one kind of device."""

    small: tuple[str, ...]
    full: tuple[str, ...]
    lora: tuple[str, ...]
    long: tuple[str, ...]
    experts: tuple[str, ...]
    listed: Path
    script: tuple[str, ...]
    compiled: tuple[str, ...]
    """A job for knobs that compile or bring kernels."""
    least_s: float
    """Seconds in which a cold trial of the small job ends."""


def _job(model: str, seq_len: int, batch: int, *more: str) -> tuple[str, ...]:
    where = ("--world", "1", "--seq-len", str(seq_len), "--global-batch", str(batch))
    return ("--model", model, *where, *more)


def _script(*more: str) -> tuple[str, ...]:
    launch = ("torchrun", "--nproc-per-node", "1", str(EXAMPLE / "train.py"))
    settings = ("--deepspeed", str(EXAMPLE / "ds_config.json"), "--output_dir", "{work}/out")
    return (*launch, *settings, *more)


_EXPERTS = str(HERE / "small-mixtral.json")
_KNOBS = str(HERE / "one_gpu_forked.yaml")
GPU = Jobs(
    small=_job("gpt2", 512, 8, "--space", _KNOBS),
    full=_job("llama-3.2-1b", 2048, 8, "--space", _KNOBS),
    lora=_job("llama-3.2-3b", 4096, 4, "--space", _KNOBS, "--lora-rank", "16"),
    long=_job("llama-3.2-1b", 16384, 2, "--space", _KNOBS, "--memory-limit", "40GiB"),
    experts=_job(_EXPERTS, 1024, 8),
    listed=HERE / "listed_gpu.yaml",
    script=_script("--bf16", "--per_device_train_batch_size", "64"),
    compiled=_job("llama-3.2-1b", 2048, 8, "--space", str(HERE / "accelerator_knobs.yaml")),
    least_s=30.0,
)
_FP32 = ("--precision", "fp32", "--space", "smoke")
REHEARSAL = Jobs(
    small=_job("tiny-llama", 64, 4, *_FP32),
    full=_job("tiny-llama", 128, 4, *_FP32),
    lora=_job("tiny-llama", 128, 4, *_FP32, "--lora-rank", "4"),
    long=_job("tiny-llama", 512, 2, *_FP32, "--memory-limit", "2GiB"),
    experts=_job("tiny-mixtral", 64, 4, "--precision", "fp32"),
    listed=HERE / "listed_rehearsal.yaml",
    script=_script("--per_device_train_batch_size", "4"),
    compiled=_job("tiny-llama", 64, 4, *_FP32),
    least_s=5.0,
)


def stages_of(jobs: Jobs) -> Sequence[Stage]:
    """The stages, in order of worth."""

    def search(
        name: str, answers: str, *flags: str, n_trials: int = 3, command: tuple[str, ...] = ()
    ) -> Stage:
        return Stage(
            name=name,
            answers=answers,
            command=_search(name, *flags, n_trials=n_trials, command=command),
            least_s=4 * jobs.least_s,
            leaves="the trials that ended, and the rounds of the comparison so far",
        )

    megatron = ("--engine", "megatron")
    return (
        Stage(
            name="machine",
            answers="what is there",
            command=(*AUTOTUNE, "doctor", "--json"),
            least_s=10,
            leaves="nothing",
            answering_codes=(0, 4),
        ),
        search(
            "small-cold",
            "a small job searched by cold trials, and its gain with an interval",
            *(*jobs.small, "--start", "cold"),
        ),
        search("small-warm", "the same by warm trials: what a warm start saves", *jobs.small),
        search(
            "full",
            "a gain where every weight is trained, with its interval",
            *(*jobs.full, "--no-diagnose"),
        ),
        search("lora", "the same where adapters are trained", *jobs.lora, "--no-diagnose"),
        search(
            "long", "the same of long samples under a cap of memory", *jobs.long, "--no-diagnose"
        ),
        Stage(
            name="warm",
            answers="does a forked rank train as a cold one does?",
            command=("-m", "tests.gpu.warm_agreement", "{work}/small-cold", "{work}/small-warm"),
            least_s=5,
            leaves="nothing",
        ),
        Stage(
            name="listed",
            answers="predictions of listed configurations beside their measurements",
            command=(
                *("benchmarks/listed_candidates.py", str(jobs.listed)),
                *("--out", f"{{work}}/{LISTED}"),
            ),
            least_s=2 * jobs.least_s,
            leaves="a row for each configuration that ended",
        ),
        Stage(
            name="soak",
            answers="the best trains on, and resumes from a checkpoint",
            command=(
                *(*AUTOTUNE, "soak", "--results", "{work}", "--study", "full"),
                *("--minutes", "1", "--json"),
            ),
            least_s=60 + 3 * jobs.least_s,
            leaves="nothing",
        ),
        search(
            "megatron",
            "Megatron's engine: a gain with its interval",
            *(*_without_space(jobs.small), *megatron),
        ),
        search(
            "experts-deepspeed",
            "a small mixture of experts by DeepSpeed",
            *(*jobs.experts, "--space", "smoke"),
            n_trials=1,
        ),
        search("experts-megatron", "the same by Megatron", *jobs.experts, *megatron, n_trials=1),
        search(
            "script",
            "a training script of Hugging Face's Trainer, searched unchanged",
            command=jobs.script,
            n_trials=2,
        ),
        search(
            "compiled",
            "DeepCompile, flash attention and other knobs that bring kernels of their own",
            *(*jobs.compiled, "--sampler", "grid"),
            n_trials=6,
        ),
        Stage(
            name="tests",
            answers="the tests that need a GPU: its meter of memory, a cap, a card that is freed",
            command=("-m", "pytest", "-q", "-m", "gpu", *_gpu_tests()),
            least_s=2 * jobs.least_s,
            leaves="nothing",
            answering_codes=(0, _NO_TESTS),
        ),
    )


def _gpu_tests() -> Iterator[str]:
    """The files that hold tests for a GPU: to collect all the others takes half a minute."""
    for file in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        if "pytest.mark.gpu" in file.read_text(encoding="utf-8"):
            yield str(file.relative_to(REPOSITORY))


def _search(
    study: str, *flags: str, n_trials: int = 3, command: tuple[str, ...] = ()
) -> tuple[str, ...]:
    record = ("--yes", "--results", "{work}", "--study", study, "--no-knowledge", "--json")
    extent = ("--trials", str(n_trials), "--compare", "best")
    return (*AUTOTUNE, "search", *record, *extent, *flags, *(("--", *command) if command else ()))


def _without_space(flags: tuple[str, ...]) -> tuple[str, ...]:
    at = flags.index("--space")
    return (*flags[:at], *flags[at + 2 :])
