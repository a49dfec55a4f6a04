"""`plan` and `explain` for fleets that nobody has here: ranks, what-ifs, errors, exports."""

import dataclasses
import functools
import json
import re

import numpy as np
import pytest

from autotune.app.planning import export_ranked, open_outlook
from autotune.base.errors import ExitCode, JobError, NothingFeasibleError
from autotune.base.units import format_chance, format_seconds
from autotune.cost.knowledge import Lesson, columns_of
from autotune.cost.problem import packed_columns, situation_of
from autotune.devices.topology import parse_topology
from autotune.engines.deepspeed.rules.releases import NEWEST_READ
from autotune.job.job import JobText
from autotune.job.model_shape import train_flops_per_token
from autotune.planning.choices import PROBABLE, choices_of, ranked
from autotune.planning.explained import estimate_candidate, explain_candidate
from autotune.planning.outlook import FleetWishes
from autotune.planning.ranking import rank_lattice
from autotune.report.candidates.explained import (
    estimate_as_dict,
    explained_as_dict,
    print_estimate,
    print_explained,
)
from autotune.report.candidates.ranking import parts_of, print_ranking, ranking_as_dict
from tests.cases import data_beside
from tests.command_line import autotune
from tests.jobs import own_accelerator
from tests.report import told

DATA = data_beside(__file__)

FLAGS = DATA["FLAGS"]


@pytest.fixture(scope="module")
def outlook():
    return open_outlook(None, FLAGS, FleetWishes(gpu="H100"))


@pytest.fixture(scope="module")
def found(outlook):
    return rank_lattice(outlook)


def test_what_fits_comes_first_and_of_that_the_fastest(found):
    fits = found.prediction.fit_probability[found.order] >= found.min_fit
    n_fit = found.n_likely
    assert 0 < n_fit < len(found.candidates)
    assert fits[:n_fit].all()
    assert not fits[n_fit:].any()
    times_s = found.prediction.step_time_s[found.order[:n_fit]]
    # Within 3%, the plainer layout comes first.
    assert (times_s[1:] > np.maximum.accumulate(times_s)[:-1] / 1.03).all()
    behind = found.prediction.fit_probability[found.order[n_fit:]]
    n_probable = int((behind >= PROBABLE).sum())
    assert (behind[:n_probable] >= PROBABLE).all()
    assert (np.diff(behind[n_probable:]) <= 0).all()
    assert sorted(found.order) == list(range(len(found.candidates)))


def test_of_those_that_surely_do_not_fit_the_smallest_come_first() -> None:
    times_s, peaks_bytes = np.array([1.0, 2.0, 9.0, 3.0]), np.array([9e12, 8e12, 1e12, 1e9])
    fit = np.array([0.0, 0.0, 0.0, 0.99])
    order = ranked(times_s, peaks_bytes, fit, min_fit=0.9)
    assert order.tolist() == [3, 2, 1, 0]


def test_nothing_on_the_front_is_beaten_in_both(found):
    step, peak = found.prediction.step_time_s, found.prediction.peak_memory_bytes
    fitting = found.order[: found.n_likely]
    for index in fitting:
        beaten = ((step[fitting] < step[index]) & (peak[fitting] < peak[index])).any()
        if index in found.on_front:
            assert not beaten
    fastest = fitting[np.argmin(step[fitting])]
    assert int(fastest) in found.on_front


