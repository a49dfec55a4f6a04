"""What is asked is what the live engine runs: every value of the shipped spaces, on real ranks.

The values are taken as the spaces list them, unfolded, and trained on a tiny model: what a value
means does not depend on the model, only whether it makes a difference does.
"""

import itertools
import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from autotune.candidate import Candidate
from autotune.contract import Measure, Role, TrialSpec, to_dict
from autotune.engines.deepspeed import DeepSpeedEngine
from autotune.extensions import build
from autotune.extensions import environment as extensions_environment
from autotune.job import Job
from autotune.knobs import Context, canonical
from autotune.model import load_model
from autotune.rules import judge
from autotune.rules.keys import is_at_least
from autotune.space import Space, combinations, load_space, shipped_spaces
from tests.jobs import CPU, tiny_job
from tests.rules.cases import NEWEST

pytestmark = pytest.mark.real

WORLD = 2
HERE = replace(CPU, deepspeed_version=version("deepspeed"))
AT_LEAST = 40
MEASURE = Measure(warmup_steps=0, min_steps=1, max_steps=1, target_half_width=1.0, budget_s=1.0)
REPOSITORY = Path(__file__).resolve().parent.parent


def big_context() -> Context:
    """Of a model in which every listed value acts and none folds."""
    return Context(
        model=load_model("llama-2-7b").shape,
        world=WORLD,
        global_batch=128,
        precision="fp32",
        accelerator="cuda",
    )


def listed(space: Space) -> set[tuple[str, Any]]:
    """Every (knob, value) of a space that two ranks can run."""
    return {
        (name, value)
        for name, domain in space.domains.items()
        for value in domain.values
        if not (name == "tp" and int(value) > WORLD)
    }


def has_release(knobs: dict[str, Any], folder: Path, index: int = 0) -> bool:
    """Whether the installed release has all that a choice asks for; the newest does."""
    job, candidate = make_candidate(folder, index, knobs)
    setup = DeepSpeedEngine(job, HERE).setup(candidate)
    return not any(violation.rule.startswith("version.") for violation in judge(setup))


def stratified(folder: Path) -> tuple[list[dict[str, Any]], set[tuple[str, Any]]]:
    """Choices in which every listed value appears, filled up at random to `AT_LEAST`.

    Returns:
        The choices, and the listed values that the installed release of DeepSpeed lacks.
    """
    lacking: set[tuple[str, Any]] = set()
    draw = random.Random(0)
    context = big_context()
    chosen: list[dict[str, Any]] = []
    spare: list[dict[str, Any]] = []
    for name in shipped_spaces():
        space = load_space(name)
        missing = listed(space)
        choices = [c for c in combinations(space, context) if int(c.get("tp", 1)) <= WORLD]
        draw.shuffle(choices)
        del choices[2000:]
        for combination in choices:
            acting = {k: combination.get(k, v) for k, v in canonical(combination, context).items()}
            if missing & set(acting.items()):
                if not has_release(acting, folder):
                    lacking |= set(acting.items())
                    continue
                missing -= set(acting.items())
                chosen.append(acting)
        assert missing <= lacking, f"{name}: no choice of two ranks has {missing - lacking}"
        spare += [{k: c.get(k, v) for k, v in canonical(c, context).items()} for c in choices]
    draw.shuffle(spare)
    legal = (knobs for knobs in spare if has_release(knobs, folder))
    chosen += itertools.islice(legal, max(0, AT_LEAST - len(chosen)))
    assert len(chosen) >= AT_LEAST
    return chosen, lacking - {pair for knobs in chosen for pair in knobs.items()}


