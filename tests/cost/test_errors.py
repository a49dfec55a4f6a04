"""Intervals of predictions: wider where nobody looked, the same as fits, refused if wrong."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.base.errors import JobError
from autotune.cost import Prediction, predict
from autotune.cost.errors import (
    LEVEL,
    SHIPPED_CPU,
    Ends,
    Errors,
    ForecastBasis,
    LogSpread,
    Margin,
    Widths,
    basis_of,
    load_errors,
)
from autotune.cost.table import TableRows, rows_to_plans
from autotune.devices.accelerators import find_accelerator, shipped_accelerators
from autotune.devices.probed import MeasuredRates
from tests.cost.rows import row


def ends(low: float, high: float = 0.0) -> Ends:
    return Ends(low=low, high=high or low, sources=9)


ERRORS = Errors(
    sources=9,
    step_time=Widths(
        kinds={"all": ends(0.5), "dense": ends(0.3), "dense known": ends(0.1, 0.2)},
        wider={"doubt": 2.0},
    ),
    peak_memory=Widths(kinds={"all": ends(0.4), "dense known": ends(0.2, 0.3)}, wider={}),
    accelerators={"megatron": ["A100-80GB"]},
)
CLOSED = {
    **{"loss": "fused", "recompute": "none", "attention": "flash", "zero_stage": "1"},
    "software": "2025",
}


def read(*rows: dict[str, str]) -> tuple[TableRows, Prediction, ForecastBasis]:
    found = rows_to_plans(rows, shipped_accelerators())
    assert found.plans is not None, found.reasons
    said = predict(found.plans)
    facts = ERRORS.facts_of(
        found.frameworks, found.accelerators, found.open, found.fewest_logit_bytes
    )
    return found, said, basis_of(said, facts)


def margin(*rows: dict[str, str]) -> tuple[Prediction, Margin]:
    _, said, basis = read(*rows)
    return said, ERRORS.reach_of(basis)


def test_a_framework_is_known_on_accelerators_like_those_it_ran_on() -> None:
    a100, a800, h100 = (find_accelerator(name) for name in ("A100", "A800", "H100"))
    probed = replace(h100, measured=MeasuredRates())
    fleet = [a100, a800, h100, probed]
    ours = ERRORS.facts_of(["megatron"] * 4, fleet, {})
    assert ours.is_known.tolist() == [True, True, False, True]
    assert ours.new_accelerator.tolist() == [False, False, True, False]
    assert not ours.new_framework.any()
    others = ERRORS.facts_of(["fsdp"] * 4, fleet, {})
    assert not others.is_known.any()
    assert others.new_framework.all()


def test_a_kind_that_too_few_sources_have_counts_as_the_next_wider_one() -> None:
    widths = ERRORS.step_time
    wanted = ("dense known small", "dense unknown large", "experts known large")
    assert [widths.nearest(kind) for kind in wanted] == ["dense known", "dense", "all"]
    _, found = margin(row(**CLOSED), row(**{**CLOSED, "framework": "fsdp", "zero_stage": "3"}))
    some = "9 sources of dense models, known framework and accelerator"
    wider = "(too few are closer to this one)"
    assert found.evidence_at(0) == f"time: {some} {wider}; memory: {some} {wider}"
    assert f"memory: 9 sources of all kinds of runs {wider}" in found.evidence_at(1)


def test_what_is_in_doubt_widens_both_ends() -> None:
    alone = row(**CLOSED, n_gpus="1", tp="1", pp="1", dp="1")
    _, _, basis = read(alone, row(**CLOSED, tp="8", pp="1", dp="8"))
    doubt = basis.parts["doubt"]
    assert doubt[0] < doubt[1]
    found = ERRORS.reach_of(basis).step_time
    assert np.allclose(found.low, 0.1 * (1 + 2 * doubt))
    assert np.allclose(found.high, 0.2 * (1 + 2 * doubt))


def test_fits_is_the_share_of_the_interval_s_distribution_below_the_limit() -> None:
    spread = LogSpread(low=np.full(4, 0.2), high=np.full(4, 0.4))
    peak = np.full(4, 60.0)
    limits = 60.0 * np.exp([-0.2, 0.0, 0.4, 0.4 * 0.8416 / 1.6449])
    assert spread.below(limits, peak) == pytest.approx([0.05, 0.5, 0.95, 0.8], abs=1e-4)


def test_a_peak_that_just_fits_has_its_upper_end_at_the_memory_of_the_device() -> None:
    said, found = margin(row(**CLOSED))
    high = said.peak_memory_bytes * np.exp(found.peak_memory.high)
    full = replace(said, plans=replace(said.plans, memory_bytes=high))
    assert found.judge(full).fit_probability == pytest.approx([0.95], abs=1e-4)
    assert said.fit_probability.tolist() == [1.0], "by the peak alone"


@pytest.mark.parametrize(
    ("open_", "deviation"), [({"software": ""}, 0.1), ({"offload": "cpu(optimizer)"}, 0.5)]
)
def test_unknown_age_and_prices_of_hosts_widen_times_and_not_peaks(open_, deviation) -> None:
    kinds = {**CLOSED, "offload": "none"}
    rows = row(**kinds), row(**{**kinds, **open_})
    _, _, basis = read(*rows)
    for end in basis.open_time:
        assert end.tolist() == [0.0, pytest.approx(deviation)]
    time = margin(*rows)[1].step_time
    assert time.low[1] > time.low[0]
    assert not np.any(basis.open_memory)


def test_what_a_row_leaves_open_reaches_the_other_way() -> None:
    whole = {"pp": "1", "dp": "16"}
    opens = ({}, {"recompute": ""}, {"loss": ""}, {"zero_stage": ""})
    _, said, basis = read(*(row(**{**CLOSED, **whole, **each}) for each in opens))
    full = predict(replace(said.plans, recompute=2.0))
    log_time = np.log(full.step_time_s[1] / said.step_time_s[1])
    log_peak = np.log(said.peak_memory_bytes[1] / full.peak_memory_bytes[1])
    assert basis.open_time[1][1] == pytest.approx(log_time)
    assert basis.open_memory[0][1] == pytest.approx(log_peak)
    assert basis.open_memory[1][1] == 0.0
    assert basis.open_memory[0][2] == pytest.approx(
        np.log(said.peak_memory_bytes[2] / said.peak_memory_bytes[0])
    ), "a fused loss keeps less"
    assert basis.open_memory[1][3] > 0.1, "without sharded states it takes more"
    assert not basis.open_memory[0][0]
    assert not basis.open_time[0][0]


def test_routing_that_nobody_forces_may_be_slower_and_not_faster() -> None:
    mixture = {**CLOSED, "n_experts": "8", "experts_per_token": "2", "ep": "8"}
    routing = ({}, {"forced_balance": "1"}, {"expert_imbalance": "1.3"})
    rows = [row(**mixture, **each) for each in routing]
    said, found = margin(*rows, row(**{**mixture, "ep": "1"}))
    slower = np.exp(found.step_time.high - found.step_time.low)
    assert slower == pytest.approx([1.5, 1.0, 1.0, 1.0])
    assert said.step_time_s[2] > said.step_time_s[1]


def test_a_framework_whose_own_runs_scatter_is_wider() -> None:
    said, found = margin(row(**CLOSED))
    own = {"frameworks": {"megatron": 2.0, "deepspeed": 9.0}}
    wider = ERRORS.model_copy(update={"step_time": ERRORS.step_time.model_copy(update=own)})
    facts = ERRORS.facts_of(["megatron"], [find_accelerator("A100")], {})
    assert wider.reach(said, facts).step_time.high == pytest.approx(2 * found.step_time.high)
    assert wider.reach(said, facts).peak_memory.high == found.peak_memory.high


@pytest.mark.parametrize(
    ("framework", "open_"),
    [
        ("deepspeed", "zero_stage"),  # any stage: the third holds least
        ("automodel", "loss"),  # a loss in chunks keeps no logits
    ],
)
def test_what_nobody_says_lets_memory_reach_what_holds_least(framework: str, open_: str) -> None:
    alone = {"tp": "1", "pp": "1", "dp": "", "n_layers": "4", "global_batch": "512"}
    said = {**CLOSED, **alone, "framework": framework, "vocab": "150000", "micro_batch": "8"}
    _, found = margin(row(**said), row(**{**said, open_: ""}))
    assert found.peak_memory.low[1] > found.peak_memory.low[0] + 0.3


@pytest.mark.parametrize("path", [None, SHIPPED_CPU])
def test_the_shipped_errors_have_the_widest_kind(path: Path | None) -> None:
    shipped = load_errors() if path is None else load_errors(path)
    assert {"all"} <= shipped.step_time.kinds.keys() & shipped.peak_memory.kinds.keys()
    assert LEVEL == 0.9  # what docs/cost.md and the words of reports say


def test_a_wrong_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "errors.yaml"
    path.write_text("sources: many\n", encoding="utf-8")
    with pytest.raises(JobError, match="sources"):
        load_errors(path)