def test_trials_of_the_job_correct_its_plan_and_narrow_it(outlook, found):
    engine, before = outlook.engine, found
    ran = [outlook.lattice.candidates[int(at)] for at in before.order[:40:5]]
    predicted = outlook.predict(ran)
    plans = engine.plans(ran)
    here = situation_of(outlook.job, outlook.environment)

    def lessons(situation, slower, **changes):
        return [
            Lesson(
                situation=situation,
                study="one",
                plan={**columns_of(plans, row), **changes},
                seconds=float(predicted.step_time_s[row]) * slower,
                peak_bytes=float(predicted.peak_memory_bytes[row]) * 1.1,
                is_out_of_memory=False,
                limit_bytes=80e9,
            )
            for row in range(len(ran))
        ]

    after = rank_lattice(dataclasses.replace(outlook, lessons=lessons(here, 1.3)))
    best = int(before.order[0])
    ratio = after.prediction.step_time_s[best] / before.prediction.step_time_s[best]
    assert ratio == pytest.approx(1.3, rel=0.03)
    assert after.prediction.peak_memory_bytes[best] > before.prediction.peak_memory_bytes[best]
    # As narrow as a search's own, and narrower than what others' runs promise.
    assert 0 < after.reach.step_time.high[best] < 0.14
    assert after.reach.step_time.high[best] < before.reach.step_time.high[best]
    assert after.outlook.learned.n_here == len(ran)
    shown = ranking_as_dict(after, [1])
    assert shown["n_trials_of_this_job"] == len(ran)
    parts_s = shown["candidates"][0]["pred_time_parts_s"].values()
    assert sum(parts_s) == pytest.approx(shown["candidates"][0]["pred_step_time_s"])
    # Another batch is another job, on the same devices: it corrects less surely.
    other = lessons(here, 1.3, grad_accum=63.0)
    akin = rank_lattice(dataclasses.replace(outlook, lessons=other))
    assert akin.outlook.learned.n_here == 0
    assert akin.reach.step_time.high[best] > after.reach.step_time.high[best]
    # Other devices teach nothing of these.
    elsewhere = lessons(dataclasses.replace(here, device="A100"), 1.3)
    assert rank_lattice(dataclasses.replace(outlook, lessons=elsewhere)).outlook.learned is None


def test_slower_links_and_lesser_devices_are_slower(outlook):
    found = rank_lattice(
        outlook, what_if=["bandwidth=10Gbps", "gpu=A100-80GB", "memory=40GiB", "nvlink=50GB/s"]
    )
    best_s = found.prediction.step_time_s[found.order[0]]
    slow, other, small, _ = found.variants
    assert slow.same_step_time_s > slow.step_time_s > best_s
    assert other.step_time_s > best_s
    assert small.same_fit_probability < found.prediction.fit_probability[found.order[0]]
    assert slow.flags == "bandwidth=10Gbps"
    assert outlook.links["network_bytes_per_s"] == 50e9
    described = FleetWishes(gpu="H100", network="100Gbps")
    text = printed(print_ranking, rank_lattice(open_outlook(None, FLAGS, described)), top=1)
    assert "12.5 GB/s per accelerator beyond them, one way, as in the vendor's" in " ".join(
        text.split()
    )
    assert "own system: --nvlink says what yours has" in " ".join(text.split())


def test_a_narrower_network_beyond_the_leaves_is_slower(outlook):
    wishes = ["oversubscription=1", "oversubscription=8", "topology=dragonfly"]
    full, narrow, dragonfly = rank_lattice(outlook, what_if=wishes).variants
    assert narrow.same_step_time_s > full.same_step_time_s
    assert dragonfly.flags == "topology=dragonfly"
    within = dataclasses.replace(
        outlook,
        job=dataclasses.replace(
            outlook.job, network_topology=parse_topology("fat-tree,nodes_per_group=64")
        ),
    )
    (one_leaf,) = rank_lattice(within, what_if=["oversubscription=8"]).variants
    assert one_leaf.same_step_time_s == pytest.approx(full.same_step_time_s, rel=1e-3)


def test_a_what_if_without_a_plan_is_a_row_that_says_why(outlook, monkeypatch):
    monkeypatch.setattr("autotune.planning.ranking.lattice_of", None)  # none is judged there
    found = rank_lattice(outlook, what_if=["gpu=V100", "bandwidth=10Gbps"])
    assert [variant.flags for variant in found.variants] == ["bandwidth=10Gbps"]
    assert found.no_plans["gpu=V100"].startswith("no figures for bf16 on V100")
    text = " ".join(printed(print_ranking, found, top=1).split())
    assert "gpu=V100 - - - no figures for bf16 on V100" in text
    assert ranking_as_dict(found, [1])["what_if_without_plan"] == dict(found.no_plans)


@pytest.mark.cases("wish", "said")
def test_a_what_if_that_is_none_says_what_is(outlook, monkeypatch, wish, said):
    monkeypatch.setattr("autotune.planning.ranking.legal_rows", None)  # nothing is ranked before
    with pytest.raises(JobError) as error:
        rank_lattice(outlook, what_if=[wish])
    assert said in f"{error.value.message} {error.value.hint}"


def test_an_unknown_accelerator_lists_those_that_are_known(outlook):
    with pytest.raises(JobError, match=r"--gpu: no figures .* 'Abacus'") as error:
        open_outlook(None, FLAGS, FleetWishes(gpu="Abacus"))
    assert "; known are " in error.value.hint


