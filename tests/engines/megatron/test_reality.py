"""Layouts of Megatron, trained by the real Megatron Core on CPU ranks.

Every layout has to train as one rank does, to say of itself what was asked, and to hold the bytes
of weights, gradients and optimizer states that the cost model predicts. A layout that a rule
refuses has to fail there: those that did are noted (`tests/noted.py`).
"""

import functools
import json
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.contract import TrialSpec, settings_of
from autotune.cost import predict
from autotune.engines.megatron.engine import MegatronEngine
from autotune.engines.megatron.knobs import LATTICE_KNOBS
from autotune.space.candidate import Candidate
from autotune.space.knobs import canonical
from tests.cases import data_beside
from tests.engines.megatron.reality_driver import STEPS
from tests.engines.megatron.trained import (
    GPT2,
    HERE,
    LLAMA,
    MIXTRAL,
    QWEN,
    Trained,
    case_of,
    job_for,
    layouts_of,
    train,
)
from tests.noted import Notes, texts

DATA = data_beside(__file__)

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed"),
]

MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gpt2": GPT2,
    "mixtral": MIXTRAL,
    "qwen2": QWEN,
}
EIGHT = {**LLAMA, "num_hidden_layers": 8}
AT_LEAST = 20
SAME_LOSS = 2e-4
"""The order of sums alone makes the losses of two layouts differ by less."""
STATES_WITHIN = 0.03

REFUSED: dict[str, list[Any]] = DATA["REFUSED"]
"""Rule -> what the model has besides, a layout that breaks it, and a word of Megatron's error."""


def refused_case(rule: str, folder: Path) -> tuple[MegatronEngine, Candidate]:
    """An illegal candidate, with the engine of its job."""
    changes, layout, _ = REFUSED[rule]
    is_mixture = rule in ("ep.experts", "sequence_parallel.experts", "order.experts")
    config = MIXTRAL if is_mixture else LLAMA
    world = int(layout.get("world", 2))
    seq_len = 33 if rule == "sequence_parallel.sequence" else 32
    folder = folder / rule
    job = job_for(folder, {**config, **changes}, world=world, seq_len=seq_len)
    knobs = {name: knob.default for name, knob in LATTICE_KNOBS.items()} | layout
    knobs.pop("world", None)
    return MegatronEngine(job, HERE), Candidate.of(knobs, world=world, global_batch=8)


NOTES = Notes("megatron_refusals.json", "megatron-core", "torch")
ASKS = texts("scripts/train_megatron.py", "scripts/megatron_cpu.py")
"""Code of ours that gives Megatron a layout."""


@functools.cache
def asked_of(rule: str) -> tuple[str, ...]:
    """What the failure of an illegal candidate follows from."""
    with tempfile.TemporaryDirectory() as folder:
        case = case_of(*refused_case(rule, Path(folder)))
    spec = TrialSpec.from_dict(case["spec"])
    told = (case["arguments"], settings_of(spec.workload, spec.layout), REFUSED[rule][2])
    return (*map(json.dumps, told), *ASKS)


def cases(folder: Path) -> list[tuple[MegatronEngine, Candidate]]:
    """One rank of each model first; then two ranks, and four that share by three axes."""
    alone = [
        case
        for config in MODELS.values()
        for case in layouts_of(job_for(folder, config, world=1), micro_batch=1, recompute="none")
    ]
    two = [
        case
        for config in MODELS.values()
        for case in layouts_of(job_for(folder, config, world=2), micro_batch=2, recompute="none")
    ]
    dense = job_for(folder, LLAMA, world=2)
    again = [
        case
        for recompute in ("selective", "full", "block_1")
        for case in layouts_of(dense, micro_batch=2, recompute=recompute, vp=1)
        if not case[1]["distributed_optimizer"]
    ]
    four = [
        case
        for case in layouts_of(job_for(folder, LLAMA, world=4), micro_batch=1, recompute="none")
        if case[1].tp > 1 and (case[1].pp > 1 or case[1]["distributed_optimizer"])
    ]
    reduced = [
        case
        for precision in ("bf16", "fp16")
        for case in layouts_of(
            job_for(folder / precision, LLAMA, world=2, precision=precision),
            micro_batch=2,
            recompute="none",
            vp=1,
            sequence_parallel=False,
        )
    ]
    return [*alone, *two, *again, *four, *reduced, *named_by_a_space(folder)]


