"""Candidates of Megatron that were really trained, for tests."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.contract import Role, to_dict
from autotune.devices.hardware import version_of
from autotune.engines.megatron.engine import MegatronEngine
from autotune.job.job import Job, make_job
from autotune.search.trial_spec import Run, make_spec
from autotune.space.candidate import Candidate
from autotune.trial.engines.megatron import ARGUMENTS_FILE
from tests.driven_ranks import REPOSITORY, ask_driver
from tests.jobs import CPU

DRIVER = "tests.engines.megatron.reality_driver"
PRESETS = REPOSITORY / "autotune" / "job" / "presets"
HERE = dataclasses.replace(CPU, megatron_core=version_of("megatron-core") or "")
"""CPU ranks with the release that trains: some lack a knob, or ask for more."""

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
QWEN = {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 32,
    "vocab_size": 512,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
MIXTRAL: dict[str, Any] = {
    **LLAMA,
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
MIXTURES: dict[str, dict[str, Any]] = {
    name: {
        **json.loads((PRESETS / f"tiny-{name}.json").read_text(encoding="utf-8")),
        "initializer_range": 0.05,
    }
    for name in ("qwen3-moe", "deepseek-v3", "gpt-oss")
}
"""Small mixtures, whose weights are large enough for a fault to move the losses."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A candidate, and what its ranks said, in their order."""

    candidate: Candidate
    engine: MegatronEngine
    ranks: list[dict[str, Any]]

    def losses(self) -> list[float]:
        """The loss of each step, over all samples; every replica has as many ranks."""
        by_step = zip(*(rank["losses"] for rank in self.ranks), strict=True)
        return [sum(losses) / len(losses) for losses in by_step]

    def states(self, part: str) -> int:
        """Bytes of a part of the states on the fullest rank."""
        return max(int(rank["states"][part]) for rank in self.ranks)


def job_for(folder: Path, config: dict[str, Any], **changes: Any) -> Job:
    """A job of Megatron for a model."""
    path = folder / str(config["model_type"]) / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))
    data = {
        "model": str(path),
        "seq_len": 32,
        "global_batch": 8,
        "precision": "fp32",
        "engine": "megatron",
        **changes,
    }
    return make_job(data, where="test")


def layouts_of(job: Job, **wanted: Any) -> list[tuple[MegatronEngine, Candidate]]:
    """Legal candidates of a job on CPU ranks whose knobs have these values."""
    engine = MegatronEngine(job, HERE)
    return [
        (engine, candidate)
        for candidate in engine.layouts()
        if all(candidate[name] == value for name, value in wanted.items())
    ]


def train(
    cases: list[tuple[MegatronEngine, Candidate]],
    folder: Path,
    more: Sequence[Mapping[str, Any]] = (),
) -> list[Trained]:
    """Train candidates, each in ranks of its own; `more` are arguments beside those of each.

    Raises:
        AssertionError: The driver failed.
    """
    described = [
        {
            **case_of(engine, candidate, more[number] if more else {}),
            "folder": str(folder / f"checkpoint-{number}"),
        }
        for number, (engine, candidate) in enumerate(cases)
    ]
    answers = ask_driver("megatron", DRIVER, described, folder, timeout_s=1200, variables={})
    return [
        Trained(candidate=candidate, engine=engine, ranks=ranks)
        for (engine, candidate), ranks in zip(cases, answers, strict=True)
    ]


def case_of(
    engine: MegatronEngine, candidate: Candidate, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A trial's spec, and its arguments with others of Megatron's besides; None leaves one out."""
    run = Run(candidate=candidate, role=Role.SEARCH)
    spec = make_spec(run, study="s", number=0, job=engine._job, engine=engine, environment=HERE)
    arguments = json.loads(engine.files(candidate)[ARGUMENTS_FILE])
    arguments = {k: v for k, v in {**arguments, **(more or {})}.items() if v is not None}
    return {"spec": to_dict(spec), "arguments": arguments}
