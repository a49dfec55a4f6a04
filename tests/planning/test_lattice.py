from collections import Counter

import numpy as np
import pytest

from autotune.base.errors import NothingFeasibleError
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.rules.base import Setup
from autotune.job.job import make_job
from autotune.planning.lattice import MOST_COUNTED, build_lattice
from autotune.space.knob import Context
from autotune.space.rule import Violation, nothing_legal
from autotune.space.space_file import load_space

ENVIRONMENT = Environment(
    accelerator="cpu",
    n_devices=2,
    device_name="cpu",
    device_memory_bytes=2**34,
    peak_flops=None,
    deepspeed_version="0.19.8",
    torch_version="2.13.0",
)


class PlainEngine:
    """Renders nothing but what the rules below look at."""

    name = "plain"

    def __init__(self, job, base_knobs):
        self.job, self.decided_by = job, {}
        self.context = Context.of(job, ENVIRONMENT, base=base_knobs)

    def refused_rows(self, rows):
        return None

    def judge(self, candidate):
        return judge(self.setup(candidate))

    def setup(self, candidate):
        return Setup(
            ds_config={
                "train_micro_batch_size_per_gpu": candidate.micro_batch,
                "gradient_accumulation_steps": candidate.grad_accum,
                "zero_optimization": {"stage": candidate["zero.stage"]},
            },
            ranks=candidate.world,
            tp=candidate.tp,
            pp=candidate.pp,
            global_batch=candidate.global_batch,
            seq_len=self.job.seq_len,
            recompute=str(candidate["recompute"]),
            precision=self.job.precision,
            model=self.job.model.shape,
            supports_tp=self.job.model.supports_tp,
            supports_recompute=self.job.model.supports_recompute,
            environment=ENVIRONMENT,
        )


def judge(setup):
    """Two rules: the global batch is exact, and a limit that tests can provoke."""
    found = []
    micro_batch = setup.ds_config["train_micro_batch_size_per_gpu"]
    samples = micro_batch * setup.ds_config["gradient_accumulation_steps"] * setup.world
    if samples != setup.global_batch:
        found.append(
            Violation(
                rule="batch.exact",
                message=f"{samples} != {setup.global_batch}",
                fix=f"micro_batch {micro_batch // 2 or 1}",
            )
        )
    if setup.stage == 3:
        found.append(Violation(rule="zero.not_three", message="stage 3", fix="stage 2"))
    return found


def job(**changes):
    given = {"model": "tiny-llama", "seq_len": 64, "global_batch": 12, "world": 2}
    return make_job({**given, **changes}, where="test")


def build(space="smoke", base_knobs=None, most_counted=MOST_COUNTED, **changes):
    made = job(**changes)
    engine = PlainEngine(made, base_knobs or {})
    return build_lattice(load_space(space, KNOBS), engine, most_counted=most_counted)


@pytest.fixture(scope="module")
def zero():
    return build("zero", global_batch=24)


@pytest.fixture
def space_file(tmp_path):
    def write(knobs):
        path = tmp_path / "mine.yaml"
        path.write_text(f"name: mine\nknobs: {knobs}\n", encoding="utf-8")
        return str(path)

    return write