def test_an_accelerator_of_ones_own(tmp_path):
    table = own_accelerator(tmp_path / "mine.yaml", "Abacus")
    flags = {**FLAGS, "world": 8, "accelerators": table}
    outlook = open_outlook(None, flags, FleetWishes(gpu="Abacus"))
    assert (outlook.environment.n_devices, outlook.environment.device_memory_bytes) == (4, 2**36)
    assert rank_lattice(outlook).prediction.step_time_s.min() > 0

    job = tmp_path / "job.yaml"
    job.write_text("accelerators: mine.yaml\n")
    outlook = open_outlook(JobText.read(job), {**FLAGS, "world": 8}, FleetWishes(gpu="Abacus"))
    assert outlook.environment.n_devices == 4


def test_the_best_is_exported_and_marked_as_predicted(outlook, found, tmp_path):
    files = export_ranked(outlook, found, tmp_path / "out", rank=2, to="deepspeed")
    second = found.candidates[int(found.choices.firsts[1])].values
    config = json.loads((tmp_path / "out" / "ds_config.json").read_text())
    assert config["train_micro_batch_size_per_gpu"] == second["micro_batch"]
    marked = json.loads((tmp_path / "out" / "prediction.json").read_text())
    assert marked["rank"] == 2
    assert marked["candidate"] == dict(second)
    assert marked["pred_step_time_s"] == pytest.approx(
        found.prediction.step_time_s[found.choices.firsts[1]]
    )
    assert {path.name for path in files} >= {"ds_config.json", "prediction.json"}
    with pytest.raises(JobError, match="--rank 100000"):
        export_ranked(outlook, found, tmp_path, rank=100000, to="deepspeed")


def test_the_price_follows_from_time(outlook):
    found = rank_lattice(dataclasses.replace(outlook, price=2.0))
    rows = ranking_as_dict(found, [1, 3])["candidates"]
    for row in rows:
        hours = 1e9 / row["pred_tokens_per_s_per_gpu"] / 3600
        assert row["pred_price_per_billion_tokens"] == pytest.approx(2.0 * hours)
        parts = sum(row["pred_time_parts_s"].values())
        assert parts == pytest.approx(row["pred_step_time_s"])
        work = train_flops_per_token(outlook.job.model.shape, 4096)
        flops_per_s = work * row["pred_tokens_per_s_per_gpu"]
        assert row["pred_tflops_per_gpu"] == pytest.approx(flops_per_s / 1e12)
        assert row["pred_mfu"] == pytest.approx(flops_per_s / outlook.environment.peak_flops)
        assert row["pred_mfu_low"] < row["pred_mfu"] < row["pred_mfu_high"] < 1
        assert row["pred_mfu_precision"] == "bf16"


def test_mfu_in_fp8_is_a_share_of_the_peak_in_fp8():
    flags = {name: value for name, value in FLAGS.items() if name != "space"}
    flags["engine"] = "megatron"
    outlook = open_outlook(None, flags, FleetWishes(gpu="H100"))
    for settings, precision, tflops in ((), "bf16", 989.0), (("fp8=hybrid",), "fp8", 1979.0):
        row = estimate_as_dict(estimate_candidate(outlook, ["tp=2", *settings]))
        assert row["pred_mfu_precision"] == precision
        assert row["pred_mfu"] == pytest.approx(row["pred_tflops_per_gpu"] / tflops)


@pytest.mark.parametrize(
    ("chance", "said"), [(0.4, "does not fit"), (0.6, "s, fits 60%"), (0.95, "s zero.stage")]
)
def test_a_what_if_says_how_surely_the_best_still_fits(outlook, chance, said):
    found = rank_lattice(outlook, what_if=["bandwidth=10Gbps"])
    (variant,) = found.variants
    variant = dataclasses.replace(variant, same_fit_probability=chance)
    text = printed(print_ranking, dataclasses.replace(found, variants=(variant,)), top=1)
    assert said in " ".join(text.partition(variant.flags)[2].split())


