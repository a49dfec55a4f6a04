"""The lattice of Megatron layouts: the legal ones, counted by loops, and their predictions."""

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base.errors import FleetError, JobError, NothingFeasibleError
from autotune.cost import Recompute, predict
from autotune.cost.table import rows_to_plans
from autotune.devices.accelerators import shipped_accelerators
from autotune.engines.megatron import knobs
from autotune.engines.megatron.baseline import ladder
from autotune.engines.megatron.engine import MegatronEngine, padded_vocab, task_of
from autotune.engines.megatron.knobs import KNOBS, LATTICE_KNOBS, columns_of
from autotune.engines.megatron.layout_task import LayoutRows, LayoutTask
from autotune.engines.megatron.layouts import Layouts, lay_out
from autotune.engines.megatron.rules import RULES
from autotune.engines.megatron.stages import balanced_layers
from autotune.job.job import make_job
from autotune.planning.lattice import lattice_of
from autotune.planning.outlook import FleetWishes, described
from autotune.space.candidate import Candidate
from autotune.space.knobs import canonical, parse_settings
from autotune.space.rule import Violation, judge_by
from autotune.trial.engines.megatron import ARGUMENTS_FILE
from tests.cost.rows import row
from tests.jobs import A100, CPU, tiny_job

TASK = LayoutTask(
    n_layers=8,
    n_heads=8,
    n_kv_heads=4,
    ffn_hidden=64,
    n_experts=0,
    seq_len=64,
    max_seq_len=0,
    global_batch=32,
    world=16,
    domain=8,
    fused_attention=True,
)
H100 = dataclasses.replace(A100, device_name="NVIDIA H100 80GB HBM3")
Row = tuple[int, ...]
ORDER = (
    *LATTICE_KNOBS,
    *("recompute_modules", "recompute_layers", "stages", "etp", "dp", "grad_accum"),
)
MOE = knobs.code_of(KNOBS["recompute_modules"], "moe")


def task(**changes: Any) -> LayoutTask:
    return dataclasses.replace(TASK, **changes)


def splits(task: LayoutTask) -> Iterator[SimpleNamespace]:
    """Where ranks, layers and sequences go; Megatron's words, one at a time."""
    for tp in range(1, min(task.world, task.domain) + 1):
        is_mixture = task.n_experts > 1
        if task.n_heads % tp or (not is_mixture and task.ffn_hidden % tp):
            continue
        if task.n_kv_heads % tp and tp % task.n_kv_heads:
            continue
        for pp in range(1, min(task.world, task.n_layers) + 1):
            for cp in range(1, task.world + 1):
                if task.world % (tp * pp * cp):
                    continue
                if cp > 1 and (task.seq_len % (2 * cp) or not task.fused_attention):
                    continue
                for ep in range(1, max(1, task.n_experts) + 1):
                    for etp in (0, 1) if tp > 1 and ep > 1 else (0,):
                        expert_tp = etp or tp
                        if max(1, task.n_experts) % ep or task.world % (expert_tp * pp * ep):
                            continue
                        if is_mixture and task.ffn_hidden % expert_tp:
                            continue
                        dp = task.world // (tp * pp * cp)
                        yield SimpleNamespace(tp=tp, pp=pp, cp=cp, ep=ep, dp=dp, etp=etp)


def chunks(task: LayoutTask, pp: int) -> Iterator[tuple[int, int, int, int]]:
    """Interleaved chunks, whether the ends count as layers, whether stages are balanced, and the
    layers of a chunk; 0: they differ."""
    for vp in range(1, task.n_layers + 3):
        if vp > 1 and pp == 1:
            continue
        whole = (task.n_layers + 2) // (pp * vp)
        if pp * vp <= task.n_layers and task.n_layers % (pp * vp) == 0:
            yield vp, 0, 0, task.n_layers // (pp * vp)
        elif pp * vp <= task.n_layers + 2 * (vp > 1) and (task.n_layers + 2) % (pp * vp) == 0:
            yield vp, 1, 0, whole
        if pp > 1 and vp in (1, 2, 4, 8, 16) and pp * vp <= task.n_layers + 1:
            counts = balanced_layers(task.stage_work, pp, vp)
            as_ends = [whole - 1, *[whole] * (pp * vp - 2), whole - 1]
            if len({*counts}) > 1 and [*counts] != as_ends:
                yield vp, 0, 1, 0


