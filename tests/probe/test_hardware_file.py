"""A probe's file is a table of accelerators, and nothing that is not its own is written over."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from autotune.base.errors import FleetError, JobError, StudyError
from autotune.devices.accelerators import accelerators_with, find_accelerator, read_accelerators
from autotune.devices.hardware import Environment
from autotune.probe.figures import figures_of
from autotune.probe.hardware_file import check_writable, entry_of, fits_of, write_hardware
from tests.jobs import CPU
from tests.probe.made_up import (
    CALL_S,
    FLOPS,
    LATENCY_S,
    LOGIT_S,
    NETWORK_LATENCY_S,
    NETWORK_SHARE,
    RATES,
    STREAM,
    points,
)

GPU = Environment(
    accelerator="cuda",
    n_devices=4,
    device_name="NVIDIA A100-SXM4-80GB",
    device_memory_bytes=int(79.25 * 2**30),
    peak_flops=312e12,
    deepspeed_version="0.19.8",
    torch_version="2.11.0",
)


def write(
    path: Path, environment: Environment, *, per_node: int = 4, n_nodes: int = 1, **changes: float
) -> Path:
    found = points(per_node, n_nodes=n_nodes, **changes)
    figures = figures_of(found, per_node, n_nodes)
    is_cpu = environment.accelerator == "cpu"
    try:
        device_class = find_accelerator("cpu" if is_cpu else environment.device_name)
    except FleetError:
        device_class = None
    entry = entry_of(
        environment,
        figures,
        device_class,
        per_node=per_node,
        n_nodes=n_nodes,
        when="2026-01-02T03:04Z",
    )
    write_hardware(path, entry, {"fits": fits_of(figures)})
    return path


def test_what_was_measured_is_read_back(tmp_path: Path) -> None:
    path = write(tmp_path / "hardware.yaml", GPU)
    found = find_accelerator(
        GPU.device_name, memory_gib=GPU.device_memory_bytes / 2**30, table=accelerators_with(path)
    )
    assert found.name == "A100-80GB"
    assert "2026-01-02" in found.achieved_source
    assert found.achieved_flops["bf16"] == pytest.approx(FLOPS, rel=1e-3)
    assert found.peak_flops["bf16"] == 312e12
    assert found.measured is not None
    assert found.measured.memory_bytes_per_s == pytest.approx(STREAM, rel=1e-3)
    link = found.measured.link
    assert link is not None
    assert link.bytes_per_s == pytest.approx(RATES["all_gather"], rel=1e-3)
    assert link.latency_s == pytest.approx(LATENCY_S, rel=1e-3)
    assert link.all_reduce_speed == pytest.approx(100 / 80, rel=1e-3)
    assert link.all_to_all_speed == pytest.approx(0.5, rel=1e-3)
    assert link.send_speed == pytest.approx(0.75, rel=1e-3)
    assert found.measured.network is None
    assert found.measured.host_bytes_per_s is None
    assert found.measured.layer_s is None


def test_a_measured_network_is_read_back(tmp_path: Path) -> None:
    path = write(tmp_path / "hardware.yaml", GPU, n_nodes=2)
    (found,) = read_accelerators(path)
    assert found.measured is not None
    link, network = found.measured.link, found.measured.network
    assert link is not None
    assert network is not None
    assert link.bytes_per_s == pytest.approx(RATES["all_gather"], rel=1e-3)
    assert network.bytes_per_s == pytest.approx(NETWORK_SHARE * RATES["all_gather"], rel=1e-3)
    assert network.latency_s == pytest.approx(NETWORK_LATENCY_S, rel=1e-3)
    assert network.all_reduce_speed == pytest.approx(100 / 80, rel=1e-3)
    assert "4 rank(s) on each of 2 nodes" in found.achieved_source
    # The vendor's own figure stays beside it.
    assert found.network_bytes_per_s == find_accelerator("A100-80GB").network_bytes_per_s
    fits = {fit["of"]: fit for fit in yaml.safe_load(path.read_text())["probe"]["fits"]}
    assert fits["send between nodes"]["gb_per_s"] == pytest.approx(3, rel=1e-3)
    assert fits["all_to_all of all ranks"]["beyond"] == pytest.approx(1, rel=1e-3)


def test_one_rank_of_each_node_measures_the_network_alone(tmp_path: Path) -> None:
    (found,) = read_accelerators(write(tmp_path / "cpu.yaml", CPU, per_node=1, n_nodes=2))
    assert found.measured is not None
    assert found.measured.link is None
    assert found.measured.network is not None


def test_an_entry_comes_before_the_shipped_one_of_its_name(tmp_path: Path) -> None:
    for environment, name in ((GPU, "A100-80GB"), (CPU, "cpu")):
        table = accelerators_with(write(tmp_path / "hardware.yaml", environment))
        assert find_accelerator(name, table=table) is table[0]


def test_cpu_ranks_have_the_memory_of_their_node_together(tmp_path: Path) -> None:
    (found,) = read_accelerators(write(tmp_path / "cpu.yaml", CPU, layer_s=2e-3))
    assert found.measured is not None
    assert found.measured.host_memory_bytes_per_s == pytest.approx(4 * STREAM, rel=1e-3)
    assert found.measured.layer_s == pytest.approx(2e-3)
    # 4 x samples x heads x tokens^2 x width, half of it forward and 2.5 times that backward.
    score_flops = 4 * 2 * 4 * 100**2 * 50
    rates = found.measured.attention["bf16"]
    assert rates.forward_flops_per_s == pytest.approx(0.5 * score_flops / 1e-3, rel=1e-3)
    assert rates.backward_flops_per_s == pytest.approx(1.25 * score_flops / 10e-3, rel=1e-3)
    assert found.measured.logit_s == {"bf16": pytest.approx(LOGIT_S, rel=1e-3)}


def test_a_device_in_no_table_is_what_it_reached(tmp_path: Path) -> None:
    other = dataclasses.replace(GPU, device_name="Acme (X) 1")
    (found,) = read_accelerators(write(tmp_path / "own.yaml", other))
    assert found.name == "Acme-X-1"
    assert found.peak_flops == found.achieved_flops
    assert find_accelerator("Acme (X) 1", table=[found]) is found


def test_the_file_says_how_well_each_curve_fits(tmp_path: Path) -> None:
    data = yaml.safe_load(write(tmp_path / "hardware.yaml", GPU).read_text())
    fits = {fit["of"]: fit for fit in data["probe"]["fits"]}
    assert set(fits) == {"matmul bf16", *RATES}
    assert fits["send"]["gb_per_s"] == pytest.approx(60, rel=1e-3)
    assert fits["send"]["error"] < 1e-3
    assert fits["matmul bf16"]["latency_us"] == pytest.approx(CALL_S * 1e6, rel=0.1)


def test_a_file_of_another_kind_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: gpt2\n", encoding="utf-8")
    with pytest.raises(StudyError, match="was not written by `autotune probe`"):
        check_writable(path)
    ours = write(tmp_path / "hardware.yaml", GPU)
    check_writable(ours)
    check_writable(tmp_path / "new.yaml")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hardware.yaml", "job.yaml"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="there is no such folder"):
        check_writable(tmp_path / "nowhere" / "hardware.yaml")
    with pytest.raises(StudyError, match="hardware"):
        check_writable(Path("/proc/hardware.yaml"))
    with pytest.raises(StudyError, match="was not written by `autotune probe`"):
        check_writable(tmp_path)


@pytest.mark.cases("before", "after")
def test_a_measured_figure_that_is_none_is_refused(before, after, tmp_path) -> None:
    path = write(tmp_path / "hardware.yaml", GPU)
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    with pytest.raises(JobError, match=r"A100-80GB\.measured"):
        read_accelerators(path)


def test_a_file_of_another_form_says_to_probe_again(tmp_path: Path) -> None:
    path = write(tmp_path / "hardware.yaml", GPU)
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    data["accelerators"]["A100-80GB"]["measured"]["link_gb_per_s"] = 80.0
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(JobError, match="link_gb_per_s") as refused:
        read_accelerators(path)
    assert refused.value.hint is not None
    assert "probe` again" in refused.value.hint


@pytest.mark.parametrize("figure", [1e-320, 1e300])
def test_a_rate_that_no_time_can_be_divided_by_is_refused(figure: float, tmp_path: Path) -> None:
    path = write(tmp_path / "hardware.yaml", GPU, n_nodes=2)
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    data["accelerators"]["A100-80GB"]["measured"]["network"]["gb_per_s"] = figure
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(JobError, match=r"measured\.network\.gb_per_s"):
        read_accelerators(path)
