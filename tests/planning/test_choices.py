"""Rows of a plan: what is one choice, which comes first, and what stands below the best."""

import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from autotune.app.planning import open_outlook
from autotune.base.errors import ExitCode
from autotune.cli import cli
from autotune.engines.base import bind_engine
from autotune.job.job import DEFAULT_SPACE, PLAN_SPACE
from autotune.planning.choices import (
    LONG_TOKENS,
    MIN_FIT,
    PROBABLE,
    _split,
    best_of_kinds,
    best_probable,
    choices_of,
    ranked,
    strain_of,
    worthwhile_fit,
)
from autotune.planning.explained import explain_candidate
from autotune.planning.lattice import lattice_of
from autotune.planning.outlook import FleetWishes
from autotune.planning.ranking import planned_lattice, rank_lattice
from autotune.report.candidates.ranking import print_ranking, ranking_as_dict
from autotune.space.candidate import format_value
from autotune.space.knob import knobs_of
from autotune.space.knobs import changing_knobs
from tests.cases import data_beside

DATA = data_beside(__file__)

JOB = {"model": "llama-3-8b", "seq_len": 4096, "global_batch": 256, "world": 8}
H100 = FleetWishes(gpu="H100")
LAYOUT = ("zero.stage", "tp", "pp", "sp", "micro_batch", "recompute", "compile")


@pytest.fixture(scope="module")
def outlook():
    return open_outlook(None, JOB, H100)


@pytest.fixture(scope="module")
def ranking(outlook):
    return rank_lattice(outlook)


def of_row(ranking, rank):
    return ranking.candidates[int(ranking.choices.firsts[rank - 1])].values


def test_the_first_row_is_no_worse_than_that_of_any_space(ranking):
    best_s = ranking.prediction.step_time_s[int(ranking.order[0])]
    for space in ("zero", "compile", "parallel_3d", "zero_offload"):
        other = rank_lattice(open_outlook(None, {**JOB, "space": space}, H100))
        assert best_s <= 1.03 * other.prediction.step_time_s[int(other.order[0])], space


def test_a_space_that_is_named_is_the_one_that_is_ranked(outlook):
    assert outlook.job.space == PLAN_SPACE
    named = open_outlook(None, {**JOB, "space": "smoke"}, H100)
    assert named.job.space == "smoke"
    assert named.default_search is None


def test_rows_are_distinct_choices_and_candidates_are_each_of_one(ranking):
    rows = [tuple(of_row(ranking, rank).get(n) for n in LAYOUT) for rank in range(1, 11)]
    assert len(set(rows)) == len(rows)
    choices = ranking.choices
    assert sorted(choices.order) == list(range(len(ranking.candidates)))
    assert (choices.row_of[choices.firsts] == np.arange(len(choices))).all()
    assert sum(1 + len(choices.variants(rank)) for rank in (1, 2)) == int(
        (choices.row_of < 2).sum()
    )


def test_variants_of_a_row_differ_in_what_is_no_choice_of_its_own(ranking):
    first = of_row(ranking, 1)
    variants = ranking.close_variants(1)
    assert variants
    for index in variants:
        values = ranking.candidates[index].values
        assert all(values.get(name) == first.get(name) for name in LAYOUT if name != "compile")


def test_in_a_named_space_what_is_slower_by_more_than_one_per_cent_is_a_row():
    found = rank_lattice(open_outlook(None, {**JOB, "space": "zero"}, H100))
    times_s, choices = found.prediction.step_time_s, found.choices
    for rank in range(1, 30):
        others = choices.variants(rank)
        assert (times_s[others] < 1.0101 * times_s[choices.firsts[rank - 1]]).all()


TIGHT = {"model": "llama-3-70b", "seq_len": 8192, "global_batch": 64, "world": 1}


