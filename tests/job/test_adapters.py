"""LoRA in the job: what is trained is counted on the model, and errors name their key."""

import importlib.util
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from autotune.base.errors import JobError
from autotune.engines.base import find_engine
from autotune.job.adapters import with_rank
from autotune.job.job import Job, make_job
from autotune.job.model import load_model
from autotune.job.model_shape import train_flops_per_token
from autotune.trial.scripts.train import add_adapters

SOUND: dict[str, Any] = {"model": "tiny-llama", "seq_len": 64, "global_batch": 8, "world": 2}
LORA = {"method": "lora", "rank": 4, "target_modules": ["v_proj", "q_proj"]}


@pytest.fixture(scope="module")
def job() -> Job:
    return make_job({**SOUND, "finetune": LORA}, where="x")


def complaint(finetune: Any) -> JobError:
    with pytest.raises(JobError) as caught:
        make_job({**SOUND, "finetune": finetune}, where="job.yaml")
    return caught.value


def test_adapters_are_counted_on_the_model(job: Job) -> None:
    whole, shape = load_model("tiny-llama").shape, job.model.shape
    hidden, width = whole.hidden, whole.attention_width
    kv_width = width * whole.n_kv_heads // whole.n_heads
    per_layer = 4 * (hidden + width) + 4 * (hidden + kv_width)
    assert shape.n_params == whole.n_layers * per_layer
    assert shape.n_params_frozen == whole.n_params
    assert shape.n_params_total == shape.n_params_active == whole.n_params + shape.n_params
    assert shape.largest_param == whole.largest_param


def test_a_trial_is_told_what_to_train(job: Job) -> None:
    assert job.model.source["lora"] == {
        "rank": 4,
        "alpha": 8.0,
        "target_modules": ["q_proj", "v_proj"],
        "dropout": 0.0,
    }
    assert job.study != make_job(SOUND, where="x").study


@pytest.mark.cases("finetune", "says")
def test_what_is_wrong_is_said_with_its_key(finetune: Any, says: str) -> None:
    error = complaint(finetune)
    assert error.message.startswith("job.yaml: finetune")
    assert says in f"{error.message} {error.hint}"
    assert "finetune" in error.hint


def test_modules_that_the_model_lacks_are_named_with_those_that_it_has() -> None:
    error = complaint({**LORA, "target_modules": ["c_attn"]})
    assert "c_attn" in error.message
    assert "down_proj" in error.hint


def test_without_peft_the_fix_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    without = {"peft": None}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: without.get(name, name) and real(name, *a)
    )
    assert "pip install peft" in complaint(LORA).hint
    counted = make_job({**SOUND, "finetune": {"method": "lora", "rank": 4}}, where="x")
    assert counted.model.shape.n_params_frozen, "adapters on all linear layers need no peft"
    assert [one.name for one in find_engine("deepspeed").needed(counted)] == ["deepspeed", "peft"]


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [("all-linear", True), (["q_proj"], False), (["gate_proj", "up_proj", "down_proj"], True)],
)
def test_adapters_on_experts_are_known_by_formula_and_where_the_model_is_built(targets, adapted):
    mixture = {**SOUND, "model": "tiny-qwen3-moe"}
    job = make_job({**mixture, "finetune": {**LORA, "target_modules": targets}}, where="x")
    assert job.model.adapts_experts is adapted


def test_a_rank_from_the_command_line_keeps_the_rest() -> None:
    assert with_rank(None, 8) == {"method": "lora", "rank": 8}
    assert with_rank(LORA, 8) == {**LORA, "rank": 8}


def test_flops_are_those_that_torch_counts() -> None:
    """Forward and backward with adapters everywhere, but for the first layer's own input."""
    job = make_job({**SOUND, "finetune": {"method": "lora", "rank": 4}}, where="x")
    source, seq_len = job.model.source, 64
    config = AutoConfig.for_model(**source["config"])
    # The one attention whose products the counter sees on a CPU.
    module = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    add_adapters(module, source["lora"])
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert job.model.shape.n_params == trained, "counted by formula"
    tokens = torch.randint(0, source["vocab"], (1, seq_len))
    with FlopCounterMode(display=False) as counter:
        module(input_ids=tokens, labels=tokens).loss.backward()
    counted = counter.get_total_flops() / seq_len
    shape = job.model.shape
    kv_width = shape.attention_width * shape.n_kv_heads // shape.n_heads
    not_needed = 2 * shape.hidden * (shape.attention_width + 2 * kv_width)
    wanted = train_flops_per_token(shape, seq_len) - not_needed
    assert counted == pytest.approx(wanted, rel=0.02)
    assert wanted < 0.8 * train_flops_per_token(load_model("tiny-llama").shape, seq_len)