@pytest.mark.parametrize(
    ("price", "prices"),
    [
        ("H100=2.5,A100-80GB=1.4", (1.4, 2.5)),
        ("A100-80GB=1.4", (1.4, None)),
        (2.5, (None, 2.5)),  # of this fleet, whose accelerator is the same with another network
        (None, (None, None)),
    ],
)
def test_a_what_if_has_the_price_of_its_own_accelerator(outlook, price, prices):
    wishes = ["gpu=A100-80GB", "bandwidth=10Gbps"]
    found = rank_lattice(dataclasses.replace(outlook, price=price), what_if=wishes)
    tokens_per_batch, world = outlook.job.tokens_per_batch, outlook.job.world
    for variant, of_an_hour in zip(found.variants, prices, strict=True):
        hours = 1e9 / tokens_per_batch * variant.step_time_s * world / 3600
        expected = None if of_an_hour is None else of_an_hour * hours
        assert variant.price_per_billion_tokens == pytest.approx(expected)
        cells = printed(print_ranking, found, top=1).partition(variant.flags)[2].split()
        cost = [] if price is None else ["-" if expected is None else f"{expected:.2f}"]
        chance = format_chance(variant.fit_probability)
        begin = [format_seconds(variant.step_time_s, digits=2), cells[2], chance, *cost]
        assert " ".join(cells).startswith(" ".join(begin))


def test_a_candidate_is_explained_by_its_rank_and_its_neighbours(outlook):
    min_fit = 0.6
    found = explain_candidate(outlook, ["zero.stage=1", "micro_batch=4"], min_fit=min_fit)
    assert not found.violations
    everyone = outlook.predict(outlook.lattice.candidates)
    setbacks = outlook.setbacks(outlook.lattice.candidates)
    choices = choices_of(everyone, setbacks, min_fit=min_fit, splits=True)
    assert found.is_in_lattice
    index = outlook.lattice.candidates.index(found.candidate)
    assert (found.place, found.n_ranked) == (choices.rank(index), len(choices))
    as_dict = explained_as_dict(found)
    assert (as_dict["rank"], len(as_dict["neighbours"])) == (found.place, len(found.neighbours))
    as_dict["candidate"].clear()
    assert found.candidate.values, "a dict is a copy"
    assert found.fit_probability < 0.5
    change = found.cheapest_fit
    assert change.fit_probability >= min_fit
    text = " ".join(printed(print_explained, found).split())
    assert f" of {len(choices)} distinct choices, those first that fit with 60% or more" in text
    assert not change.violations
    fitting = [n for n in found.neighbours if not n.violations and n.fit_probability >= min_fit]
    assert change.step_time_s == min(n.step_time_s for n in fitting)
    micro_batches = {n.value for n in found.neighbours if n.knob == "micro_batch"}
    assert {2, 8} <= micro_batches


def test_the_plain_change_that_makes_a_candidate_fit_is_named_before_an_exotic_one():
    keys = {"model": "llama-3-8b", "seq_len": 8192, "global_batch": 64, "world": 16}
    outlook = open_outlook(None, keys, FleetWishes(gpu="H100"))
    found = explain_candidate(outlook, ["zero.stage=2", "micro_batch=2"])
    nearest, surest = found.nearest_fit, found.cheapest_fit
    assert (nearest.knob, nearest.value) == ("recompute", "full")
    assert (surest.knob, surest.is_exotic) == ("sp", True)
    assert 0.5 < nearest.fit_probability < found.min_fit <= surest.fit_probability
    fitting = [n for n in found.neighbours if not n.violations and n.fit_probability >= 0.5]
    assert min(fitting, key=found.by_use).is_exotic, "by the forecast alone it comes first"
    chance = np.array([nearest.fit_probability + 0.01])
    surer = dataclasses.replace(found.prediction, fit_probability=chance)
    assert dataclasses.replace(found, prediction=surer).nearest_fit.fit_probability > chance


def test_every_neighbour_differs_in_its_knob(outlook):
    found = explain_candidate(outlook, ["zero.stage=1", "micro_batch=1"])
    assert {"tp", "pp", "recompute", "zero.stage"} <= {n.knob for n in found.neighbours}
    for neighbour in found.neighbours:
        assert neighbour.value != found.candidate.get(neighbour.knob)
    assert found.cheapest_legal is None
    ordered = sorted(found.neighbours, key=found.by_use)
    places = [(n.fit_probability < found.min_fit, n.changes_training) for n in ordered]
    assert places == sorted(places)
    assert "communication_dtype=fp16 (changes the training)" in printed(print_explained, found)