OF_A_SPACE: tuple[tuple[dict[str, Any], int, dict[str, Any]], ...] = (
    (LLAMA, 2, {"pp": 2, "first_stage_layers": 3}),
    (LLAMA, 2, {"pp": 2, "last_stage_layers": 3}),
    (LLAMA, 2, {"recompute": "selective", "recompute_modules": "core_attn+mlp"}),
    (MIXTRAL, 2, {"recompute": "selective", "recompute_modules": "moe"}),
    (
        *(LLAMA, 2),
        {
            **{"distributed_optimizer": True, "overlap_grad_reduce": False},
            "overlap_param_gather": False,
        },
    ),
    (LLAMA, 4, {"pp": 2, "order": "tp-cp-ep-pp-dp"}),
    (EIGHT, 1, {}),
    (EIGHT, 4, {"pp": 4, "vp": 2, "overlap_p2p": False}),
)
"""Model, ranks, and knobs that the lattice leaves at their default."""


def named_by_a_space(folder: Path) -> list[tuple[MegatronEngine, Candidate]]:
    """They as candidates."""
    found = []
    for number, (config, world, knobs) in enumerate(OF_A_SPACE):
        job = job_for(folder / f"space-{number}", config, world=world)
        engine = MegatronEngine(job, HERE)
        found.append((engine, plain(engine, {"micro_batch": 1, **knobs}, world)))
    return found


def plain(engine: MegatronEngine, knobs: dict[str, Any], world: int) -> Candidate:
    """A candidate with these knobs, and all others at their default."""
    values = {name: knob.default for name, knob in LATTICE_KNOBS.items()} | knobs
    return Candidate.of(canonical(values, engine.context), world=world, global_batch=8)


def is_further(engine: MegatronEngine, candidate: Candidate) -> bool:
    """Whether every part of a layout is tried in every run, with another one or in a like model.

    GPT-2 and Qwen2 share weights between the ends, and replicas as Llama does. Mixtral's layers
    are in stages as Llama's are: what its experts do is tried, with the states of each in parts.
    Llama's stages, chunks, and states in parts are tried where something else is split as well.
    """
    model, precision = engine._job.model.name, engine._job.precision
    tp, pp, vp = candidate.tp, candidate.pp, candidate["vp"]
    sequence, in_parts = candidate["sequence_parallel"], candidate["distributed_optimizer"]
    if candidate.world == 1 or (candidate.world, candidate["micro_batch"]) == (2, 1):
        return False  # whole, or named by a space
    if candidate.world == 4:
        is_named = "order" in candidate.values or pp == 4
        return not is_named and not (tp > 1 and sequence and (vp == 2 if pp > 1 else in_parts))
    if precision != "fp32":
        return not in_parts and not (precision == "bf16" and tp > 1)
    if model == "gpt2":
        return not (pp > 1 and vp == 1)
    if model == "qwen2":
        return not (tp > 1 and not sequence)
    if model == "mixtral":
        return not (tp > 1 or (in_parts and candidate["ep"] > 1))
    if candidate["recompute"] == "none":
        return in_parts or (tp > 1 and not sequence) or (pp > 1 and vp < 3)
    is_tried = candidate["recompute"] == ("full" if pp > 1 else "block_1")
    return not is_tried or (pp == 1 and not sequence)


@pytest.fixture(
    scope="module", params=["every run", pytest.param("further", marks=pytest.mark.thorough)]
)
def trained(request, tmp_path_factory):
    folder, further = tmp_path_factory.mktemp("megatron"), request.param == "further"
    every = cases(folder)
    return train([c for c in every if c[1].world == 1 or is_further(*c) == further], folder)


def named(one: Trained) -> str:
    job = one.engine._job
    return f"{job.model.name} {job.precision} {one.engine.describe(one.candidate)}"