def test_a_row_is_cut_by_its_own_first_and_not_by_a_less_sure_variant_that_joins_it():
    times_s, is_own = np.array([1.0, 1.009, 1.012]), np.array([False, True, True])
    assert _split(np.zeros(3, np.intp), times_s, is_own).tolist() == [0, 0, 0]


def test_a_variant_that_fits_less_surely_is_a_row_only_where_it_is_faster():
    roomy = {**TIGHT, "host_memory": "2TiB"}
    found = rank_lattice(open_outlook(None, roomy, FleetWishes(gpu="A100-40GB")))
    prediction, choices = found.prediction, found.choices
    rows = [tuple(of_row(found, rank).get(n) for n in LAYOUT) for rank in found.shown(10)]
    assert len(set(rows)) == len(rows)
    # Rows that fit are not followed by such that do not.
    assert 0 < len(found.shown(10)) < 10
    fit = prediction.fit_probability
    assert (fit[choices.firsts[: len(found.shown(10))]] >= PROBABLE).all()
    assert len(found.shown(1)) == 1
    # What is counted beside a row may stand for it.
    less_sure = [i for i in choices.variants(1) if fit[i] < found.min_fit]
    assert less_sure
    assert not set(less_sure) & set(found.close_variants(1))


def test_where_nothing_fits_the_smallest_are_shown_and_a_program_learns_it():
    words = [f"--{name.replace('_', '-')}={value}" for name, value in TIGHT.items()]
    small = ["--gpu", "A100-40GB", "--memory-limit", "4GiB", "--top", "3", "--json"]
    done = CliRunner().invoke(cli, ["plan", *words, *small])
    assert done.exit_code == ExitCode.NOTHING_FEASIBLE
    assert len(json.loads(done.stdout)["candidates"]) == 3


@pytest.mark.cases("times_s", "fit", "sets", "order")
def test_what_leads(times_s, fit, sets, order):
    fits, more = np.array(fit), {name: np.array(values) for name, values in sets.items()}
    assert ranked(np.array(times_s), fits, fits, min_fit=0.9, **more).tolist() == order


def test_no_row_before_the_plain_ones_shares_a_short_sequence():
    short = {**JOB, "seq_len": 8192, "global_batch": 128}
    assert short["seq_len"] < LONG_TOKENS
    ranking = rank_lattice(open_outlook(None, short, H100))
    assert {of_row(ranking, rank).get("sp", 1) for rank in range(1, 30)} == {1}
    assert {*ranking.choices.firsts[:3].tolist()} & ranking.on_front
    long = open_outlook(None, {**JOB, "seq_len": 65_536, "global_batch": 8}, H100)
    assert of_row(rank_lattice(long), 1)["sp"] > 1


def test_on_one_rank_stages_that_shard_nothing_are_one_choice():
    alone = {**JOB, "model": "qwen3-0.6b", "world": 1, "global_batch": 32}
    found = rank_lattice(open_outlook(None, alone, FleetWishes(gpu="RTX-4090")))
    rows = [of_row(found, rank) for rank in range(1, 40)]
    tiers = [
        {row.get(f"offload.{part}", "none") for part in ("optimizer", "param")} for row in rows
    ]
    stages = [(row["zero.stage"], tier == {"none"}) for row, tier in zip(rows, tiers, strict=True)]
    assert {stage for stage, is_on_device in stages if is_on_device} == {0}
    assert {1, 2} <= {stage for stage, is_on_device in stages if not is_on_device}