def test_a_refused_candidate_names_the_rule_and_a_change_that_is_legal(outlook, found):
    refused = explain_candidate(outlook, ["zero.stage=1", "micro_batch=3"])
    assert "batch.product" in {violation.rule for violation in refused.violations}
    assert not refused.is_in_lattice
    assert refused.n_ranked > len(found.choices)
    assert not refused.cheapest_legal.violations
    assert refused.cheapest_legal.value == 1
    text = printed(print_explained, refused)
    assert "rank        none: it is refused, and its step is one of 192 samples, not 256" in text
    assert " for 192 samples: " in text
    rules = re.findall(r"^refused     (?:.*=\S+: )?([\w.]+)", text, re.M)
    assert len(rules) == len({*rules}) > len(refused.violations)
    hopeless = explain_candidate(outlook, ["zero.stage=0", "micro_batch=3"])
    likeliest = hopeless.cheapest_legal
    assert likeliest.fit_probability < 0.005
    legal = [n for n in hopeless.neighbours if n.knob == likeliest.knob and not n.violations]
    assert likeliest.peak_memory_bytes == min(n.peak_memory_bytes for n in legal)


@pytest.mark.parametrize(("name", "usual"), [("gpt-oss-20b", "eager"), ("llama-3-8b", "sdpa")])
def test_the_default_attention_is_what_transformers_takes_for_the_model(name, usual):
    outlook = open_outlook(None, {**FLAGS, "model": name}, FleetWishes(gpu="H100"))
    times = {
        word: estimate_candidate(outlook, ["zero.stage=3", f"attention={word}"]).step_time_s
        for word in ("default", "eager", "sdpa")
    }
    assert times["eager"] > 1.05 * times["sdpa"]
    assert times["default"] == times[usual]
    text = printed(print_ranking, rank_lattice(outlook), top=1)
    assert (" eager by default, as transformers" in text) == (usual == "eager")


def test_a_mixture_with_fewer_samples_than_ranks_is_sent_to_context_parallelism():
    keys = {**FLAGS, "model": "qwen3-30b-a3b", "global_batch": 8, "space": "smoke"}
    with pytest.raises(NothingFeasibleError) as caught:
        open_outlook(None, keys, FleetWishes(gpu="H100"))
    assert "; or take --engine megatron: with tp, pp and cp" in caught.value.hint


SMALL = {"model": "gpt2", "seq_len": 512, "global_batch": 48, "world": 6}
"""A job whose space is judged in no time."""


def small(tmp_path, wishes=None, **flags):
    space = tmp_path / "space.yaml"
    knobs = "  zero.stage: [0, 1]\n  micro_batch: {powers_of_two: [1, 8]}\n"
    space.write_text(f"name: mine\ndescription: few\nknobs:\n{knobs}  tp: [1, 2, 3]\n")
    keys = {**SMALL, "space": str(space), **flags}
    return open_outlook(None, keys, wishes or FleetWishes(gpu="H100"))


printed = functools.partial(told.printed, width=200)


def test_nothing_of_this_machine_decides_for_another(tmp_path, monkeypatch):
    def nobody():
        raise AssertionError("this machine was looked at")

    monkeypatch.setattr("autotune.app.session.detect_environment", nobody)
    monkeypatch.setattr("autotune.devices.hardware.is_importable", lambda name: False)
    outlook = small(tmp_path)
    flash = estimate_candidate(outlook, ["attention=flash_attention_2"])
    plain = estimate_candidate(outlook, ["attention=sdpa"])
    assert not flash.violations
    flash_needs, plain_needs = (estimate_as_dict(one)["needs"] for one in (flash, plain))
    assert flash_needs == [*plain_needs, "flash-attn"]
    assert plain_needs == [f"DeepSpeed {NEWEST_READ}"]
    assert f"nodes need  {', '.join(flash_needs)}" in printed(print_estimate, flash)
    compiled = estimate_candidate(outlook, ["compile=torch"])
    assert estimate_as_dict(compiled)["asks"] == ["torch.compile to hold"]
    assert "it needs    torch.compile to hold" in printed(print_estimate, compiled)
    row = ranking_as_dict(rank_lattice(outlook), [1])["candidates"][0]
    assert row["needs"] == plain_needs


def test_what_is_here_is_not_said_to_be_needed(tmp_path):
    outlook = small(tmp_path, FleetWishes(), precision="fp32", world=2)
    assert outlook.needs(estimate_candidate(outlook, ["micro_batch=1"]).candidate) == ()


def test_samples_beyond_the_positions_of_the_model_are_told():
    keys = {"model": "qwen2.5-0.5b", "global_batch": 8, "world": 8}
    for seq_len, is_told in ((32_768, False), (65_536, True)):
        outlook = open_outlook(None, {**keys, "seq_len": seq_len}, FleetWishes(gpu="H100"))
        found = estimate_candidate(outlook, ["zero.stage=2", "micro_batch=1"])
        assert ("positions   65536 tokens" in printed(print_estimate, found)) is is_told
        assumed = estimate_as_dict(found)["assumed"]
        assert any("65536 tokens are more than the 32768" in one for one in assumed) is is_told


