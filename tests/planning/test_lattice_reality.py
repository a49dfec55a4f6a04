"""Held to reality: what is in a lattice passes the installed DeepSpeed's own classes.

Nothing is started: the classes are asked in this process, for every candidate of every shipped
space, over worlds of 1 to 8.
"""

import copy
import functools
import json
import logging
import random
from importlib.metadata import version
from pathlib import Path

import pytest

from autotune import DEFAULT_ENGINE
from autotune.base.data import shipped_spaces
from autotune.base.nested import look_up
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.releases import is_at_least
from autotune.job.job import make_job
from autotune.planning.lattice import build_lattice
from autotune.space.space_file import load_space
from tests.engines.deepspeed.rules.cases import NEWEST

GOLDEN = Path(__file__).parents[1] / "golden" / "lattice_sizes.json"
INSTALLED = version("deepspeed")
WORLDS = range(1, 9)
FEW_WORLDS = {
    "communication": (1, 2, 8),
    "cpu": (2, 8),
    "full": (2, 8),
    "compile": (1, 8),
    "long_context": (2, 6, 8),
    "lossy": (2, 8),
    "moe": (2, 6, 8),
    "script": (2, 8),
    "zeropp": (2, 3, 8),
    "parallel_3d": (1, 2, 6, 8),
}
"""Spaces whose candidates do not depend on the world beyond what these show."""
EVERY_RUN = (1, 6, 8)
"""Worlds of the other spaces in every run: one rank, a number that 3 divides, and 8."""
SAMPLE = 40
"""Candidates of a larger lattice that DeepSpeed's classes are asked about."""
SCRIPT = (
    *("recompute", "attention", "loss_chunk_tokens", "mlp_chunk_tokens", "compile"),
    "offload.activations",
)
PROCESS = ("allocator", "host_allocator", "core_binding")
COMMUNICATION = tuple(name for name, knob in KNOBS.items() if knob.group == "communication")
# One of each family; tiny-llama-32k differs from tiny-llama in sizes alone.
MODELS = ["tiny-gpt2", "tiny-llama", "tiny-mixtral"]
SPACES = shipped_spaces(DEFAULT_ENGINE)

# Divisible by every dp of these worlds times every micro-batch of the spaces.
GLOBAL_BATCH = 840 * 64


