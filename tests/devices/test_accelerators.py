"""The table of accelerators: complete, found by name, extended by users."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from autotune.base.errors import ExitCode, FleetError, JobError
from autotune.devices.accelerators import (
    accelerators_with,
    find_accelerator,
    named_accelerator,
    read_accelerators,
    shipped_accelerators,
)
from autotune.devices.topology import parse_topology
from tests.cases import data_beside

DATA = data_beside(__file__)

ENTRIES = DATA["ENTRIES"]


@pytest.mark.cases("device", "memory_gib", "name")
def test_devices_as_people_name_them(device: str, memory_gib: float | None, name: str) -> None:
    assert find_accelerator(device, memory_gib=memory_gib).name == name


def test_an_unknown_device_is_answered_with_the_known_ones() -> None:
    with pytest.raises(FleetError) as error:
        find_accelerator("Gaudi3")
    assert "Gaudi3" in error.value.message
    assert "H100" in error.value.hint
    assert error.value.hint.startswith("add an entry"), "no device of NVIDIA's was meant"
    assert "--accelerators" in error.value.hint


def test_a_mistyped_name_is_the_users_input_and_no_missing_fleet() -> None:
    with pytest.raises(JobError, match=r"--gpu: no figures .* 'H1000'") as error:
        named_accelerator("H1000", where="--gpu")
    assert error.value.exit_code is ExitCode.INVALID_INPUT
    assert error.value.hint.startswith("did you mean H100")
    assert "GB300" not in error.value.message
    assert named_accelerator("h100", where="--gpu").name == "H100"
    with pytest.raises(JobError, match="more than one accelerator"):
        named_accelerator("H100,A100", where="--gpu")


def test_nothing_reaches_more_than_its_peak() -> None:
    for entry in shipped_accelerators():
        assert entry.achieved_flops.keys() == entry.peak_flops.keys()
        for precision, rate in entry.achieved_flops.items():
            assert rate <= entry.peak_flops[precision], (entry.name, precision)
        assert entry.source
        assert entry.achieved_source


def test_names_are_found_again() -> None:
    for entry in shipped_accelerators():
        plain = entry.name.replace("-", " ").replace("PCIe", "PCIE")
        memory_gib = entry.memory_bytes / 2**30
        if "V100 PCIE" in plain:
            plain = "V100-PCIE"
        assert find_accelerator(plain, memory_gib=memory_gib).name == entry.name


def test_own_entries_come_first(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(ENTRIES, encoding="utf-8")
    table = accelerators_with(path)
    assert find_accelerator("A100", table=table).name == "Mine"
    mine = find_accelerator("mine", table=table)
    # What was not measured reaches the share that half precision does.
    assert mine.achieved_flops["fp8"] == pytest.approx(160e12)


@pytest.mark.cases("before", "after", "message", "hint")
def test_a_wrong_entry_is_named(before, after, message, hint, tmp_path):
    path = tmp_path / "own.yaml"
    assert before in ENTRIES
    path.write_text(ENTRIES.replace(before, after), encoding="utf-8")
    with pytest.raises(JobError, match=message) as error:
        read_accelerators(path)
    assert re.search(hint, error.value.hint)
    assert error.value.message.count("network_topology") <= 1


def test_an_entry_is_read_as_it_is_spelled(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    for entry in shipped_accelerators():
        network = parse_topology("fat-tree,nodes_per_group=16,oversubscription=4,hop=500ns")
        # As drivers tell it: no round number.
        told = replace(entry, topology=network, memory_bytes=entry.memory_bytes + 63 * 2**20)
        path.write_text(yaml.safe_dump({"accelerators": {entry.name: told.spelled()}}))
        (found,) = read_accelerators(path)
        assert found.topology == network
        assert found.memory_bytes == pytest.approx(told.memory_bytes, abs=2**20)


def test_an_entry_is_found_by_its_own_name() -> None:
    for entry in shipped_accelerators():
        assert find_accelerator(entry.name) is entry
        assert find_accelerator(entry.name.lower(), memory_gib=1.0) is entry


def test_a_slice_of_a_device_is_not_the_device() -> None:
    with pytest.raises(FleetError, match="slice"):
        find_accelerator("NVIDIA A100-SXM4-80GB MIG 1g.10gb")
    assert find_accelerator("NVIDIA A100 80GB PCIe").name == "A100-PCIe"


def test_a_precision_without_figures_is_named() -> None:
    v100 = find_accelerator("V100-32GB")
    assert v100.half == "fp16"
    with pytest.raises(JobError, match="bf16 on V100"):
        v100.rate("bf16")


def test_nvlink_ends_with_the_node_or_spans_the_rack_or_joins_pairs() -> None:
    a100, rack, pairs = map(find_accelerator, ("A100-80GB", "GB200", "A100-PCIe"))
    assert a100.links(8) == (a100.nvlink_bytes_per_s, 8)
    assert a100.links(1) == (a100.nvlink_bytes_per_s, 1)
    assert rack.links(4) == (rack.nvlink_bytes_per_s, rack.nvlink_domain)
    assert pairs.links(2) == (pairs.nvlink_bytes_per_s, 2)
    assert pairs.links(8) == (pairs.host_bytes_per_s, 8)
