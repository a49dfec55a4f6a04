"""The workload of a checkout of Megatron-LM: its own pretrain_gpt.py, unchanged."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

from autotune.base.child_process import ask
from autotune.base.errors import JobError
from autotune.contract import Workload
from autotune.engines.megatron.arguments import DECIDED
from autotune.engines.megatron.flags import null_vocab, release_of
from autotune.job.job import CHECKOUT_WORKLOAD, Job
from autotune.space.candidate import Candidate
from autotune.space.workload import Way, WorkloadPlugin

SCRIPT = "pretrain_gpt.py"
_DATA_FLAGS = {"--data-path", "--data-args-path", "--per-split-data-args-path"}
_ASKING_S = 180.0
"""Time for a checkout to be imported, and to check some hundred command lines."""


class PretrainGpt(WorkloadPlugin):
    """A trial runs the checkout's script with the candidate's arguments and mock data."""

    dialect = "megatron"
    applies: ClassVar[Mapping[str, Way]] = {}  # every knob is an argument, and the engine's own

    def workload(self, job: Job, candidate: Candidate) -> Workload:
        checkout = checkout_of(job)
        model = job.model_with(candidate.layers)
        return Workload(
            name=CHECKOUT_WORKLOAD,
            model=model.source,
            seq_len=job.seq_len,
            precision=candidate.precision(job.precision),
            seed=job.seed,
            script=str(checkout / SCRIPT),
            arguments=script_arguments(checkout, model.shape.vocab, user_words(job)),
            digest=digest_of(checkout),
        )


def checkout_of(job: Job) -> Path:
    """The checkout that a job names.

    Raises:
        JobError: It names none, or there is none.
    """
    checkout = job.megatron_path
    if checkout is None:
        raise JobError.of("engines.megatron.no_checkout", checkout_workload=CHECKOUT_WORKLOAD)
    if not (checkout / SCRIPT).is_file():
        raise JobError.of(
            "engines.megatron.checkout_without_script", checkout=checkout, script=SCRIPT
        )
    return checkout.absolute()


def check_arguments(
    checkout: Path, lines: Sequence[Sequence[str]], *, world: int
) -> Mapping[int, str]:
    """Ask the checkout's own parser and `validate_args` about some command lines.

    Args:
        checkout: Where the script is.
        lines: Words after the script's name.
        world: Ranks.

    Returns:
        Position of each line that `validate_args` refuses -> why.

    Raises:
        JobError: The parser knows no such argument, or the checkout cannot be asked.
    """
    found = ask(
        "autotune.engines.megatron.probe",
        {
            "checkout": str(checkout),
            "world": world,
            "lines": [list(words) for words in lines],
            "hint": f"it is Megatron Core {release_of(checkout)}: 0.14 to 0.16 were tried",
        },
        about=f"megatron_path: {checkout}",
        doing="asking it about its arguments",
        timeout_s=_ASKING_S,
        if_slow="see whether `python pretrain_gpt.py --help` ends there",
        if_dead="see whether `python pretrain_gpt.py --help` works there",
    )
    return {int(number): str(why) for number, why in found["refused"].items()}


def user_words(job: Job) -> list[str]:
    """The user's own words for the script.

    Raises:
        JobError: One is an argument that a candidate or the job decides.
    """
    for word in job.megatron_arguments:
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in DECIDED:
            raise JobError.of("engines.megatron.argument_decided", word=word)
    return list(job.megatron_arguments)


def script_arguments(checkout: Path, vocab: int, words: Sequence[str]) -> list[str]:
    """Arguments of the script besides a candidate's: samples, and nothing but training."""
    return [
        *data_words(words),
        *tokenizer_words(vocab, release_of(checkout), words),
        *words,
        *("--eval-iters", "0", "--eval-interval", "1000"),  # without a number it fails
        *("--log-interval", "1"),
        "--log-throughput",
    ]


def data_words(words: Sequence[str]) -> list[str]:
    """Words that ask for random samples, where the user's own name no data."""
    return [] if _DATA_FLAGS & set(words) else ["--mock-data"]


def tokenizer_words(vocab: int, release: str, words: Sequence[str]) -> list[str]:
    """Words for a tokenizer of so many token ids, where the user's own name none."""
    if "--tokenizer-type" in words:
        return []
    return ["--tokenizer-type", "NullTokenizer", "--vocab-size", str(null_vocab(vocab, release))]


@cache
def digest_of(checkout: Path) -> str:
    """A hash of the checkout's code: 12 hex digits."""
    digest = hashlib.sha256()
    files = [*checkout.glob("*.py"), *(checkout / "megatron").rglob("*.py")]
    for file in sorted(files):
        digest.update(str(file.relative_to(checkout)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]
