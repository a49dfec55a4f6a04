"""What is said where nothing fits: the smallest changes with which something does."""

import io

import pytest
from rich.console import Console

from autotune.app.planning import open_outlook
from autotune.planning.outlook import FleetWishes
from autotune.planning.ranking import rank_lattice
from autotune.report.candidates.ranking import print_ranking

LARGE = {"model": "llama-3-70b", "seq_len": 8192, "global_batch": 64, "world": 8}
SMALL_GPU = FleetWishes(gpu="A100-40GB")


def test_a_job_that_fits_is_told_no_way_to():
    fits = {"model": "gpt2", "seq_len": 512, "global_batch": 16, "world": 2, "space": "smoke"}
    assert rank_lattice(open_outlook(None, fits, SMALL_GPU)).ways_to_fit == ()


def test_ways_to_fit_go_by_the_wanted_probability():
    outlook = open_outlook(None, {**LARGE, "space": "smoke"}, SMALL_GPU)
    half, surely, rather = (
        {way.flags.split()[0]: way for way in rank_lattice(outlook, min_fit=wanted).ways_to_fit}
        for wanted in (0.5, 0.99, 0.9)
    )
    # The least memory with which one fits as surely as is wanted, and no more.
    assert 0.5 <= half["accelerators"].fit_probability < 0.7
    assert 0.9 <= rather["accelerators"].fit_probability < 0.95
    assert surely["accelerators"].fit_probability >= 0.99


def test_a_mixture_whose_weights_no_layout_holds_is_told_what_would_do():
    mixture = {**LARGE, "model": "qwen3-30b-a3b", "world": 1, "engine": "megatron"}
    found = rank_lattice(open_outlook(None, mixture, SMALL_GPU))
    assert not found.n_probable
    assert any(way.flags.startswith("--world") for way in found.ways_to_fit)


def test_where_no_layout_surely_fits_less_of_adam_on_the_device_is_ranked_as_well():
    mixture = {"model": "qwen3-30b-a3b", "seq_len": 4096, "global_batch": 128, "world": 8}
    found = rank_lattice(
        open_outlook(None, {**mixture, "engine": "megatron"}, FleetWishes(gpu="H100"))
    )
    first = found.candidates[int(found.choices.firsts[0])].values
    assert first["optimizer_offload"] == 1.0
    other = found.candidates[found.otherwise].values
    assert other["adam_moments"] == "bf16"
    assert found.ways_to_fit == ()
    # What does not need it is not offered it.
    wide = rank_lattice(
        open_outlook(None, {**mixture, "world": 32, "engine": "megatron"}, FleetWishes(gpu="H100"))
    )
    assert not wide.candidates.columns["optimizer_offload"].any()


def test_what_needs_more_of_the_host_than_a_node_has_does_not_fit():
    free = rank_lattice(open_outlook(None, LARGE, SMALL_GPU))
    needed = free.prediction.host_memory_bytes[int(free.choices.firsts[0])]
    assert 300 * 2**30 < needed < 2**40
    assert free.n_likely
    tight = rank_lattice(open_outlook(None, {**LARGE, "host_memory": "300GiB"}, SMALL_GPU))
    fits = tight.prediction.fit_probability > 0
    assert (tight.prediction.host_memory_bytes[fits] <= 300 * 2**30).all()
    assert not tight.n_likely
    out = io.StringIO()
    print_ranking(Console(file=out, width=4000), tight, top=1)
    assert "need more than 300 GiB per node count as not fitting" in out.getvalue()
    way = next(way for way in tight.ways_to_fit if way.flags.startswith("--host-memory"))
    assert f"{way.flags} ({way.described}" in out.getvalue()
    assert way.fit_probability >= 0.9
    least = float(way.flags.removeprefix("--host-memory ").removesuffix("GiB"))
    for gib, fits in ((least, True), (least - 0.02, False)):
        there = rank_lattice(
            open_outlook(None, {**LARGE, "host_memory": f"{gib:.2f}GiB"}, SMALL_GPU)
        )
        assert bool(there.n_likely) is fits


def test_where_nobody_says_what_a_host_has_rows_above_the_usual_do_not_fit():
    job = {"model": "mixtral-8x22b", "seq_len": 4096, "global_batch": 64, "world": 16}
    fleet = FleetWishes(gpu="H100", per_node=16)
    found = rank_lattice(open_outlook(None, job, fleet))
    above = found.prediction.host_memory_bytes > 2 * 2**40
    assert above.any()
    assert not found.prediction.fit_probability[above].any()
    sure = found.prediction.fit_probability[found.choices.firsts] >= 0.9
    out = io.StringIO()
    print_ranking(Console(file=out, width=4000), found, top=10)
    # The head counts choices, of which each may have several candidates.
    assert f"; {sure.sum()} choices fit with a probability of" in out.getvalue()
    assert sure.sum() < found.n_likely
    assert "need more than 2 TiB per node count as not fitting: such nodes" in out.getvalue()
    named = rank_lattice(open_outlook(None, {**job, "host_memory": "8TiB"}, fleet))
    assert named.n_likely > found.n_likely


@pytest.mark.parametrize(("engine", "space"), [("deepspeed", "zero"), ("megatron", None)])
def test_the_ways_that_are_named_do_fit(engine, space):
    named = {} if space is None else {"space": space}
    found = rank_lattice(open_outlook(None, {**LARGE, "engine": engine, **named}, SMALL_GPU))
    assert found.n_likely == 0
    out = io.StringIO()
    print_ranking(Console(file=out, width=4000), found, top=1)
    assert "no candidate is likely to fit: the smallest" in out.getvalue()
    assert all(f"{way.flags} ({way.described}" in out.getvalue() for way in found.ways_to_fit)
    flags = [way.flags for way in found.ways_to_fit]
    if worlds := [way for way in found.ways_to_fit if way.flags.startswith("--world")]:
        wider = {**LARGE, **named, "world": int(worlds[0].flags.split()[1])}
        there = rank_lattice(open_outlook(None, {**wider, "engine": engine}, SMALL_GPU))
        best = there.prediction.fit_probability.max()
        assert best >= worlds[0].fit_probability - 1e-9
    memory = next(flag for flag in flags if flag.startswith("accelerators of"))
    if "--gpu " in memory:
        larger = FleetWishes(gpu=memory.split("--gpu ")[1])
        assert rank_lattice(
            open_outlook(None, {**LARGE, "engine": engine, **named}, larger)
        ).n_likely
    if engine == "deepspeed":
        assert "--space plan" in flags
        assert rank_lattice(open_outlook(None, LARGE, SMALL_GPU)).n_likely
