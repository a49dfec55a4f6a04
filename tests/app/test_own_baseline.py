"""A broken baseline is refused before the search, in the words of `check`."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from autotune.app.searching import run_searches
from autotune.app.session import check_baseline
from autotune.base.errors import JobError
from autotune.engines.base import bind_engine
from tests.jobs import CPU, tiny_job
from tests.search.scripted import Notebook

SOUND = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.01}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1},
}


def refusal(folder: Path, text: str) -> JobError:
    path = folder / "mine.json"
    path.write_text(text, encoding="utf-8")
    wanted = tiny_job(folder, baseline=path, precision="bf16")
    with pytest.raises(JobError) as caught:
        check_baseline(wanted, bind_engine(wanted, CPU), CPU)
    assert str(path) in caught.value.message
    assert caught.value.hint
    return caught.value


@pytest.mark.cases("changes", "words")
def test_what_would_not_run_as_written_is_refused(tmp_path, changes, words):
    assert words in refusal(tmp_path, json.dumps({**SOUND, **changes})).message


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    text = json.dumps(SOUND).replace('"stage": 1', '"stage": 1, "stage": 3')
    assert "written twice" in refusal(tmp_path, text).message


def test_what_a_trial_does_not_carry_is_said_before_the_search(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    kept = {"wandb": {"enabled": True}, "gradient_clipping": 0.5}
    path.write_text(json.dumps({**SOUND, **kept}), encoding="utf-8")
    flags = {"model": "tiny-llama", "seq_len": 64, "global_batch": 8, "world": 2}
    said: list[str] = []
    run_searches(
        {**flags, "baseline": path, "precision": "bf16"},
        results=tmp_path / "results",
        fleet="simulate:2xH100",
        dry_run=True,
        watch=lambda _: nullcontext(Notebook()),
        say=said.append,
    )
    about = [line for line in said if line.startswith(str(path))]
    assert any("optimizer.params.lr=0.0003" in line and "0.0001" in line for line in about)
    assert any("wandb" in line and "without it" in line for line in about)
    assert not any("gradient_clipping" in line for line in about), "it runs as it is"
