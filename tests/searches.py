"""Whole searches as users run them: processes of their own, on a small model."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.contract import Outcome, Role
from autotune.record.answer import answer_of
from autotune.record.study import Study, Trial

MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}
OWN_BASELINE = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 0},
}


class Search:
    """`autotune search` on a small model, in a folder of its own."""

    under: Sequence[str] = ("tests.hasty",)
    """The command's module, where `start` is told no other."""

    def __init__(self, folder: Path) -> None:
        self.study = Study(folder / "results", "it")
        (folder / "config.json").write_text(json.dumps(MODEL))
        (folder / "baseline.json").write_text(json.dumps(OWN_BASELINE))
        self._folder = folder
        self.flags = {
            "model": str(folder / "config.json"),
            "seq_len": 16,
            "global_batch": 8,
            "world": 2,
            "space": "smoke",
            "study": "it",
            "baseline": str(folder / "baseline.json"),
        }
        """The job's keys, as the flags set them."""

    def start(self, *more: str, under: Sequence[str] = ()) -> subprocess.Popen[str]:
        """The search, by the module and arguments that it is to run under."""
        return subprocess.Popen(
            [
                *(sys.executable, "-m", *(under or self.under)),
                *("search", "--yes", "--json", *self._flags(), *more),
            ],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_python_path())},
        )

    def _flags(self) -> list[str]:
        named = {f"--{name.replace('_', '-')}": str(v) for name, v in self.flags.items()}
        return [word for pair in named.items() for word in pair]

    def is_under_way(self, number: int = 0) -> bool:
        """Whether the second of two ranks of a trial runs."""
        return (self.study.trial_folder(number) / "ranks" / "01.json").exists()

    def run(self, *more: str) -> tuple[int, str, str]:
        process = self.start(*more)
        stdout, stderr = process.communicate(timeout=900)
        return process.returncode, stdout, stderr

    def finished(self) -> dict[int, str]:
        """Digest of every finished trial's result, by number."""
        return {
            trial.spec.identity.number: digest(trial)
            for trial in self.study.trials()
            if trial.result is not None and trial.result.outcome is not Outcome.LOST
        }


class Demo(Search):
    """`make demo` on shorter and fewer samples, and with one trial beside its baseline.

    What the sampler of the demo proposes follows from what was measured; `grid` goes by the seed
    and by what was tried.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.flags = {
            "study": "it",
            "trials": 1,
            "seq_len": 16,
            "global_batch": 16,
            "sampler": "grid",
            "guard_steps": 0,
            "compare": "best",
            "budget": "45s",
        }

    def _flags(self) -> list[str]:
        return [*super()._flags(), "--no-diagnose"]


def check_all_measured(study: Study, trials: Sequence[Trial]) -> None:
    """Check that these trials of a search were measured, its baseline and its best to their end.

    Another one may be stopped early: it is clearly slower.
    """
    answer = answer_of(study)
    for trial in trials:
        assert trial.result.outcome.is_measured, trial.result.evidence
        identity = trial.spec.identity
        if identity.role is Role.BASELINE or identity.number == answer.best.trial:
            assert trial.result.outcome is Outcome.OK


def _python_path() -> list[str]:
    """This tree, and where the tests were told to look besides."""
    return [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]


def digest(trial: Trial) -> str:
    return hashlib.sha256((trial.folder / "result.json").read_bytes()).hexdigest()