def test_the_lattice_is_what_the_rules_let_through():
    lattice = build()
    shown = [(c["zero.stage"], c["micro_batch"], c.grad_accum) for c in lattice.candidates]
    # 12 samples over two ranks: 8 does not divide 6, 4 does not either.
    assert shown == [(s, m, 6 // m) for s in (0, 1, 2) for m in (1, 2)]
    assert lattice.grid_size == 16
    assert lattice.refused == {"batch.exact": 8, "zero.not_three": 4}
    candidate, violation = lattice.examples["batch.exact"]
    assert (candidate["micro_batch"], violation.message) == (4, "8 != 12")
    assert set(lattice.examples) == set(lattice.refused)


def test_of_many_each_is_judged_when_it_is_wanted():
    whole, lazy = build(), build(most_counted=0)
    assert len(lazy.candidates) == 16
    assert not lazy.is_counted
    refused = lazy.candidates[3]
    assert not lazy.is_legal(3)
    assert "batch.exact" in lazy.examples
    assert lazy.nearest(refused.values) == whole.nearest(refused.values)
    assert lazy.nearest(refused.values) in whole.candidates
    left, places = lazy.without_refused()
    assert refused not in left.candidates
    assert len(left.candidates) == len(places) == 16 - len(lazy.refused_places)
    assert left.n_judged == lazy.n_judged - len(lazy.refused_places)
    assert left.n_left == lazy.n_left == len(left.candidates)
    counted = left.counted()
    assert counted.is_counted
    assert list(counted.candidates) == list(whole.candidates)
    assert counted.refused == whole.refused


@pytest.mark.parametrize("most_counted", [0, MOST_COUNTED])
def test_nothing_legal_says_which_rules_and_what_would_do(space_file, most_counted):
    space = space_file("{zero.stage: [2, 3], micro_batch: [4, 8]}")
    with pytest.raises(NothingFeasibleError) as caught:
        build(space, most_counted=most_counted)
    assert "none of its 4 candidates is legal" in caught.value.message
    assert "batch.exact (4), zero.not_three (2)" in caught.value.message
    assert "micro_batch=4" in caught.value.hint
    assert "8 != 12" in caught.value.hint
    assert "micro_batch 2" in caught.value.hint
    assert "stage 2" not in caught.value.hint


def test_the_nearest_is_told_by_three_settings_those_of_the_clash_first():
    clash = Violation(rule="zero.host", message="zero.stage 0 holds all", fix="zero.stage 1")
    nearest = {"tp": "1", "pp": "1", "sp": "1", "micro_batch": "8", "zero.stage": "0"}
    told = nothing_legal("refused by", Counter({"zero.host": 2}), nearest, [clash])
    assert told.hint.startswith("the nearest is [zero.stage=0, tp=1, pp=1, 2 more]: zero.stage 0")


def test_values_are_those_that_vary(zero):
    assert zero.values["zero.stage"] == (0, 1, 2)
    assert zero.values["micro_batch"] == (1, 2, 4)
    assert zero.values["overlap_comm"] == (False, True)
    assert set(zero.values["recompute"]) == {"none", "every_2", "full"}
    # Stage 3 is refused here, and one value is nothing to choose.
    assert not any(name.startswith("stage3.") for name in zero.values)
    assert "offload.optimizer" not in zero.values


def test_a_candidate_of_the_lattice_is_nearest_to_itself(zero):
    for candidate in zero.candidates[::7]:
        distances = zero.distances(candidate.values)
        assert zero.nearest(candidate.values) == candidate
        assert distances.min() == 0
        assert (distances == 0).sum() == 1


def test_the_nearest_open_candidate_differs_in_little(zero):
    start = zero.candidates[len(zero.candidates) // 2]
    closed = {start.hash}
    following = zero.nearest(start.values, closed)
    assert following != start
    order = [start.values]
    while (candidate := zero.nearest(start.values, closed)) is not None:
        closed.add(candidate.hash)
        order.append(candidate.values)
    assert len(closed) == len(zero.candidates)
    gaps = [zero.distances(start.values)[zero.candidates.index(zero.nearest(v))] for v in order]
    assert gaps == sorted(gaps)


def test_distance_counts_logarithms_on_numbers_and_one_on_choices(space_file):
    lattice = build(
        space_file("{micro_batch: [1, 2, 3, 6], recompute: [none, full], zero.stage: [0, 1]}")
    )
    span = np.log2(7) - np.log2(2)
    point = {"micro_batch": 2, "recompute": "none", "zero.stage": 0}

    def distance(micro_batch, recompute, stage):
        wanted = (micro_batch, recompute, stage)
        index = next(
            i
            for i, c in enumerate(lattice.candidates)
            if (c["micro_batch"], c["recompute"], c["zero.stage"]) == wanted
        )
        return lattice.distances(point)[index]

    assert distance(2, "none", 0) == 0
    assert distance(3, "none", 0) == pytest.approx((np.log2(4) - np.log2(3)) / span)
    # Recomputed inputs may wait on the host: a knob that acts only there.
    assert distance(2, "full", 0) == 1 + 1
    # The stage itself, and each of the knobs that act only there.
    conditional = {
        *("offload.optimizer", "reduce_bucket_size", "overlap_comm", "contiguous_gradients"),
        *("reduce_scatter", "round_robin_gradients", "grad_accum_dtype", "master_dtype"),
    }
    assert distance(2, "none", 1) == 1 + len(conditional)


def test_a_proposal_beyond_the_lattice_is_snapped_to_its_edge(zero):
    assert zero.nearest({"micro_batch": 4096, "zero.stage": 3})["micro_batch"] == 4
    assert zero.nearest({"zero.stage": 3})["zero.stage"] == 2
    noisy = {"zero.stage": 0, "micro_batch": 2, "stage3.prefetch_bucket_size": 0}
    assert zero.nearest(noisy) == zero.nearest({"zero.stage": 0, "micro_batch": 2})


def test_a_users_base_configuration_is_the_default():
    lattice = build(base_knobs={"reduce_bucket_size": 1234})
    staged = [c for c in lattice.candidates if c["zero.stage"] > 0]
    assert {c["reduce_bucket_size"] for c in staged} == {1234}


def test_what_a_space_varies_at_times_is_not_fixed_by_the_base_at_others(space_file):
    knobs = {
        "zero.stage": [1],
        "compile": ["none", "torch"],
        "offload.optimizer": {"values": ["none", "cpu"], "when": {"compile": "none"}},
    }
    lattice = build(space_file(knobs), base_knobs={"offload.optimizer": "cpu"})
    found = {(c["compile"], c["offload.optimizer"]) for c in lattice.candidates}
    assert found == {("none", "none"), ("none", "cpu"), ("torch", "none")}
