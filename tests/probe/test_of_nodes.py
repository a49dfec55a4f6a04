"""What a probe of several nodes takes for the network, and what it says of nodes that differ."""

from autotune.devices.accelerators import find_accelerator
from autotune.fleet.transports.base import Node
from autotune.probe import run
from autotune.probe.figures import figures_of
from autotune.probe.findings import conclude
from autotune.probe.measuring import device_names
from tests.probe.made_up import points


def test_nvlink_beyond_a_node_is_not_taken_for_the_network() -> None:
    found = figures_of(points(2, n_nodes=2), 2, 2)
    rack, node = find_accelerator("GB200"), find_accelerator("H100")
    assert rack.nvlink_domain > rack.devices_per_node
    figures = run._without_rack(found, rack)
    assert figures.measured.network is None
    assert figures.measured.link == found.measured.link
    assert figures.beyond == {}
    (warning,) = conclude([], figures, names=[], device_class=None, rack=rack)
    assert "NVLink joins 72 GB200" in warning
    assert all(run._without_rack(found, other) is found for other in (node, None))


def test_devices_that_were_left_out_are_told_of_where_they_share_a_network() -> None:
    found = points(2, n_nodes=2)
    figures = figures_of(found, 2, 2)
    (warning,) = conclude(found, figures, names=[], device_class=None, few=(2, 8))
    assert "2 of a node's 8 devices" in warning
    assert conclude(found, figures, names=[], device_class=None, few=(8, 8)) == ()


def test_ranks_are_named_by_node_and_another_device_is_told_of() -> None:
    reports = [{"place": place} for place in (0, 1, 0, 1)]
    nodes = [Node(name=name, devices=("0", "1")) for name in ("a", "b")]
    names = device_names(reports, "cuda", nodes)
    assert names == ("GPU 0 of a", "GPU 1 of a", "GPU 0 of b", "GPU 1 of b")
    assert device_names(reports[:2], "cuda", nodes[:1]) == ("GPU 0", "GPU 1")
    kinds = ("H100", "H100", "H200", "H200")
    figures = figures_of(points(2, n_nodes=2), 2, 2)
    warnings = conclude([], figures, names=names, device_class=None, kinds=kinds)
    assert len(warnings) == 2
    assert "rank 2 (GPU 0 of b) is another device than rank 0: H200" in warnings[0]