def test_every_layout_trains(trained, record_property):
    record_property("trained", len(trained))
    failed = {
        named(one): [rank["error"] for rank in one.ranks]
        for one in trained
        if any(rank["error"] for rank in one.ranks)
    }
    assert not failed
    assert len(trained) >= AT_LEAST


def test_every_layout_is_what_was_asked(trained: list[Trained]) -> None:
    differ = {named(one): one.ranks[0]["differences"] for one in trained}
    assert not {name: found for name, found in differ.items() if found}


def test_every_layout_has_the_losses_of_one_rank(trained: list[Trained]) -> None:
    alone = {
        one.engine._job.model.shape: one.losses() for one in trained if one.candidate.world == 1
    }
    apart = {}
    for one in trained:
        if one.engine._job.precision == "fp32":
            expected = alone[one.engine._job.model.shape]
            if not np.allclose(one.losses(), expected, rtol=0, atol=SAME_LOSS):
                apart[named(one)] = (one.losses(), expected)
    assert not apart
    assert all(losses[0] != losses[-1] for losses in alone.values()), "nothing was learned"


def test_every_layout_goes_on_from_its_checkpoint(trained: list[Trained]) -> None:
    """Weights, what the optimizer keeps, sharded or whole, and the place in the data."""
    apart = {}
    for one in trained:
        for rank in one.ranks:
            assert rank["resumed"] == [True, STEPS]
            # A loss scale that was found is kept, too; sums in 16 bits differ by their order.
            if not np.allclose(rank["went_on"], rank["again"], rtol=0, atol=SAME_LOSS):
                apart[named(one)] = (rank["went_on"], rank["again"])
    assert not apart


@pytest.mark.parametrize("part", ["params_bytes", "grads_bytes", "optimizer_bytes"])
def test_the_states_are_as_large_as_predicted(trained: list[Trained], part: str) -> None:
    apart = {}
    for one in trained:
        if one.engine._job.precision == "fp16":
            continue  # its loss scale skips the first steps, so Adam has no states yet
        memory = predict(one.engine.plans([one.candidate])).memory
        predicted = float(np.ravel(getattr(memory, part))[0])
        if abs(predicted / one.states(part) - 1) > STATES_WITHIN:
            apart[named(one)] = (predicted, one.states(part))
    assert not apart


@pytest.fixture(scope="module")
def refused(request, tmp_path_factory):
    """By rule what is to fail, of the tests that were selected."""
    folder = tmp_path_factory.mktemp("refused")
    items = [item for item in request.session.items if item.module is request.module]
    rules = [item.callspec.params["rule"] for item in items if "refuses" in item.originalname]
    found = train([refused_case(rule, folder) for rule in rules], folder)
    yield dict(zip(rules, found, strict=True))
    NOTES.write(REFUSED)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, marks=[pytest.mark.thorough] * NOTES.has(rule, *asked_of(rule)))
        for rule in REFUSED
    ],
)
def test_what_a_rule_refuses_fails_in_megatron(refused, rule):
    one = refused[rule]
    found = {violation.rule for violation in one.engine.judge(one.candidate)}
    assert rule in found
    if any(name.endswith(".release") for name in found):
        pytest.skip("this release lacks the knob")
    errors = [str(rank["error"]) for rank in one.ranks]
    assert any(REFUSED[rule][2] in error for error in errors), errors
    NOTES.add(rule, *asked_of(rule))


def test_a_layout_that_pads_its_vocabulary_says_so(tmp_path: Path) -> None:
    """Parameters of the token ids that are added are asked for, too."""
    job = job_for(tmp_path, {**LLAMA, "vocab_size": 500}, world=2)
    (engine, whole), *_ = layouts_of(job, tp=1, pp=1)
    split = replace(whole, knobs=tuple({**whole.values, "tp": 2}.items()))
    for candidate, padded in ((whole, 512), (split, 512)):
        expected = engine.expected(candidate)["n_params"]
        assert expected == job.model.shape.n_params + (padded - 500) * 64 * 2