def by_loops(task: LayoutTask) -> list[Row]:
    """Every legal layout, in the columns of `ORDER`."""
    found = []
    for at in splits(task):
        is_mixture = task.n_experts > 1
        for sequence in (0, 1):
            if sequence and (at.tp == 1 or (task.seq_len // at.cp) % at.tp):
                continue
            if is_mixture and at.tp > 1 and not sequence:
                continue
            for vp, ends, balanced, layers in chunks(task, at.pp):
                for micro_batch in range(1, task.global_batch + 1):
                    if task.global_batch % (micro_batch * at.dp):
                        continue
                    accum = task.global_batch // (micro_batch * at.dp)
                    if vp > 1 and accum % at.pp:
                        continue
                    for sharded in (0, 1) if at.dp * at.cp > 1 else (0,):
                        for kind, modules, block in recomputed(task, layers):
                            split = (at.tp, at.pp, vp, ends, at.cp, at.ep, sequence)
                            choices = (micro_batch, sharded, kind, modules, block)
                            found.append((*split, *choices, balanced, at.etp, at.dp, accum))
    return found


def recomputed(task: LayoutTask, layers: int) -> Iterator[tuple[int, int, int]]:
    yield int(Recompute.NONE), 0, 0
    yield int(Recompute.FULL), 0, 0
    if not task.fused_attention:
        yield int(Recompute.SELECTIVE), 0, 0
    if task.n_experts > 1:
        yield int(Recompute.SELECTIVE), MOE, 0
    for quarters in (1, 2, 3):
        if layers and layers * quarters % 4 == 0:
            yield int(Recompute.FULL), 0, layers * quarters // 4


def rows_of(layouts: Layouts) -> list[Row]:
    columns = [layouts.columns[name] for name in ORDER]
    return [tuple(map(int, one)) for one in zip(*columns, strict=True)]


def differing(found: list[Row], expected: list[Row]) -> list[Row]:
    """Some rows that one of the two has, or has more often."""
    ours, unexpected = Counter(found), Counter(expected)
    return sorted(((ours - unexpected) | (unexpected - ours)).elements())[:3]


@pytest.mark.cases("changes")
def test_the_lattice_is_what_loops_find(changes):
    asked = task(**changes)
    assert not differing(rows_of(lay_out(asked)), by_loops(asked))


@settings(max_examples=25, deadline=None)
@given(
    asked=st.builds(
        LayoutTask,
        n_layers=st.integers(1, 10),
        n_heads=st.integers(1, 12),
        n_kv_heads=st.sampled_from([1, 2, 3, 4]),
        ffn_hidden=st.sampled_from([7, 12, 64]),
        n_experts=st.sampled_from([0, 1, 4, 6]),
        seq_len=st.sampled_from([2, 12, 30, 64]),
        max_seq_len=st.just(0),
        global_batch=st.integers(1, 24),
        world=st.integers(1, 12),
        domain=st.sampled_from([1, 4, 8]),
        fused_attention=st.booleans(),
    )
)
def test_every_task_has_the_layouts_that_loops_find(asked):
    expected = sorted(by_loops(asked))
    if not expected:
        with pytest.raises(NothingFeasibleError):
            lay_out(asked)
        return
    assert not differing(rows_of(lay_out(asked)), expected)


@pytest.mark.cases("changes", "rule")
def test_a_job_without_a_legal_layout_says_what_refuses_the_nearest(changes, rule):
    with pytest.raises(NothingFeasibleError) as error:
        lay_out(task(**changes))
    assert rule in error.value.message
    assert "the nearest is [" in error.value.hint
    assert "tp=" in error.value.hint


def test_a_layout_is_judged_alike_in_columns_and_alone():
    keys = {"model": "llama-2-7b", "world": 8, "seq_len": 64, "global_batch": 96}
    there = described(FleetWishes(gpu="H100"), shipped_accelerators(), where="--gpu")
    engine = MegatronEngine(make_job({**keys, "precision": "bf16"}, where="test"), there)
    layouts, draw = lay_out(engine._task), random.Random(0)
    for _ in range(150):
        one, other = (layouts[draw.randrange(len(layouts))] for _ in range(2))
        name = draw.choice(sorted(one.values))
        changed = dataclasses.replace(
            one, knobs=tuple(sorted({**one.values, name: other[name]}.items()))
        )
        rows = knobs.rows_of(engine._task, [changed])
        alone = {violation.rule for violation in engine.judge(changed)}
        assert alone == {rule.name for rule in RULES if not rule.holds(rows).all()}
        assert not (alone and changed in layouts), changed
        assert not engine.judge(other)


def test_a_large_space_is_judged_in_columns_as_its_candidates_are_alone(tmp_path):
    shape = {"precision": "bf16", "world": 8, "global_batch": 128}
    job = tiny_job(tmp_path, engine="megatron", space="megatron", **shape)
    engine = MegatronEngine(job, dataclasses.replace(H100, n_devices=8))
    lattice = lattice_of(engine)
    assert lattice.is_counted
    assert 100 < lattice.n_left < lattice.grid_size
    for rule, (candidate, violation) in lattice.examples.items():
        assert violation in engine.judge(candidate), rule
    drawn = random.Random(0).sample(range(lattice.n_left), 40)
    assert not any(engine.judge(lattice.candidates[place]) for place in drawn)


def test_more_layouts_than_memory_holds_are_refused(monkeypatch):
    monkeypatch.setattr("autotune.engines.megatron.layouts._MOST_ROWS", 50)
    with pytest.raises(JobError, match="layouts to judge at once, at most 50"):
        lay_out(task())


BROKEN: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("broken_layouts.yaml").read_text(encoding="utf-8")
)


def one(asked: LayoutTask, settings: str) -> Candidate:
    defaults = {name: knob.default for name, knob in LATTICE_KNOBS.items()}
    values = {**defaults, **parse_settings(settings.split(), KNOBS)}
    return Candidate.of(values, world=asked.world, global_batch=asked.global_batch)


def broken(asked: LayoutTask, candidate: Candidate) -> list[Violation]:
    return judge_by(RULES, LayoutRows(task=asked, columns=columns_of([candidate])))


def test_every_rule_has_a_layout_that_breaks_it_and_says_so():
    for rule in (rule.name for rule in RULES):
        changes = dict(BROKEN[rule])
        settings = changes.pop("breaks")
        asked = task(**changes)
        found = {violation.rule: violation for violation in broken(asked, one(asked, settings))}
        assert rule in found
        assert "{" not in found[rule].message + found[rule].fix, rule


def test_legal_layouts_break_no_rule_when_they_are_read_back():
    layouts = lay_out(task(n_experts=4))
    for index in range(0, len(layouts), 97):
        read = columns_of([layouts[index]])
        assert {name: int(column[0]) for name, column in read.items()} == layouts.row(index)
        assert not broken(layouts.task, layouts[index])
        assert layouts.index(layouts[index]) == index
        assert layouts[index] in layouts
    assert list(layouts[3:5]) == [layouts[3], layouts[4]]
    other = one(layouts.task, "tp=3")
    assert other not in layouts
    with pytest.raises(ValueError, match="none of the layouts"):
        layouts.index(other)


@pytest.mark.cases("settings", "fewer", "more")
def test_a_knob_has_its_effect_on_memory(tmp_path, settings, fewer, more):
    engine = MegatronEngine(
        tiny_job(tmp_path, engine="megatron", precision="bf16", world=8, global_batch=8), H100
    )
    values = {name: knob.default for name, knob in LATTICE_KNOBS.items()}
    sharded = {"distributed_optimizer": "distributed_optimizer=true" in settings}
    found = [
        predict(
            engine.plans([Candidate.of(canonical(v, engine.context), world=8, global_batch=8)])
        )
        for v in (values | sharded, values | parse_settings(settings.split(), KNOBS))
    ]
    assert not engine.judge(Candidate.of(values | sharded, world=8, global_batch=8))
    before, after = (prediction.memory for prediction in found)
    assert np.ravel(getattr(after, fewer))[0] < np.ravel(getattr(before, fewer))[0]
    if more:
        assert np.ravel(getattr(after, more))[0] > np.ravel(getattr(before, more))[0]


@pytest.mark.cases("setting", "message")
def test_a_setting_that_is_none_says_what_is(setting, message):
    with pytest.raises(JobError) as error:
        parse_settings([setting], KNOBS)
    assert message in f"{error.value.message} {error.value.hint}"


@pytest.mark.parametrize("layout", ["Ett|tt|m|L", "E|tt|tt|mL"])
def test_a_written_layout_is_expected_as_it_is_written(tmp_path, layout):
    asked = job(tmp_path, model="tiny-deepseek-v3", seq_len=64, global_batch=8, world=4)
    engine = MegatronEngine(asked, A100)
    expected = engine.expected(one(task_of(asked, A100), f"pp=4 stages={layout}"))
    stages = layout.split("|")
    assert expected["stages"] == layout
    assert expected["stage_layers"] == [stage.count("t") + stage.count("m") for stage in stages]


@pytest.mark.cases("name", "settings")
def test_what_is_off_its_default_is_read_back(tmp_path, name, settings):
    asked = job(tmp_path, model="tiny-deepseek-v3")
    engine, task = MegatronEngine(asked, A100), task_of(asked, A100)
    candidate = one(task, settings)
    assert engine.expected(candidate)[name] == candidate[name]
    assert name not in engine.expected(one(task, "tp=1 cp=2"))


@pytest.mark.cases("n_layers", "settings", "stage_layers")
def test_stages_with_the_ends_as_layers_are_read_back(tmp_path, n_layers, settings, stage_layers):
    engine, candidate = with_ends_as_layers(tmp_path, n_layers, settings)
    assert engine.expected(candidate)["stage_layers"] == stage_layers


def with_ends_as_layers(folder, n_layers, settings):
    asked = job(folder, model="llama-2-7b", world=4)
    engine = MegatronEngine(dataclasses.replace(asked, model=asked.model_with(n_layers)), A100)
    return engine, one(task_of(asked, A100), f"{settings} ends_as_layers=true")


def test_the_first_and_the_last_chunk_may_have_the_embedding_and_the_loss_alone(tmp_path):
    engine, candidate = with_ends_as_layers(tmp_path, 6, "pp=2 vp=4")
    assert candidate in engine.layouts()
    assert not engine.judge(candidate)
    arguments = json.loads(engine.files(candidate)[ARGUMENTS_FILE])
    assert arguments["num_virtual_stages_per_pipeline_rank"] == 4
    assert arguments["account_for_embedding_in_pipeline_split"] is True
    assert arguments["account_for_loss_in_pipeline_split"] is True
    plans = engine.plans([candidate])
    assert [float(np.ravel(getattr(plans, f"{end}_stage_layers"))[0]) for end in ENDS] == [3, 3, 3]
    # A rank without a layer is none: the ends are chunks among others.
    engine, whole = with_ends_as_layers(tmp_path, 6, "pp=4 vp=2")
    assert not engine.judge(whole)


ENDS = ("first", "last", "most")


def test_a_dense_model_has_no_activation_of_experts_to_compute_again(tmp_path):
    asked = job(tmp_path)
    task = task_of(asked, dataclasses.replace(A100, has_transformer_engine=True))
    candidate = one(task, "recompute=selective recompute_modules=moe_act")
    broken = {violation.rule for violation in judge_by(RULES, knobs.rows_of(task, [candidate]))}
    assert broken == {"recompute_modules.grouped"}


def test_steps_are_one_knob_up_and_down(tmp_path):
    engine = MegatronEngine(job(tmp_path), A100)
    candidate = one(task_of(job(tmp_path), A100), "tp=2 ends_as_layers=true")
    steps = list(engine.steps(candidate))
    assert {value for name, value in steps if name == "tp"} == {1, 4}
    assert {value for name, value in steps if name == "vp"} == {2}
    assert not [name for name, _ in steps if name == "ep"]
    assert {"full", "selective"} < {value for name, value in steps}
    assert all(candidate[name] != value for name, value in steps)


def test_the_vocabulary_is_padded_for_each_tp():
    assert list(padded_vocab(50257, np.array([1, 2, 8]))) == [50304, 50432, 51200]


def job(folder, **changes):
    return tiny_job(folder, **{"precision": "bf16", "world": 16, "global_batch": 32, **changes})


def plans_of(asked, candidates):
    return MegatronEngine(asked, A100).plans(candidates)


def test_columns_say_what_a_layout_is(tmp_path):
    asked = job(tmp_path)
    candidate = one(task_of(asked, A100), "tp=2 recompute=block_1 distributed_optimizer=true")
    plans = plans_of(asked, [candidate]).columns()
    assert plans["recompute"] == Recompute.FULL
    assert plans["recompute_every"] == 3  # one of three layers
    assert (plans["zero_stage"], plans["dp"], plans["grad_accum"]) == (1, 8, 4)
    assert plans["vocab"] == 256
    assert plans["overlap_sends"] == 0


@pytest.mark.parametrize(
    ("precision", "state_bytes"), [("bf16", 2 + 4 + 12), ("fp16", 2 + 2 + 16), ("fp32", 4 + 4 + 8)]
)
def test_a_parameter_takes_the_bytes_of_megatrons_documentation(tmp_path, precision, state_bytes):
    asked = job(tmp_path, precision=precision)
    plans = plans_of(asked, [one(task_of(asked, A100), "tp=1")])
    assert plans.weight_bytes + plans.grad_bytes + plans.optimizer_bytes == state_bytes


def test_layouts_are_predicted_as_rows_of_a_table_are(tmp_path):
    """`estimate --rows` of the same runs, written as people publish them."""
    asked = job(tmp_path)
    layouts = lay_out(task_of(asked, A100))
    chosen = [n for n in range(len(layouts)) if layouts.columns["recompute_layers"][n] == 0]
    chosen = [n for n in chosen if layouts.columns["pp"][n] != 2][::7]
    rows = [as_row(layouts.row(index)) for index in chosen]
    read = rows_to_plans(rows, shipped_accelerators())
    assert set(read.reasons) == {""}
    of_row = predict(read.plans)
    ours = predict(plans_of(asked, layouts)).take(np.array(chosen))
    assert len(chosen) > 20
    assert ours.step_time_s == pytest.approx(of_row.step_time_s)
    assert ours.peak_memory_bytes == pytest.approx(of_row.peak_memory_bytes)
    assert ours.fit_probability == pytest.approx(of_row.fit_probability, abs=1e-6)


def as_row(layout):
    kinds = {Recompute.NONE: "none", Recompute.FULL: "full"}
    degrees = {name: str(layout[name]) for name in ("tp", "pp", "vp", "cp", "dp", "micro_batch")}
    return row(
        **degrees,
        **{"gated_mlp": "yes", "tied_embeddings": "no", "n_layers": "3", "hidden": "64"},
        **{"ffn_hidden": "128", "n_heads": "4", "n_kv_heads": "4", "seq_len": "16"},
        **{"n_gpus": "16", "gpu_type": "A100", "gpu_mem_gb": "80", "interconnect": ""},
        vocab=str(int(padded_vocab(256, np.array([layout["tp"]]))[0])),
        sp="yes" if layout["sequence_parallel"] else "no",
        zero_stage=str(layout["distributed_optimizer"]),
        recompute=kinds[Recompute(layout["recompute"])],
        global_batch="32",
    )


@pytest.mark.cases("changes", "device", "message")
def test_what_megatron_does_not_train_is_said(tmp_path, changes, device, message):
    environment = dataclasses.replace(A100, device_name=device)
    with pytest.raises((JobError, FleetError)) as caught:
        task_of(job(tmp_path, **changes), environment)
    assert message in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.cases("there", "named", "unnamed")
def test_megatron_is_told_which_kernels_are_not_there(tmp_path, there, named, unnamed):
    environment = dataclasses.replace(A100, **there)
    engine = MegatronEngine(job(tmp_path), environment)
    candidate = next(iter(engine.ladder()))[0]
    arguments = json.loads(engine.files(candidate)[ARGUMENTS_FILE])
    assert {*named} <= arguments.keys()
    assert not {*unnamed} & arguments.keys()


@pytest.mark.cases("precision", "has_bf16", "is_advised")
def test_a_processor_without_bf16_is_told(tmp_path, monkeypatch, precision, has_bf16, is_advised):
    monkeypatch.setattr("autotune.engines.megatron.engine.cpu_has_bf16", lambda: has_bf16)
    message = MegatronEngine(dataclasses.replace(job(tmp_path), precision=precision), CPU).lacks()
    assert ("--precision fp32" in message) is is_advised


def test_a_gpu_without_transformer_engine_has_no_fused_attention(tmp_path):
    bare = dataclasses.replace(A100, has_transformer_engine=False)
    assert "transformer-engine" in MegatronEngine(job(tmp_path), bare).lacks()
    unfused = dataclasses.replace(A100, has_apex=False)
    assert "Apex" in MegatronEngine(job(tmp_path), unfused).lacks()
    assert not MegatronEngine(job(tmp_path), A100).lacks()
    assert not task_of(job(tmp_path), bare).fused_attention


def test_a_baseline_is_split_over_tensor_parallel_ranks_without_transformer_engine(tmp_path):
    bare = dataclasses.replace(A100, has_transformer_engine=False)
    rungs = list(MegatronEngine(job(tmp_path), bare).ladder())
    split = [candidate for rung in rungs for candidate in rung if candidate.tp > 1]
    assert split
    assert not any(candidate["sequence_parallel"] for candidate in split)


def test_a_baseline_spreads_experts_before_it_splits_tensors():
    rungs = list(ladder(task(n_experts=4, world=16, domain=8)))
    splits = [(c["ep"], c.tp, c.pp) for (c, *_) in rungs[: len(rungs) // 2]]
    inside = [(1, 1, 1), (2, 1, 1), (4, 1, 1), (4, 2, 1), (4, 2, 2), (4, 2, 4), (4, 2, 8)]
    assert splits == [*inside, (4, 4, 1), (4, 4, 2), (4, 4, 4), (4, 8, 1), (4, 8, 2)]
    assert {c.get("etp") for (c, *_) in rungs if c.tp > 1} == {1}
    dense = [(c.tp, c.pp) for (c, *_) in ladder(task(world=16, domain=8))]
    assert dense[:5] == [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2)]


def test_a_baseline_of_layers_that_do_not_split_evenly_has_balanced_stages():
    uneven, even = task(n_layers=61, world=64), task(n_layers=64, world=64)
    of_8 = [
        {c.get("stages") for rung in ladder(one) for c in rung if c.pp == 8}
        for one in (uneven, even)
    ]
    assert of_8 == [{"balanced"}, {None}]


@pytest.mark.cases("model", "has_apex", "is_parallel")
def test_sequences_are_split_where_apex_has_the_norm(tmp_path, model, has_apex, is_parallel):
    bare = dataclasses.replace(A100, has_transformer_engine=False, has_apex=has_apex)
    engine = MegatronEngine(job(tmp_path, model=model), bare)
    rungs = [candidate for rung in engine.ladder() for candidate in rung if candidate.tp > 1]
    assert rungs
    assert {bool(candidate["sequence_parallel"]) for candidate in rungs} == {is_parallel}
    asked = task_of(job(tmp_path, model=model), bare)
    assert not judge_by(RULES, knobs.rows_of(asked, rungs[:1]))
    split = Candidate.of(
        {**rungs[0].values, "sequence_parallel": True},
        world=rungs[0].world,
        global_batch=rungs[0].global_batch,
    )
    violations = judge_by(RULES, knobs.rows_of(asked, [split]))
    assert [violation.rule for violation in violations] == (
        [] if is_parallel else ["sequence_parallel.transformer_engine"]
    )


def test_a_device_without_bf16_has_no_fused_attention(tmp_path):
    older = dataclasses.replace(A100, device_name="V100-32GB")
    assert not task_of(job(tmp_path, precision="fp16"), older).fused_attention
    assert task_of(job(tmp_path), A100).fused_attention
    assert not task_of(job(tmp_path, precision="fp32"), A100).fused_attention


MIXTURE = task(
    n_experts=8,
    n_kv_heads=8,
    groups_experts=True,
    flex_here=1,
    fp8_here=(2, 3),
    fuses_experts=True,
    expert_bytes=6e9,
    other_bytes=1e9,
    memory_bytes=8e9,
    graphs_here=4,
    paced_tokens=4096.0,
)
"""Sequences of 2,048 tokens on a device with mxfp8."""


def test_graphs_are_offered_where_launches_may_set_the_pace() -> None:
    columns = lay_out(MIXTURE, for_plan=True).columns
    has_graphs = columns["cuda_graphs"] > 0
    assert has_graphs.any()
    tokens = columns["micro_batch"] * MIXTURE.seq_len // columns["cp"] / columns["tp"]
    assert tokens[has_graphs].max() < 4096
    assert not (columns["recompute"][has_graphs] == Recompute.FULL).any()
    biased = dataclasses.replace(MIXTURE, flex_here=1, has_attention_biases=True)
    columns = lay_out(biased, for_plan=True).columns
    has_graphs, is_delayed = columns["cuda_graphs"] > 0, columns["delay_weight_grads"] > 0
    assert (has_graphs & (columns["overlap_experts"] > 0)).any()
    assert is_delayed.any()
    assert not (has_graphs & is_delayed).any()
    # A trial captures none without a checkout's own loop.
    assert not lay_out(MIXTURE).columns["cuda_graphs"].any()


def test_experts_are_one_kernel_wherever_it_runs() -> None:
    columns = lay_out(MIXTURE, for_plan=True).columns
    is_fused = columns["fused_experts"] > 0
    assert is_fused.any()
    assert (columns["fp8"][is_fused] > 0).all()
    expert_tp = np.where(columns["etp"] > 0, columns["etp"], columns["tp"])
    may = (columns["fp8"] > 0) & (expert_tp == 1) & (columns["recompute"] != Recompute.SELECTIVE)
    assert is_fused[may].all()
    plain = dataclasses.replace(MIXTURE, fuses_experts=False)
    assert not lay_out(plain, for_plan=True).columns["fused_experts"].any()


def test_gradients_have_16_bits_only_where_they_fill_the_memory() -> None:
    columns = lay_out(MIXTURE, for_plan=True).columns
    halved = columns["main_grads"] > 0
    assert halved.any()
    expert_tp = np.where(columns["etp"] > 0, columns["etp"], columns["tp"])
    held = 1e9 / (columns["tp"] * columns["pp"]) + 6e9 / (
        columns["ep"] * expert_tp * columns["pp"]
    )
    assert held[halved].min() > 0.2 * 8e9
    roomy = dataclasses.replace(MIXTURE, memory_bytes=80e9)
    assert not lay_out(roomy, for_plan=True).columns["main_grads"].any()


def test_a_written_layout_with_other_chunks_is_no_even_one(tmp_path) -> None:
    """Four stages on four ranks are even with one chunk each, and wrong with two."""
    job = tiny_job(tmp_path, engine="megatron", model="llama-3.2-1b", world=4)
    engine = MegatronEngine(job, H100)
    chosen = {"pp": 4, "stages": "E(t*4|)*3t*4L"}
    whole, halved = (canonical({**chosen, "vp": vp}, engine.context) for vp in (1, 2))
    assert whole["stages"] == "even"
    assert halved["stages"] == chosen["stages"]
    candidate = Candidate.of(halved, world=4, global_batch=8)
    assert "stages.chunks" in {violation.rule for violation in engine.judge(candidate)}
