"""What each consumer and each launcher of nodes reads of an export, frozen."""

import pytest

from tests import snapshots
from tests.export.dialects.test_megatron_lm import DENSE, exported
from tests.export.handed import GPUS, export, handed
from tests.jobs import CPU

TWO_NODES = {"world": 16, "global_batch": 32}
READ = {".json", ".yaml"}
"""Suffixes of files that programs read."""
NOT_READ = {"autotune_export.json", "megatron_args.json"}
"""What says whose folder it is, and what is for a soak of it."""


def check_files(folder, name):
    files = [each for each in sorted(folder.iterdir()) if each.suffix in READ]
    texts = [f"== {one.name}\n{one.read_text()}" for one in files if one.name not in NOT_READ]
    snapshots.check(f"exports/{name}.txt", "\n".join(texts).replace(str(folder), "FOLDER"))


@pytest.mark.cases("to", "launcher", "on", "job", "knobs")
def test_files_of_deepspeed_s_candidates(tmp_path, request, to, launcher, on, job, knobs):
    there = {"environment": CPU if on == "cpu" else GPUS}
    job = TWO_NODES if on == "two nodes" else job
    out = export(handed(tmp_path, **there, job=job, **knobs), tmp_path, to, launcher)
    check_files(out, request.node.callspec.id)


@pytest.mark.cases("to", "model", "gpu", "settings")
def test_files_of_megatron_s_layouts(tmp_path, request, to, model, gpu, settings):
    out = exported(tmp_path, {**DENSE, "model": model}, settings, to=to, gpu=gpu)
    check_files(out, request.node.callspec.id)
