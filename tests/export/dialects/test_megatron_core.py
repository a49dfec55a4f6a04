"""The training script of Megatron's trials, exported: it trains with megatron-core alone."""

import json
import os
import sys

import pytest

from autotune.engines.megatron.engine import MegatronEngine
from autotune.engines.megatron.knobs import LATTICE_KNOBS
from autotune.export.door import export_handout, handout_of
from autotune.space.built_in import NEUTRAL
from autotune.space.candidate import Candidate
from tests.captured import captured
from tests.jobs import CPU, tiny_job


def exported(folder, *, to=None, checkout=None, **knobs):
    job = tiny_job(folder, precision="fp32", engine="megatron", megatron_path=checkout)
    values = {name: knob.default for name, knob in LATTICE_KNOBS.items()} | knobs
    handout = handout_of(
        Candidate.of(values, world=job.world, global_batch=job.global_batch),
        engine=MegatronEngine(job, CPU),
        job=job,
        environment=CPU,
    )
    export_handout(handout, folder / "out", to=to)
    return folder / "out"


def test_it_is_written_where_nobody_names_a_dialect_and_says_what_it_needs(tmp_path):
    out = exported(tmp_path, tp=2)
    assert (out / "train_megatron.py").exists()
    assert (out / "megatron_cpu.py").exists()
    launch = (out / "launch.sh").read_text()
    assert "torch and megatron-core (python3)" in launch
    assert "EXTENSIONS" not in launch
    assert "megatron-core alone" in (out / "README.md").read_text()


def test_after_trials_of_a_checkout_it_has_all_settings_of_its_script(tmp_path):
    (tmp_path / "pretrain_gpt.py").touch()
    (tmp_path / "megatron/core").mkdir(parents=True)
    release = "MAJOR = 0\nMINOR = 16\nPATCH = 1\n"
    (tmp_path / "megatron/core/package_info.py").write_text(release)
    out = exported(tmp_path, to="megatron-core", checkout=str(tmp_path))
    assert NEUTRAL.keys() <= json.loads((out / "settings.json").read_text()).keys()


@pytest.mark.real
def test_it_trains_as_it_is(tmp_path):
    out = exported(tmp_path, tp=2, sequence_parallel=True, micro_batch=4)
    done = captured(
        ["bash", "launch.sh", "--steps", "2"],
        cwd=out,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": ""},
        timeout=300,
    )
    steps = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(steps) == 2, done.stderr[-3000:]
    assert all(4 < float(line.split()[3]) < 8 for line in steps)
