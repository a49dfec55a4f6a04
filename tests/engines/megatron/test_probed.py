"""Single ranks of large layouts, each trained alone: what they hold is what is predicted."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from autotune.app.api.predictions import estimate
from autotune.base.errors import JobError
from autotune.engines.megatron.flags import release_of, releases
from autotune.engines.megatron.probed import FLAG, _words_of_fakes, micro_batches, ranks_of
from tests.engines.megatron.trained import LLAMA, MIXTRAL

STATES = ("params_bytes", "grads_bytes", "optimizer_bytes")
WITHIN = 0.03
CHECKOUT = os.environ.get("MEGATRON_PATH", "")
SHARED = {
    **{"tp": 2, "pp": 4, "sequence_parallel": True, "distributed_optimizer": True},
    "micro_batch": 1,
}


def row(**columns):
    return {"tp": 1, "pp": 1, "cp": 1, "order": 0, "grad_accum": 64, **columns}


def test_ranks_are_the_first_of_their_tensor_parallel_ranks():
    assert ranks_of(row(tp=4, pp=8), 64) == [0, 32, 60]
    assert ranks_of(row(tp=2, pp=4, order=1), 32) == [0, 4, 30]
    assert ranks_of(row(tp=2), 8) == [0, 6]
    assert ranks_of(row(), 1) == [0]


def test_a_step_has_as_many_micro_batches_as_fill_the_pipeline():
    assert micro_batches(row(pp=4)) == 8
    assert micro_batches(row(pp=4, grad_accum=4)) == 4


def test_a_release_without_fake_groups_is_refused():
    assert _words_of_fakes("0.16")[0] == FLAG
    with pytest.raises(JobError, match=r"0\.15 has no --fake-process-group"):
        _words_of_fakes("0.15")


def test_what_needs_a_gpu_or_another_engine_is_refused():
    job = {"model": "tiny-llama", "seq_len": 128, "global_batch": 64, "world": 4}
    with pytest.raises(JobError, match="cp 2: needs a fused attention kernel"):
        estimate("cp=2", probe_memory=True, engine="megatron", gpu="H100", **job)
    with pytest.raises(JobError, match="a rank of the engine deepspeed cannot run without"):
        estimate(probe_memory=True, gpu="H100", **job)
    with pytest.raises(JobError, match="--trace and --probe-memory"):
        estimate(probe_memory=True, trace=True, **job)


def probed(folder, settings, *, config=LLAMA, **job):
    """A probe of a layout, as `--json` prints it."""
    model = folder / "config.json"
    model.write_text(json.dumps(config))
    keys = {"seq_len": 32, "global_batch": 64, "world": 32, "precision": "bf16", **job}
    found = estimate(settings, probe_memory=True, engine="megatron", model=str(model), **keys)
    return found.as_dict()


def check_states(found):
    """The fullest rank holds what is predicted."""
    for name in STATES:
        fullest = max(rank[name] for rank in found["probed_ranks"])
        assert fullest == pytest.approx(found["pred_states_bytes"][name], rel=WITHIN)
    assert all(rank["peak_memory_bytes"] > 0 for rank in found["probed_ranks"])


@pytest.mark.real
@pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed")
@pytest.mark.parametrize(
    ("config", "settings"),
    [
        pytest.param(LLAMA, SHARED, id="dense", marks=pytest.mark.thorough),
        pytest.param(MIXTRAL, {"pp": 2, "ep": 4, "micro_batch": 1}, id="experts"),
    ],
)
def test_ranks_of_a_world_that_is_not_here_hold_what_is_predicted(tmp_path, config, settings):
    found = probed(tmp_path, settings, config=config)
    check_states(found)
    n_layers = [rank["n_layers"] for rank in found["probed_ranks"]]
    assert n_layers == [4 // settings["pp"]] * 3


@pytest.mark.real
@pytest.mark.skipif(
    not CHECKOUT or release_of(Path(CHECKOUT)) not in releases()[releases().index("0.16") :],
    reason="MEGATRON_PATH names no checkout of Megatron-LM from 0.16 on",
)
def test_ranks_of_a_checkout_hold_what_is_predicted(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(f"megatron_path: {CHECKOUT}\nengine: megatron\n")
    check_states(probed(tmp_path, SHARED, job=job, trust_job=True))