@pytest.fixture(scope="module")
def parse():
    """DeepSpeed's own reading of a ds_config in a world of the size given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        config = pytest.importorskip("deepspeed.runtime.config")
        logger = pytest.importorskip("deepspeed.utils").logger
        level = logger.level
        logger.setLevel(logging.ERROR)

        def parse(ds_config, world):
            patch.setattr(config.dist, "get_rank", lambda: 0)
            patch.setattr(config.dist, "get_world_size", lambda: world)
            return config.DeepSpeedConfig(copy.deepcopy(ds_config))

        yield parse
        logger.setLevel(level)


def made(model, space, world):
    environment = Environment(
        accelerator="cpu",
        n_devices=world,
        device_name="cpu",
        device_memory_bytes=2**36,
        peak_flops=None,
        deepspeed_version=INSTALLED,
        torch_version="2.13.0",
    )
    job = make_job(
        {
            "model": model,
            "seq_len": 64,
            "global_batch": GLOBAL_BATCH,
            "world": world,
            "precision": "bf16",
            "space": space,
            "nvme_path": "/tmp/swap",
        },
        where="test",
    )
    return job, environment, DeepSpeedEngine(job, environment)


@functools.cache
def lattice(model, space, world):
    _, _, engine = made(model, space, world)
    return build_lattice(load_space(space, KNOBS), engine)


def worlds_of(space):
    return FEW_WORLDS.get(space, tuple(WORLDS))


def counted_worlds(model, space):
    """Worlds in which every run looks: of the first model a few, of others the largest."""
    worlds = worlds_of(space)
    if model != MODELS[0]:
        return worlds[-1:]
    return tuple(world for world in worlds if world in EVERY_RUN or space in FEW_WORLDS)


def cases():
    """The first model in a few worlds, others in the largest; all of them if thorough."""
    for model in MODELS:
        for space in SPACES:
            for world in worlds_of(space):
                marks = [pytest.mark.thorough] * (world not in counted_worlds(model, space))
                yield pytest.param(model, space, world, marks=marks)


@pytest.mark.parametrize(("model", "space", "world"), cases())
def test_every_candidate_renders_parses_and_passes_deepspeeds_classes(
    model, space, world, parse, record_property
):
    found, engine = lattice(model, space, world), made(model, space, world)[2]
    n = len(found.candidates)
    record_property("candidates", n)
    places = range(n) if n <= SAMPLE else random.Random(0).sample(range(n), SAMPLE)
    for candidate in [found.candidates[place] for place in places if found.is_legal(place)]:
        text = engine.files(candidate)["ds_config.json"]
        # A pipeline's grid tells DeepSpeed how many ranks hold one copy of the model.
        copy_ranks = candidate.pp * candidate.tp if candidate.pp > 1 else 1
        copies, written = world // copy_ranks, json.loads(text)
        parsed = parse(written, copies)
        values = candidate.values
        read = read_from(parsed, written) | {"sp": int(copies / parsed.world_size)}
        experts = written.get("expert_parallel", {})
        read["ep"] = experts.get("autoep_size", 1)
        read["ep.dispatch"] = experts.get("comm_backend", "comm")
        read["ep.gate_up"] = experts.get("gate_up_impl", "separate")
        # No keys of a ds_config: what the script does, and what its processes start with.
        split = ("tp", "pp") if candidate.pp > 1 else ("pp",)
        others = (*SCRIPT, *PROCESS, *COMMUNICATION, *split)
        read |= {name: values[name] for name in others if name in values}
        assert {name: read[name] for name in values} == values
        assert parsed.gradient_accumulation_steps == candidate.grad_accum
        assert candidate.micro_batch * candidate.grad_accum * candidate.dp == GLOBAL_BATCH


@pytest.mark.skipif(not is_at_least(INSTALLED, NEWEST), reason="sizes are the newest's")
@pytest.mark.parametrize("is_every_world", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_no_lattice_shrinks(is_every_world):
    golden, sizes = json.loads(GOLDEN.read_text(encoding="utf-8")), {}
    for model in MODELS:
        for space in SPACES:
            worlds = worlds_of(space)
            known = dict(zip(worlds, golden[model].get(space, ()), strict=False))
            for world in worlds if is_every_world else counted_worlds(model, space):
                known[world] = len(lattice(model, space, world).candidates)
            sizes.setdefault(model, {})[space] = [known.get(world) for world in worlds]
    changed = [
        f"{model}, {space}, world {world}: {before} -> {size}; "
        f"refused {lattice(model, space, world).refused}"
        for model, by_space in sizes.items()
        for space, by_world in by_space.items()
        for world, size, before in zip(
            worlds_of(space),
            by_world,
            golden.get(model, {}).get(space, [0] * len(by_world)),
            strict=True,
        )
        if size != before
    ]
    assert not changed, f"if it is meant, {GOLDEN} becomes {json.dumps(sizes)}"
    assert sizes == golden


def test_every_value_of_a_knob_that_acts_survives_the_rules():
    survived = {}
    for space in SPACES:
        for name, values in lattice("tiny-llama", space, 8).values.items():
            survived.setdefault(name, set()).update(values)
    stages = {0, 1, 2, 3} if is_at_least(INSTALLED, "0.17.6") else {1, 2, 3}
    assert survived["zero.stage"] == stages
    assert survived["micro_batch"] == {1, 2, 4, 8, 16, 32, 64}
    assert survived["recompute"] == {"none", "full", "every_2"}
    assert survived["overlap_comm"] == {False, True}
    assert survived["offload.optimizer"] == survived["offload.param"] == {"none", "cpu", "nvme"}
    # The job trains in bf16: asked for by name it is the same run as `model`, but in fp16.
    assert survived["communication_dtype"] == {"model", "bf16", "fp32"}
    assert survived["precision"] == {"default", "fp16"}
    if is_at_least(INSTALLED, "0.18.6"):
        assert {1, 2} <= survived["tp"]
    else:
        assert "tp" not in survived


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_defaults_are_deepspeeds_own(stage, parse):
    one_sample = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
    zero = parse(one_sample, 1).zero_config
    for name, theirs in {
        "reduce_bucket_size": zero.reduce_bucket_size,
        "allgather_bucket_size": zero.allgather_bucket_size,
        "overlap_comm": zero.overlap_comm,
        "stage3.param_persistence_threshold": zero.param_persistence_threshold,
        "stage3.max_live_parameters": zero.max_live_parameters,
        "stage3.prefetch_bucket_size": zero.prefetch_bucket_size,
        "offload.optimizer": _device(zero.offload_optimizer),
        "offload.param": _device(zero.offload_param),
    }.items():
        if stage in KNOBS[name].when.get("zero.stage", (stage,)):
            assert KNOBS[name].default_for({"zero.stage": stage}) == theirs, name


def test_the_allgather_bucket_is_not_read(parse, monkeypatch):
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("deepspeed.runtime.utils")
    backend = pytest.importorskip("deepspeed.comm.torch").TorchBackend
    calls = []

    class Recorder:
        """In place of deepspeed.comm: two ranks, and what this one is asked to gather."""

        has_all_gather_into_tensor = staticmethod(
            lambda: backend.get_all_gather_function() is not None
        )
        get_rank = staticmethod(lambda group: 0)
        get_world_size = staticmethod(lambda group: 2)
        all_gather_into_tensor = staticmethod(lambda whole, part, group: calls.append(len(part)))
        all_gather = staticmethod(lambda parts, part, group: calls.append(len(part)))

    monkeypatch.setattr(utils, "dist", Recorder)
    flat = torch.zeros(64)
    for bucket in (2, 10**9):
        utils.all_gather_dp_groups([flat], [[flat[:32], flat[32:]]], [None], 2, bucket)
    assert calls == [32, 32]


def read_from(parsed, text):
    """Every knob that has a key, from DeepSpeed's own reading of a configuration."""
    zero = parsed.zero_config
    optimizer, param = zero.offload_optimizer, zero.offload_param
    # What an older release lacks, its lattice does not have: None, false, or the plain value.
    low = getattr(parsed, "bfloat16_config", None)
    masters = getattr(low, "bf16_master_weights_and_grads", None) or look_up(
        text, "fp16.fp16_master_weights_and_grads"
    )
    params = text["optimizer"]["params"]
    implementation = "torch_fused" if params.get("fused") else "torch"
    zenflow = getattr(zero, "zenflow", None)
    return {
        "zero.stage": int(zero.stage),
        "tp": max(1, parsed.tensor_parallel_config.autotp_size),
        "tp.overlap_comm": parsed.tensor_parallel_config.tp_overlap_comm,
        "tp.head": {None: "default", False: "gathered", True: "split"}[
            parsed.tensor_parallel_config.vocab_parallel_lm_head
        ],
        "tp.loss": parsed.tensor_parallel_config.vocab_parallel_ce_backend,
        "micro_batch": parsed.train_micro_batch_size_per_gpu,
        "offload.optimizer": _device(optimizer),
        "offload.param": _device(param),
        "offload.ratio": optimizer.ratio if optimizer else None,
        "offload.super": bool(getattr(optimizer, "super_offload", False)),
        "offload.pipeline": "both" if optimizer and optimizer.pipeline else "none",
        "offload.param_buffer_count": param.buffer_count if param else None,
        "offload.param_max_in_cpu": param.max_in_cpu if param else None,
        "zenflow": "sequential" if zenflow else "none",
        "zenflow.topk_ratio": zenflow.topk_ratio if zenflow else None,
        "zenflow.select_interval": (
            zenflow.select_interval // parsed.gradient_accumulation_steps if zenflow else None
        ),
        "precision": next((n for n in ("bf16", "fp16") if text.get(n, {}).get("enabled")), "fp32"),
        "grad_accum_dtype": _dtype(DTYPES.get(parsed.grad_accum_dtype)),
        "master_dtype": "model" if masters else "fp32",
        "optimizer_states_dtype": (
            "model" if getattr(low, "bf16_optimizer_states", False) else "fp32"
        ),
        "contiguous_gradients": zero.contiguous_gradients,
        "reduce_scatter": zero.reduce_scatter,
        "round_robin_gradients": zero.round_robin_gradients,
        "reduce_bucket_size": zero.reduce_bucket_size,
        "overlap_comm": zero.overlap_comm,
        "stage3.param_persistence_threshold": zero.param_persistence_threshold,
        "stage3.max_live_parameters": zero.max_live_parameters,
        "stage3.prefetch_bucket_size": zero.prefetch_bucket_size,
        "stage3.max_reuse_distance": zero.max_reuse_distance,
        "stage3.sub_group_size": zero.sub_group_size,
        "zeropp.hpz_partition_size": zero.zero_hpz_partition_size,
        "zeropp.quantized_weights": zero.zero_quantized_weights,
        "zeropp.quantized_gradients": zero.zero_quantized_gradients,
        "communication_dtype": _dtype(parsed.communication_data_type),
        "optimizer.implementation": implementation if params.get("torch_adam") else "deepspeed",
    }


DTYPES = {None: None, "fp32": "torch.float32", "bf16": "torch.bfloat16"}


def _device(section):
    return "none" if section is None else str(getattr(section.device, "value", section.device))


def _dtype(dtype):
    names = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}
    return "model" if dtype is None else names[str(dtype)]