def test_samples_of_several_lengths_count_as_they_are_padded(tmp_path):
    counts = tmp_path / "lengths.csv"
    counts.write_text("length,count\n64,30\n500,18\n")
    fixed, drawn = small(tmp_path), small(tmp_path, lengths=str(counts))
    setting = ["zero.stage=1", "micro_batch=4"]
    whole, mixed = (estimate_candidate(each, setting) for each in (fixed, drawn))
    one = estimate_candidate(drawn, ["zero.stage=1", "micro_batch=1"])
    assert mixed.step_time_s < whole.step_time_s
    # The longest sample alone has 500 of 512 tokens.
    assert 0.9 < mixed.peak_memory_bytes / whole.peak_memory_bytes < 1
    # Alone, no sample is padded.
    assert mixed.prediction.plans.padded_seq_len[0] > one.prediction.plans.padded_seq_len[0]
    mean = (64 * 30 + 500 * 18) / 48
    assert one.prediction.plans.padded_seq_len[0] == pytest.approx(mean)
    tokens_per_s = 48 * mean / mixed.step_time_s / 6
    assert estimate_as_dict(mixed)["pred_tokens_per_s_per_gpu"] == pytest.approx(tokens_per_s)
    attended = (64**2 * 30 + 500**2 * 18) / (64 * 30 + 500 * 18)
    flops_per_s = train_flops_per_token(drawn.job.model.shape, attended) * tokens_per_s
    assert estimate_as_dict(mixed)["pred_tflops_per_gpu"] == pytest.approx(flops_per_s / 1e12)
    assert "lengths     2 lengths from 64 to 500 tokens" in printed(print_estimate, mixed)
    assert sum(mixed.prediction.times.step_s) == pytest.approx(mixed.step_time_s)
    packed = estimate_candidate(small(tmp_path, lengths="packed"), setting)
    assert packed.step_time_s == whole.step_time_s
    assert "packed rows of 512 tokens" in printed(print_estimate, packed)


def test_the_head_room_leaves_less_to_fit_into(tmp_path):
    wishes, setting = FleetWishes(gpu="T4"), ["micro_batch=8"]
    roomy = estimate_candidate(small(tmp_path, wishes, precision="fp16"), setting)
    tight = estimate_candidate(small(tmp_path, wishes, precision="fp16", head_room=0.6), setting)
    # Freed segments count only as far as there is room for them.
    assert tight.peak_memory_bytes <= roomy.peak_memory_bytes
    assert tight.fit_probability < roomy.fit_probability


def test_what_the_base_configuration_sets_stands_above_the_rows(tmp_path):
    base = tmp_path / "ds.json"
    base.write_text('{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}')
    text = printed(print_ranking, rank_lattice(small(tmp_path, base_config=str(base))), top=1)
    assert f"differs from {base}, which sets zero.stage=2 offload.optimizer=cpu" in " ".join(
        text.split()
    )
    assert "no knob carries it" not in text


@pytest.mark.parametrize(("batch", "nearest"), [(45, 48), (51, 48), (54, None)])
def test_a_batch_that_not_all_ranks_share_is_told_with_the_one_that_they_do(
    tmp_path, batch, nearest
):
    found = rank_lattice(small(tmp_path, model="llama-3.2-1b", global_batch=batch))
    text = printed(print_ranking, found, top=1)
    assert ("as data: give --global-batch" in text) == (nearest is not None)
    if nearest is not None:
        data = ranking_as_dict(found, [1])["other_batch"]
        assert data["flags"] == found.other_batch.flags == f"--global-batch {nearest}"
        assert f": give --global-batch {nearest - 6} or {nearest}" in text or batch > nearest
        assert data["speedup"] > 1
        assert data["fit_probability"] >= found.min_fit


