"""What a node says of itself, and which of its addresses others reach."""

import importlib.metadata
import socket

import pytest

from autotune.base.errors import FleetError
from autotune.fleet.node import inventory
from autotune.fleet.node.answers import MARK, answer, read_answer
from autotune.fleet.node.inventory import Inventory, address_of, take_inventory

ADDRESSES = {"eth0": ["10.0.0.7"], "ib0": ["10.1.0.7"], "lo": ["127.0.0.1"]}


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Interfaces of a node, and what its name leads to."""
    names = {"leads_to": "127.0.0.1"}

    def lookup(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(None, None, None, None, (names["leads_to"], 0))]

    monkeypatch.setattr(inventory, "_addresses", lambda: ADDRESSES)
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    return names


def test_it_is_the_address_by_which_ssh_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.1.0.1 4711 10.1.0.7 22")
    assert address_of("") == ("10.1.0.7", "ib0")


def test_an_interface_that_is_named_comes_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.1.0.1 4711 10.1.0.7 22")
    assert address_of("eth0") == ("10.0.0.7", "eth0")
    with pytest.raises(FleetError, match="no interface 'ib1'") as raised:
        address_of("ib1")
    assert "eth0, ib0, lo" in raised.value.hint


def test_without_ssh_it_is_the_one_of_its_name_unless_that_is_loopback(network):
    assert address_of("") == ("10.0.0.7", "eth0"), "its name leads to loopback"
    network["leads_to"] = "10.1.0.7"
    assert address_of("") == ("10.1.0.7", "ib0")


def test_a_node_without_a_network_has_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "_addresses", lambda: {"lo": ["127.0.0.1"]})
    assert address_of("") == ("127.0.0.1", "lo")


def test_an_inventory_travels_as_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = take_inventory()
    answer(lambda: found)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(MARK)
    assert read_answer(line, Inventory) == found
    assert found.releases["python"]


def test_it_tells_the_releases_of_the_engines_that_are_there(monkeypatch):
    def version(package: str) -> str:
        if package == "peft":
            raise importlib.metadata.PackageNotFoundError(package)
        return f"1.0 of {package}"

    monkeypatch.setattr(importlib.metadata, "version", version)
    releases = inventory.releases_here()
    for engine in ("deepspeed", "megatron-core"):
        assert releases[engine] == f"1.0 of {engine}"
    assert "peft" not in releases


def test_a_node_that_cannot_says_why_and_how_to_mend_it(capsys):
    def find() -> Inventory:
        raise FleetError("torch is not installed", "pip install torch")

    answer(find)
    error = read_answer(capsys.readouterr().out.strip(), Inventory)
    assert isinstance(error, FleetError)
    assert (error.message, error.hint) == ("torch is not installed", "pip install torch")


@pytest.mark.parametrize("text", ["{}", '{"environment": {}}', "{no JSON}"])
def test_what_is_no_inventory_is_none(text: str) -> None:
    error = read_answer(MARK + text, Inventory)
    assert isinstance(error, FleetError)
    assert error.message.startswith("an answer that cannot be read")
