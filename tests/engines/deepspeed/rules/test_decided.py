"""Rules that are asked once per combination of a few knobs: no other knob decides them."""

import random
from collections import defaultdict

import pytest

from autotune import DEFAULT_ENGINE
from autotune.base.data import shipped_spaces
from autotune.devices.hardware import Environment
from autotune.engines.communication.rules import RULES as COMMUNICATION_RULES
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.rules import ALL_RULES, DECIDED_BY
from autotune.job.job import make_job
from autotune.space.grid import grid_rows
from autotune.space.space_file import Domain, Space, load_space
from autotune.testing import ENVIRONMENT

SITUATIONS = {
    "cpu": {"model": "tiny-mixtral", "world": 2},
    "node": {"model": "llama-2-7b", "world": 8, "precision": "fp16"},
    "odd": {"model": "tiny-gpt2", "world": 6, "precision": "fp32"},
    "mixture": {"model": "mixtral-8x7b", "world": 16},
}
N_SAMPLED = 300


def environment_of(situation: str, release: str) -> Environment:
    if situation == "cpu":
        return Environment(
            accelerator="cpu",
            n_devices=2,
            device_name="cpu",
            device_memory_bytes=2**34,
            peak_flops=None,
            deepspeed_version=release,
            torch_version="2.13.0",
        )
    return Environment(**{**vars(ENVIRONMENT), "deepspeed_version": release})


def random_space(seed: int) -> Space:
    """Knobs that decide rules and others, with values of the shipped spaces and no condition."""
    draw = random.Random(seed)
    values: dict[str, set] = {}
    for name in shipped_spaces(DEFAULT_ENGINE):
        for knob, domain in load_space(name, KNOBS).domains.items():
            values.setdefault(knob, set()).update(domain.values)
    deciding = sorted({name for knobs in DECIDED_BY for name in knobs})
    chosen = {*draw.sample(deciding, 4), *draw.sample(sorted(values), 5)}
    domains = {
        name: Domain(values=tuple(sorted(values[name], key=str)[:3]))
        for name in KNOBS
        if name in chosen
    }
    return Space(
        name="drawn", description="", domains=domains, path=load_space("zero", KNOBS).path
    )


def test_they_are_rules_and_knobs():
    names = {rule.name for rule in (*ALL_RULES, *COMMUNICATION_RULES)}
    assert {rule for rules in DECIDED_BY.values() for rule in rules} <= names
    assert {name for knobs in DECIDED_BY for name in knobs} <= KNOBS.keys()


@pytest.mark.parametrize("release", ["0.19.8", "0.16.2"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_no_other_knob_decides_them(situation, release):
    job = make_job({"seq_len": 64, "global_batch": 96, **SITUATIONS[situation]}, where="test")
    engine = DeepSpeedEngine(job, environment_of(situation, release))
    for seed in range(3):
        rows = grid_rows(random_space(seed), engine.context)
        answers = defaultdict(set)
        for place in random.Random(seed).sample(range(len(rows)), min(N_SAMPLED, len(rows))):
            broken = {violation.rule for violation in engine.judge(rows[place])}
            for knobs, rules in DECIDED_BY.items():
                of_knobs = tuple(map(rows[place].get, knobs))
                answers[knobs, of_knobs].add(frozenset(broken & rules))
        assert all(len(found) == 1 for found in answers.values()), answers