def test_a_mixture_is_told_that_spread_experts_gain_little(tmp_path):
    keys = {"model": "gpt-oss-20b", "seq_len": 4096, "global_batch": 64, "world": 8}
    space = tmp_path / "space.yaml"
    knobs = "  zero.stage: 3\n  micro_batch: 2\n  recompute: full\n  compile: torch\n"
    knobs += "  allocator: expandable_segments\n  ep: [1, 2]\n"
    space.write_text(f"name: mine\ndescription: few\nknobs:\n{knobs}")
    keys["space"] = str(space)
    # Megatron's layouts are fast where they may fill the device.
    found = rank_lattice(open_outlook(None, keys, FleetWishes(gpu="H100")), min_fit=0.994)
    assert [each.flags for each in found.spread_experts] == ["--engine megatron"]
    assert ranking_as_dict(found, [1])["spread_experts"][0]["speedup"] < 1.3
    text = " ".join(printed(print_ranking, found, top=1).split())
    assert "times as many samples/s as rank 1: less than forecasts may be wrong by" in text
    assert "no ep ep=2 (expert_parallel.autoep_size): AutoEP does not know gpt_oss" in text
    assert re.search(r"With flex_attention the step of rank 1 is forecast at [\d.]+ s", text)


def test_a_mixture_at_stage_3_is_told_what_spreads_its_experts(tmp_path):
    keys = {"model": "deepseek-v2-lite", "seq_len": 4096, "global_batch": 64, "world": 8}
    there, space = FleetWishes(gpu="A100-80GB"), tmp_path / "space.yaml"
    space.write_text("name: mine\ndescription: few\nknobs:\n  zero.stage: 3\n  recompute: full\n")
    found = rank_lattice(open_outlook(None, {**keys, "space": str(space)}, there), min_fit=0.6)
    assert [each.flags for each in found.spread_experts] == ["--space moe", "--engine megatron"]
    data = ranking_as_dict(found, [1])["spread_experts"]
    assert min(each["speedup"] for each in data) > 1.3
    text = " ".join(printed(print_ranking, found, top=1).split())
    assert all(f"with {each.flags}, {each.described} is" in text for each in found.spread_experts)
    alone = dataclasses.replace(found, spread_experts=())
    text = " ".join(printed(print_ranking, alone, top=1).split())
    assert "--space moe and --engine megatron have nothing that spreads them" in text
    spread = rank_lattice(open_outlook(None, {**keys, "space": "moe"}, there))
    assert spread.spread_experts == ()
    first = ranking_as_dict(spread, [1])["candidates"][0]
    assert first["changes_training"] == []
    router, intervals = first["assumed"]
    assert router.startswith("give all experts as many tokens;")
    assert intervals.startswith("intervals: time: ")


def test_what_offload_takes_of_the_hosts_is_told_per_rank_and_node(tmp_path):
    outlook = small(tmp_path, FleetWishes(gpu="H100", per_node=3))
    setting = ["zero.stage=1", "micro_batch=1"]
    found = estimate_candidate(outlook, [*setting, "offload.optimizer=cpu"])
    # Adam in 32 bits with its master copy and 16-bit gradients, a sixth of them in each rank.
    per_node = 3 * 14 * outlook.job.model.shape.n_params / 6
    assert estimate_as_dict(found)["pred_host_memory_bytes"] == pytest.approx(per_node, rel=0.05)
    match = re.search(
        r"host memory +(\S+) MiB per rank, (\S+) (\w+) per node", printed(print_estimate, found)
    )
    assert float(match[1]) == pytest.approx(per_node / 3 / 2**20, rel=0.05)
    assert "host memory" not in printed(print_estimate, estimate_candidate(outlook, setting))


@pytest.mark.parametrize("host", ["1GiB", "2TiB"])
def test_an_estimate_names_the_host_where_that_is_what_lacks(tmp_path, host):
    outlook = small(tmp_path, host_memory=host)
    setting = ["zero.stage=1", "micro_batch=1", "offload.optimizer=cpu"]
    text = printed(print_estimate, estimate_candidate(outlook, setting))
    is_lacking = re.search(r"does not fit, as it needs [\d.]+ GiB of the host's 1 GiB", text)
    assert (is_lacking is not None) is (host == "1GiB")
    assert ("fits with a probability of" in text) is (host != "1GiB")


def test_a_setting_that_does_not_act_is_noted(outlook):
    found = explain_candidate(outlook, ["zero.stage=1", "stage3.prefetch_bucket_size=1000"])
    assert any("stage3.prefetch_bucket_size" in note for note in found.notes)


def test_an_estimate_is_of_one_candidate_and_adds_up(outlook):
    found = estimate_candidate(outlook, ["zero.stage=2", "micro_batch=2"])
    data = estimate_as_dict(found)
    assert data["candidate"]["zero.stage"] == 2
    assert sum(data["pred_time_parts_s"].values()) == pytest.approx(data["pred_step_time_s"])
    total = sum(data["pred_memory_parts_bytes"].values())
    assert total == pytest.approx(data["pred_peak_memory_bytes"])
    tokens = 256 * 4096 / data["pred_step_time_s"] / 64
    assert data["pred_tokens_per_s_per_gpu"] == pytest.approx(tokens)


