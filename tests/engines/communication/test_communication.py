"""Knobs of NCCL and gloo: where they act, what reaches the ranks, and what is refused."""

import dataclasses

import pytest

from autotune.devices.hardware import Environment
from autotune.engines.communication.knobs import KNOBS, environment_of, expected_of
from autotune.engines.communication.rules import RULES, Communication
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.fleet.node.environment import allowed_environment
from autotune.job.model import load_model
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import canonical
from autotune.space.rule import judge_by
from tests.cases import data_beside
from tests.jobs import CPU, tiny_job

DATA = data_beside(__file__)

NODE = dataclasses.replace(
    CPU, accelerator="cuda", n_devices=8, device_name="NVIDIA H100 80GB HBM3", nccl="2.27.3"
)
EVERYTHING = DATA["EVERYTHING"]
ON_A_NODE = {
    *("nccl.all_reduce", "nccl.all_gather", "nccl.reduce_scatter", "nccl.proto"),
    *("nccl.min_channels", "nccl.max_channels", "nccl.buffer_bytes"),
}
GLOO = {"gloo.interfaces"}
BETWEEN_NODES = EVERYTHING.keys() - ON_A_NODE - GLOO


def acting(accelerator, world, n_devices=8, chosen=EVERYTHING):
    context = Context(
        model=load_model("tiny-llama").shape,
        world=world,
        global_batch=32,
        precision="bf16",
        accelerator=accelerator,
        n_devices=n_devices,
    )
    settled = canonical({"zero.stage": 3, **chosen}, context)
    return {name: value for name, value in settled.items() if name in EVERYTHING}


def test_every_knob_is_tried_here():
    assert EVERYTHING.keys() == KNOBS.keys()


@pytest.mark.parametrize(
    ("accelerator", "world", "names"),
    [
        ("cuda", 1, set()),
        ("cuda", 8, ON_A_NODE),
        ("cuda", 16, ON_A_NODE | BETWEEN_NODES),
        ("cpu", 1, set()),
        ("cpu", 8, GLOO),
        ("cpu", 16, GLOO),
    ],
)
def test_a_knob_that_cannot_act_is_in_no_candidate(accelerator, world, names):
    assert acting(accelerator, world).keys() == names


def test_the_librarys_own_choice_makes_no_other_candidate():
    defaults = {knob.name: knob.default for knob in KNOBS.values()}
    for accelerator in ("cpu", "cuda"):
        assert acting(accelerator, 16, chosen=defaults) == {}
    assert acting("cuda", 16, chosen={"nccl.min_channels": 1}) == {}  # there is always one
    assert acting("cuda", 16, chosen={"nccl.sockets_per_thread": 4}) == {}  # no thread, no socket


def test_loopback_is_what_the_fleet_names_on_one_node():
    assert acting("cpu", 2, chosen={"gloo.interfaces": "lo"}) == {}
    assert acting("cpu", 2, chosen={"gloo.interfaces": "lo,lo"}) == {"gloo.interfaces": "lo,lo"}
    assert acting("cpu", 16, chosen={"gloo.interfaces": "lo"}) == {"gloo.interfaces": "lo"}


@pytest.mark.parametrize(("stage", "collectives"), [(0, {"all_reduce"}), (3, None)])
def test_a_collective_is_chosen_where_deepspeed_calls_it(stage, collectives):
    found = acting("cuda", 8, chosen={**EVERYTHING, "zero.stage": stage})
    named = collectives or {"all_reduce", "all_gather", "reduce_scatter"}
    algorithms = ("all_reduce", "all_gather", "reduce_scatter")
    assert {name for name in algorithms if f"nccl.{name}" in found} == named


def test_variables_of_a_candidate():
    variables = environment_of(EVERYTHING, "2.27.3")
    assert variables == {
        "NCCL_ALGO": "allreduce:Tree;allgather:Ring;reducescatter:Ring",
        "NCCL_PROTO": "Simple",
        "NCCL_MIN_CTAS": "2",
        "NCCL_MAX_CTAS": "8",
        "NCCL_BUFFSIZE": "8388608",
        "NCCL_CROSS_NIC": "0",
        "NCCL_NET_GDR_LEVEL": "PHB",
        "NCCL_SOCKET_NTHREADS": "4",
        "NCCL_NSOCKS_PERTHREAD": "4",
        "NCCL_IB_QPS_PER_CONNECTION": "4",
        "GLOO_SOCKET_IFNAME": "eth0,eth1",
    }
    assert allowed_environment(variables) == variables
    expected = expected_of(EVERYTHING, "2.27.3")
    assert expected["nccl.all_reduce"] == "Tree"
    assert (expected["gloo_devices"], expected["gloo_threads"]) == (2, 4)


@pytest.mark.parametrize("release", ["2.16.5", ""])
def test_channels_have_their_old_name_where_the_new_one_may_be_unknown(release):
    variables = environment_of({"nccl.min_channels": 2, "nccl.max_channels": 8}, release)
    assert variables == {"NCCL_MIN_NCHANNELS": "2", "NCCL_MAX_NCHANNELS": "8"}


def refused(values, *, world=8, n_devices=8, tp=1, **more):
    run = Communication(
        values=values, world=world, n_devices=n_devices, tp=tp, dp=world // tp, **more
    )
    return {violation.rule: violation for violation in judge_by(RULES, run)}


@pytest.mark.cases("rule", "broken", "legal")
def test_a_rule_refuses_what_would_not_run_and_nothing_else(rule, broken, legal):
    found = refused(**broken)
    assert found.keys() == {rule}
    assert found[rule].fix
    assert all(name in found[rule].message for name in found[rule].at)
    assert refused(**legal) == {}


def test_every_rule_has_a_subject_and_a_source():
    for rule in RULES:
        assert rule.says.endswith(".")
        assert rule.source.startswith(("NCCL: ", "torch: "))


@pytest.mark.parametrize("values", [{"nccl.all_reduce": "tree"}, {"nccl.max_channels": 64}])
def test_of_an_unknown_release_nothing_is_refused(values):
    assert refused(values) == {}


@pytest.mark.cases("name", "is_refused")
def test_the_table_of_accelerators_says_who_lacks_nvls(tmp_path, name, is_refused):
    engine = engine_on(tmp_path, dataclasses.replace(NODE, device_name=name))
    found = {v.rule for v in engine.judge(candidate(engine, {"nccl.all_reduce": "nvls"}))}
    assert found == ({"nccl.nvls_device"} if is_refused else set())


def engine_on(folder, environment: Environment) -> DeepSpeedEngine:
    return DeepSpeedEngine(tiny_job(folder, global_batch=16, world=4), environment)


def candidate(engine, choice):
    knobs = canonical({"zero.stage": 2, "micro_batch": 1, **choice}, engine.context)
    return Candidate.of(knobs, world=4, global_batch=16)


def test_deepspeeds_ranks_get_the_variables_and_must_say_so(tmp_path):
    engine = engine_on(tmp_path, NODE)
    chosen = candidate(engine, {"nccl.all_reduce": "tree", "allocator": "expandable_segments"})
    variables = engine.ranks(chosen).environment
    assert variables["NCCL_ALGO"] == "allreduce:Tree"
    assert "PYTORCH_CUDA_ALLOC_CONF" in variables
    expected = engine.expected(chosen)
    assert expected["NCCL_ALGO"] == "allreduce:Tree"
    assert expected["nccl.all_reduce"] == "Tree"
    plain = candidate(engine, {})
    assert not [name for name in engine.ranks(plain).environment if name.startswith("NCCL")]