def make_candidate(tmp_path: Path, index: int, knobs: dict[str, Any]) -> tuple[Job, Candidate]:
    """One or two accumulation steps, fp32 and bf16 in turn."""
    dp = WORLD // int(knobs["tp"])
    global_batch = int(knobs["micro_batch"]) * dp * (1 + index % 2)
    precision = ("fp32", "bf16")[index // 2 % 2]
    job = tiny_job(tmp_path, global_batch=global_batch, precision=precision, seq_len=8)
    return job, Candidate.of(knobs, world=WORLD, global_batch=global_batch)


def make_case(tmp_path: Path, index: int, knobs: dict[str, Any]) -> dict[str, Any]:
    """One candidate for the driver."""
    job, candidate = make_candidate(tmp_path, index, knobs)
    engine = DeepSpeedEngine(job, HERE)
    setup = engine.setup(candidate)
    spec = TrialSpec(
        study="reality",
        number=index,
        role=Role.SEARCH,
        candidate_hash=candidate.hash,
        knobs=candidate.values,
        world=WORLD,
        tp=candidate.tp,
        pp=candidate.pp,
        dp=candidate.dp,
        micro_batch=candidate.micro_batch,
        grad_accum=candidate.grad_accum,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        precision=job.precision,
        accelerator="cpu",
        model=job.model.source,
        recompute=setup.recompute,
        expected=engine.expected(setup),
        measure=MEASURE,
    )
    return {"spec": to_dict(spec), "ds_config": dict(setup.ds_config)}


ASKED_INSTEAD = {
    "stage": 2,
    "offload_optimizer": "none",
    "offload_param": "none",
    "reduce_bucket_size": 2000,
    "prefetch_bucket_size": 2000,
    "param_persistence_threshold": 20,
    "max_live_parameters": 2000,
    "dtype": "fp16",
    "micro_batch": 2,
    "grad_accum": 2,
    "dp": 1,
    "tp": 2,
    "pp": 2,
    "gradient_clipping": 0.5,
    "communication_dtype": "fp16",
    "n_params": 1,
    "recomputed_layers": 1,
}
"""What the first of `wrong_cases` claims to be."""


def wrong_cases(tmp_path: Path) -> list[dict[str, Any]]:
    """Cases that run something else than they ask for, about which DeepSpeed says nothing."""
    plain = {"zero.stage": 1, "tp": 1, "micro_batch": 1}
    everything = {
        **plain,
        "zero.stage": 3,
        "offload.optimizer": "cpu",
        "offload.param": "cpu",
        "reduce_bucket_size": 1000,
        "stage3.prefetch_bucket_size": 1000,
        "stage3.param_persistence_threshold": 10,
        "stage3.max_live_parameters": 1000,
    }
    wrong, ignored = make_case(tmp_path, 0, everything), make_case(tmp_path, 0, plain)
    wrong["spec"]["expected"] |= ASKED_INSTEAD
    ignored["ds_config"]["zero_optimization"]["offload_param"] = {"device": "cpu"}
    ignored["spec"]["expected"]["offload_param"] = "cpu"
    return [wrong, ignored]


def run(tmp_path: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Train the cases one after the other in one set of ranks."""
    build("cpu", lambda _: None)
    asked, answered = tmp_path / "cases.json", tmp_path / "results.json"
    asked.write_text(json.dumps(cases))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(WORLD)),
            *(str(REPOSITORY / "tests" / "reality_driver.py"), str(asked), str(answered)),
        ],
        env={
            **os.environ,
            **extensions_environment("cpu"),
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPOSITORY),
        },
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[dict[str, Any]] = json.loads(answered.read_text())
    assert len(results) == len(cases)
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[list, list, set]:
    """(case, result) of every stratified candidate, of `wrong_cases`; what the release lacks."""
    folder = tmp_path_factory.mktemp("reality")
    chosen, lacking = stratified(folder)
    choices = sorted(chosen, key=lambda knobs: knobs["tp"])
    cases = [
        # What a release lacks in bf16 alone is trained in fp32.
        make_case(folder, index if has_release(knobs, folder, index) else index ^ 2, knobs)
        for index, knobs in enumerate(choices)
    ]
    wrong = wrong_cases(folder)
    # One set of ranks for all; AutoTP leaves state behind, so it comes last.
    together = list(zip(wrong + cases, run(folder, wrong + cases), strict=True))
    return together[len(wrong) :], together[: len(wrong)], lacking


@pytest.fixture
def trained(results: tuple[list, list, set]) -> list[tuple[dict, dict]]:
    return results[0]


def test_every_listed_value_was_tried(trained, results, record_property):
    lacking = results[2]
    tried = {pair for case, _ in trained for pair in case["spec"]["knobs"].items()}
    for name in shipped_spaces():
        assert listed(load_space(name)) - tried <= lacking
    assert len(trained) >= AT_LEAST
    assert not lacking or not is_at_least(version("deepspeed"), NEWEST)
    record_property("trained", sum("losses" in result for _, result in trained))
    record_property("lacking", json.dumps(sorted(map(str, lacking))))


def test_the_engine_runs_what_was_asked(trained):
    wrong = [
        (case["spec"]["knobs"], result.get("error") or result["differences"])
        for case, result in trained
        if result.get("error") or result["differences"]
    ]
    assert not wrong


def test_it_trains(trained):
    for case, result in trained:
        assert result["steps"] == 2, case["spec"]["knobs"]
        assert len(result["losses"]) == 2 * case["spec"]["grad_accum"]
        assert all(4 < loss < 8 for loss in result["losses"])  # ln 256 = 5.5, untrained


def test_candidates_that_differ_in_speed_alone_train_the_same(trained):
    """Stage, offload, buckets and recomputation change no loss: same seed, data and precision."""
    first_losses = defaultdict(set)
    for case, result in trained:
        spec = case["spec"]
        # zero.Init draws the weights in another order, and bf16 rounds by the order of sums.
        if spec["precision"] == "fp32" and spec["knobs"]["zero.stage"] < 3:
            key = (spec["tp"], spec["micro_batch"])
            first_losses[key].add(round(result["losses"][0], 4))
    assert first_losses
    assert all(len(losses) == 1 for losses in first_losses.values()), first_losses


def test_a_difference_is_seen(results):
    (_, wrong), (_, silently) = results[1]
    assert "error" not in wrong
    seen = {sentence.partition(":")[0] for sentence in wrong["differences"]}
    assert seen == set(ASKED_INSTEAD)
    assert silently["differences"] == [
        "offload_param: asked cpu, the engine has no such thing at its stage"
    ]