@pytest.mark.cases("flags", "said")
def test_an_estimate_is_of_a_candidate_or_of_a_table(tmp_path, flags, said):
    done = autotune("estimate", *flags, folder=tmp_path)
    assert done.returncode == ExitCode.INVALID_INPUT
    assert said in done.stderr


def test_where_nobody_names_a_model_it_is_noted(tmp_path):
    def said(*command):
        done = autotune(*command, folder=tmp_path)
        assert done.returncode == ExitCode.FOUND, done.stderr
        return " ".join(done.stderr.split())

    expected = "no --model is given: this is about a small built-in model"
    assert expected in said("explain", "zero.stage=1")
    (tmp_path / "job.yaml").write_text("world: 2\n")
    assert expected in said("plan", "--job", "job.yaml")
    (tmp_path / "job.yaml").write_text("model: gpt2\nseq_len: 64\nglobal_batch: 8\nworld: 2\n")
    assert "built-in" not in said("plan", "--job", "job.yaml")


@pytest.mark.cases("model", "gpu", "settings", "needs")
def test_nodes_need_releases_and_the_forks_of_amd(model, gpu, settings, needs):
    keys = {"model": model, "seq_len": 4096, "global_batch": 64, "world": 8, "engine": "megatron"}
    found = estimate_candidate(open_outlook(None, keys, FleetWishes(gpu=gpu)), settings)
    assert f"nodes need {needs}" in " ".join(printed(print_estimate, found).split())


def test_adapters_of_a_mixture_are_told_without_building_it(monkeypatch):
    monkeypatch.setattr("autotune.job.model._probe", lambda *_, **__: pytest.fail("built"))
    keys = {"seq_len": 4096, "global_batch": 64, "world": 8, "lora_rank": 16}

    def adapted(model, recompute="none"):
        outlook = open_outlook(None, {**keys, "model": model}, FleetWishes(gpu="H100"))
        found = estimate_candidate(outlook, ["zero.stage=3", f"recompute={recompute}"])
        text = " ".join(printed(print_estimate, found).split())
        return text, parts_of(found.prediction, 0)[1]["activations"]

    text, kept_bytes = adapted("qwen3-30b-a3b")
    assert "experts, as peft has it for this family" in text
    changed_bytes = 48 * 128 * 3 * 2048 * 768 * 2
    assert kept_bytes - adapted("qwen3-30b-a3b", "full")[1] > changed_bytes
    assert "not on experts, which are one tensor" in adapted("gpt-oss-20b")[0]


def test_qlora_is_forecast_alone(tmp_path):
    keys = {"model": "llama-3-8b", "seq_len": 2048, "global_batch": 16, "world": 4}
    gpu, settings = FleetWishes(gpu="A100-80GB"), ["zero.stage=2", "micro_batch=1"]
    found = {}
    for method in ("lora", "qlora"):
        job = tmp_path / f"{method}.yaml"
        job.write_text(f"finetune: {{method: {method}}}\n")
        outlook = open_outlook(JobText.read(job), keys, gpu)
        found[method] = estimate_candidate(outlook, settings)
    parts = {name: parts_of(one.prediction, 0)[1] for name, one in found.items()}
    # 0.52 bytes of a weight in place of 2, but for the embeddings of 13% of them.
    assert 0.3 < parts["qlora"]["parameters"] / parts["lora"]["parameters"] < 0.45
    assert found["qlora"].step_time_s > found["lora"].step_time_s, "weights are unpacked"
    packed = found["qlora"]
    assert "in 4 bits (QLoRA)" in printed(print_estimate, packed)
    assert "bitsandbytes" in packed.outlook.needs(packed.candidate)
    # Experts that lie in one tensor stay wide.
    sizes = {"tied_embeddings": 0.0, "vocab": 10.0, "hidden": 10.0}
    wide = packed_columns(sizes, n_params=1000.0, wide_bytes=2.0, experts=800.0)
    gathered = {"weight_bytes": 2.0, "gather_bytes": 2.0}
    assert wide == gathered | {"dequantized_bytes": pytest.approx(0.5)}
    with pytest.raises(JobError, match="qlora"):
        packed.outlook.engine.files(packed.candidate)
