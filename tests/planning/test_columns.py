"""Candidates are judged in columns; here they are judged one by one as well."""

import random

import numpy as np
import pytest

from autotune import DEFAULT_ENGINE
from autotune.base.data import data_folder, shipped_spaces
from autotune.devices.accelerators import shipped_accelerators
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.columns import judge_columns
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.megatron.engine import MegatronEngine
from autotune.engines.megatron.knobs import rows_of
from autotune.engines.megatron.layouts import lay_out
from autotune.engines.megatron.rules import RULES
from autotune.job.job import make_job
from autotune.planning.outlook import FleetWishes, described
from autotune.space.candidate import Candidate
from autotune.space.grid import grid_rows
from autotune.space.judged import judge_each
from autotune.space.space import grid, load_space
from autotune.space.space_file import Domain, Space
from autotune.testing import ENVIRONMENT

SITUATIONS = {
    "cpu": {"model": "tiny-mixtral", "world": 2},
    "node": {"model": "llama-2-7b", "world": 8, "precision": "fp16"},
    "odd": {"model": "tiny-gpt2", "world": 6, "precision": "fp32"},
}
N_SAMPLED = 400


def job_of(situation: str, **more):
    given = {"seq_len": 64, "global_batch": 96, **SITUATIONS[situation]}
    return make_job({**given, **more}, where="test")


def environment_of(situation: str, release: str = "0.19.8") -> Environment:
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
    """Knobs of the list with values of the shipped spaces, and no condition."""
    draw = random.Random(seed)
    values: dict[str, set] = {}
    for name in shipped_spaces(DEFAULT_ENGINE):
        for knob, domain in load_space(name, KNOBS).domains.items():
            values.setdefault(knob, set()).update(domain.values)
    chosen = {"zero.stage", "micro_batch", *draw.sample(sorted(values), 9)}
    domains = {
        name: Domain(values=tuple(sorted(values[name], key=str)[:3]))
        for name in KNOBS
        if name in chosen
    }
    return Space(
        name="drawn", description="", domains=domains, path=load_space("zero", KNOBS).path
    )


def agree(engine: DeepSpeedEngine, space: Space) -> None:
    rows = grid_rows(space, engine.context)
    sampled = np.random.default_rng(0).permutation(len(rows))[:N_SAMPLED]
    found = judge_columns(rows, engine.setup, engine.judge)
    assert found is not None, "a setting follows from knobs that columns.py does not name"
    told = judge_each(rows.take(sampled), engine.judge)
    broken = {name: counts[sampled] for name, counts in found.broken.items()}
    assert {name for name, counts in broken.items() if counts.any()} == set(told.broken)
    for name, counts in told.broken.items():
        assert (broken[name] == counts).all(), name


@pytest.mark.parametrize("name", ["communication", "compression", "cpu", "lossy", "zeropp"])
def test_a_grid_in_columns_is_the_grid(name):
    for situation in SITUATIONS:
        engine = DeepSpeedEngine(job_of(situation), environment_of(situation))
        space = load_space(name, KNOBS)
        assert list(grid_rows(space, engine.context)) == list(grid(space, engine.context))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_columns_agree_with_one_by_one(situation):
    for seed in range(3):
        engine = DeepSpeedEngine(job_of(situation), environment_of(situation))
        agree(engine, random_space(seed))


def test_they_agree_with_a_base_configuration_and_an_older_release(tmp_path):
    base = tmp_path / "ds_config.json"
    base.write_text(
        '{"zero_optimization": {"stage": 3, "sub_group_size": 1000, "offload_optimizer": '
        '{"device": "cpu", "pin_memory": true}}, "bf16": {"enabled": true}}',
        encoding="utf-8",
    )
    job = job_of("node", base_config=str(base), precision="bf16")
    agree(DeepSpeedEngine(job, environment_of("node")), random_space(7))
    agree(DeepSpeedEngine(job_of("node"), environment_of("node", "0.16.2")), random_space(8))


def test_a_template_of_the_users_is_judged_one_by_one(tmp_path, monkeypatch):
    theirs = tmp_path / "deepspeed" / "ds_config.json.j2"
    theirs.parent.mkdir()
    shipped = data_folder("templates") / "deepspeed" / "ds_config.json.j2"
    theirs.write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    mine = DeepSpeedEngine(job_of("node", templates=str(tmp_path)), environment_of("node"))
    monkeypatch.setattr("autotune.engines.deepspeed.engine.judge_columns", None)
    rows = grid_rows(load_space("zeropp", KNOBS), mine.context)
    assert mine.judge_all(rows).broken


def test_a_layout_of_megatron_is_judged_alike_in_columns_and_alone():
    job = job_of("node", precision="bf16")
    engine = MegatronEngine(job, described(FleetWishes(gpu="H100"), shipped_accelerators()))
    layouts = lay_out(engine._task)
    assert len(layouts) > N_SAMPLED
    draw = random.Random(0)
    for _ in range(N_SAMPLED):
        knobs = dict(layouts[draw.randrange(len(layouts))].knobs)
        other = layouts[draw.randrange(len(layouts))]
        name = draw.choice(sorted(knobs))
        changed = Candidate.of(
            {**knobs, name: other[name]}, world=other.world, global_batch=other.global_batch
        )
        rows = rows_of(engine._task, [changed])
        alone = {violation.rule for violation in engine.judge(changed)}
        assert alone == {rule.name for rule in RULES if not rule.holds(rows).all()}
        assert not (alone and changed in layouts), changed
        assert not engine.judge(other)