def test_one_rank_has_no_best_of_a_stage(tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("name: sharded\nknobs: {zero.stage: [1, 2, 3], micro_batch: [1, 2, 4]}\n")
    alone = {**JOB, "model": "qwen3-0.6b", "world": 1, "global_batch": 32, "space": str(space)}
    found = rank_lattice(open_outlook(None, alone, H100))
    assert [*best_of_kinds(found.prediction, found.choices)] == ["data parallel alone"]


def test_strain_counts_degrees(outlook):
    lattice = outlook.lattice.candidates
    plain, wide = (
        lattice.index(outlook.read(settings.split())[0])
        for settings in ("zero.stage=2 overlap_comm=true", "zero.stage=1 tp=4 overlap_comm=true")
    )
    strain = strain_of(outlook.plans(lattice))
    assert (strain[plain], strain[wide]) == (0, 1)
    asking = ["recompute=every_2", "loss_chunk_tokens=1024", "allocator=expandable_segments"]
    assert strain_of(outlook.plans([outlook.read(asking)[0]])) == pytest.approx(2.1)


def test_of_equally_fast_layouts_one_without_a_pipeline_is_plainer():
    keys = {"model": "llama-3-8b", "seq_len": 4096, "global_batch": 256, "world": 64}
    first = of_row(rank_lattice(open_outlook(None, {**keys, "engine": "megatron"}, H100)), 1)
    assert first["pp"] == 1


def test_parameters_alone_on_the_host_lead_only_where_they_are_much_faster(outlook):
    settings = ("offload.optimizer=cpu", "offload.param=cpu", "micro_batch=2")
    candidates = [outlook.read(["zero.stage=3", setting])[0] for setting in settings]
    strain = strain_of(outlook.plans(candidates))
    fit = np.ones(3)
    for times_s, first in (([10.0, 9.0, 9.9], 2), ([10.0, 7.0, 9.9], 1)):
        assert ranked(np.array(times_s), fit, fit, min_fit=0.9, strain=strain)[0] == first


def test_what_probably_fits_is_named_where_it_is_faster_than_all_that_do_more_surely(mixture):
    ranking, _ = mixture
    found, choices = ranking.prediction, ranking.choices
    best = best_probable(found, choices, min_fit=0.9)
    assert best == ranking.probable != {}
    fit, times_s = found.fit_probability, found.step_time_s
    surer_s = times_s[(fit >= 0.9) & (choices.setbacks == 0)].min()
    for index, chance in best.items():
        assert chance <= fit[index] < 0.9
        assert times_s[index] * 1.02 < surer_s
        surer_s = times_s[index]
    surer = choices_of(found, choices.setbacks, min_fit=0.5, splits=False)
    assert best_probable(found, surer, min_fit=0.5) == {}


@pytest.mark.parametrize(
    ("times_s", "fit", "wanted"),
    [
        ([10.0, 6.0, 5.9], [0.95, 0.8, 0.6], 0.9),  # 1.67 times, and 1.69 are wanted
        ([10.0, 5.0, 4.8], [0.95, 0.8, 0.6], 0.75),
        ([10.0, 5.0, 1.8], [0.95, 0.8, 0.6], 0.5),  # over the second one, too
        ([10.0, 2.4, 2.2], [0.95, 0.8, 0.6], 0.75),
        ([10.0, 1.0, 1.0], [0.85, 0.8, 0.6], 0.9),  # nothing surely fits: that is another order
    ],
)
def test_less_than_surely_is_asked_where_that_is_worth_the_chance(ranking, times_s, fit, wanted):
    found = dataclasses.replace(
        ranking.prediction.take(ranking.choices.firsts[:3]),
        step_time_s=np.array(times_s),
        fit_probability=np.array(fit),
    )
    choices = choices_of(found, np.zeros(3, np.intp), min_fit=MIN_FIT, splits=True)
    assert worthwhile_fit(found, choices, None) == wanted


@pytest.mark.parametrize(
    ("setting", "baseline", "times_s", "wanted"),
    [
        ("offload.optimizer=cpu", (20.0, 0.9), [10.0, 9.5], 0.65),
        ("offload.optimizer=cpu", (20.0, 0.9), [10.0, 9.9], 0.9),  # a tie
        ("tp=2", (20.0, 0.9), [10.0, 9.0], 0.9),  # neither needs the host
        ("tp=2", (9.0, 0.59), [10.0, 9.0], 0.65),  # of the row that is as fast as the baseline
        ("tp=2", (8.0, 0.59), [10.0, 9.0], 0.9),  # none is
        ("tp=2", (9.0, 0.4), [10.0, 9.0], 0.9),
    ],
)
def test_a_plain_layout_or_a_faster_baseline_takes_a_smaller_chance(
    outlook, setting, baseline, times_s, wanted
):
    rows = [outlook.read(["zero.stage=2", *more])[0] for more in ([setting], [])]
    found = dataclasses.replace(
        outlook.predict(rows),
        step_time_s=np.array(times_s),
        fit_probability=np.array([0.93, 0.68]),
    )
    time_s, fit = map(np.atleast_1d, baseline)
    other = dataclasses.replace(found.take(np.array([1])), step_time_s=time_s, fit_probability=fit)
    choices = choices_of(found, np.zeros(2, np.intp), min_fit=MIN_FIT, splits=True)
    assert worthwhile_fit(found, choices, other) == wanted


def test_the_candidate_that_stands_for_a_row_is_the_one_that_gave_the_row_its_place():
    keys = {"model": "qwen3-30b-a3b", "seq_len": 4096, "global_batch": 128, "world": 8}
    tight = {**keys, "engine": "megatron", "memory_limit": "34GiB"}
    outlook = open_outlook(None, tight, H100)
    ranking = rank_lattice(outlook)
    rows = ranking.choices.firsts
    found = ranking.prediction.take(rows)
    assert not (found.fit_probability >= 0.9).any()
    order = ranked(
        found.step_time_s,
        found.peak_memory_bytes,
        found.fit_probability,
        min_fit=0.9,
        strain=strain_of(found.plans),
    )
    assert order.tolist() == list(range(len(rows)))


def test_rows_that_train_the_same_numbers_lead_and_the_best_other_stands_below(mixture):
    keys = {**mixture[1], "world": 32}
    found = rank_lattice(open_outlook(None, {**keys, "engine": "megatron"}, H100))
    fit, choices = found.prediction.fit_probability, found.choices
    n_sure = int((fit[choices.firsts] >= 0.9).sum())
    changing = [
        bool(changing_knobs(found.candidates[int(index)], knobs_of("megatron")))
        for index in choices.firsts[:n_sure]
    ]
    n_same = changing.index(True)
    assert n_same > 10
    assert all(changing[n_same:])
    assert choices.rank(found.otherwise) == n_same + 1
    below = ranking_as_dict(found, found.shown(10))["alternatives"]
    (other,) = (row for row in below if row["rank"] == n_same + 1)
    assert other["changes_training"]
    console = Console(file=io.StringIO(), width=4000)
    print_ranking(console, found, top=10)
    said = console.file.getvalue()
    assert f"the best that changes the training ({', '.join(other['changes_training'])}), " in said
    assert f"or else rank {n_same + 1}, " in " ".join(said.split())
    wanted = [f"{name}={format_value(value)}" for name, value in other["candidate"].items()]
    outlook = open_outlook(None, {**keys, "engine": "megatron"}, H100)
    assert explain_candidate(outlook, wanted).place == n_same + 1
    for row in below:
        notes = f"changes the training ({', '.join(row['changes_training'])})"
        assert not row["changes_training"] or notes in said


SPACE_WITH_FP8 = DATA["SPACE_WITH_FP8"]


def test_a_space_that_is_named_has_its_fastest_first_whatever_that_trains(mixture, tmp_path):
    _, keys = mixture
    space = tmp_path / "space.yaml"
    space.write_text(SPACE_WITH_FP8)
    named = {**keys, "world": 8, "model": "gpt-oss-20b", "space": str(space)}
    found = rank_lattice(open_outlook(None, {**named, "engine": "megatron"}, H100))
    assert not found.choices.setbacks.any()
    fastest = found.candidates[int(found.choices.firsts[0])]
    assert changing_knobs(fastest, knobs_of("megatron"))
    assert found.otherwise is not None
    assert not changing_knobs(found.candidates[found.otherwise], knobs_of("megatron"))


def test_each_zero_stage_and_kind_of_layout_that_fits_has_its_best(ranking):
    found = ranking.prediction
    best = best_of_kinds(found, ranking.choices)
    assert {f"ZeRO stage {n}" for n in (0, 1, 2, 3)} <= set(best)
    assert {"data parallel alone", "tp", "pp", "tp and pp"} <= set(best)
    assert not any("sequence" in kind for kind in best)
    for kind, index in best.items():
        values = ranking.candidates[index].values
        assert found.fit_probability[index] >= PROBABLE
        if kind.startswith("ZeRO"):
            assert kind.endswith(str(values["zero.stage"]))


def test_what_the_default_search_does_not_try_is_known(outlook, ranking):
    has = outlook.default_search.has
    plain, _ = outlook.read(["zero.stage=2", "micro_batch=1", "overlap_comm=true"])
    assert has(plain)
    compiled, _ = outlook.read(["zero.stage=2", "micro_batch=1", "compile=torch"])
    assert not has(compiled)
    assert outlook.asks(compiled) == ("torch.compile to hold",)
    assert outlook.asks(plain) == ()
    words = outlook.lattice.context.knobs["recompute"].asks
    for pp, asked in ((1, (words,)), (2, ("the model as DeepSpeed's PipelineModule",))):
        assert outlook.asks(outlook.read([f"pp={pp}", "recompute=every_2"])[0]) == asked


@pytest.fixture(scope="module")
def mixture():
    keys = {"model": "qwen3-30b-a3b", "seq_len": 4096, "global_batch": 512, "world": 16}
    return rank_lattice(open_outlook(None, {**keys, "engine": "megatron"}, H100)), keys


def test_gradients_in_16_bits_are_a_choice_of_their_own(mixture):
    found, _ = mixture
    in_16_bits = found.candidates.columns["main_grads"]
    for row in range(100):
        inside = found.choices.row_of == row
        assert len(np.unique(in_16_bits[inside])) == 1


def test_what_a_search_of_megatron_lays_out_is_known(mixture):
    found, _ = mixture
    job = dataclasses.replace(found.outlook.job, space=DEFAULT_SPACE)
    searched = lattice_of(bind_engine(job, found.outlook.environment)).candidates
    rows = [found.candidates[int(index)] for index in found.choices.firsts[:40]]
    for candidate in rows:
        assert found.outlook.default_search.has(candidate) == (candidate in searched)
    assert any("cuda_graphs" in c.values and "fp8" not in c.values for c in rows)


def test_the_space_plan_of_a_search_has_every_row_of_the_plan(mixture):
    found, keys = mixture
    console = Console(file=io.StringIO(), width=4000)
    print_ranking(console, found, top=10)
    lines = console.file.getvalue().splitlines()
    (line,) = (x for x in lines if x.startswith("search "))
    assert "by default tries all layouts without fp8, main_grads, cuda_graphs, " in line
    assert line.rstrip().endswith("--space plan has all of them")
    tight = {"model": "llama-3-70b", "seq_len": 8192, "global_batch": 64, "world": 16}
    for job, described in ((keys, H100), (tight, FleetWishes(gpu="A100-40GB"))):
        plan = rank_lattice(open_outlook(None, {**job, "engine": "megatron"}, described)).outlook
        assert plan.job.space == PLAN_SPACE
        searched = planned_lattice(plan.job, plan.environment, lattice_of(plan.engine))
        assert len(searched.candidates) == len(plan.lattice.candidates)
        rows = [
            plan.lattice.candidates[place] for place in range(0, len(searched.candidates), 997)
        ]
        assert all(row in searched.candidates for row in rows)
    assert len(searched.candidates) > len(lattice_of(plan.engine).candidates), "they save memory"
