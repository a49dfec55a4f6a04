"""An agent ends when its lease is over."""

import json
import os

import pytest

from autotune.fleet.node import agent


class Coordinator:
    """The other end of an agent's input and output, and a clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.commands, self._say = os.pipe()
        self._answers, output = os.pipe()
        line = agent.AnswerLine(output)
        self.agent = agent.Agent(line, lease_s=60.0, clock=lambda: self.now_s)

    def says(self, command: str) -> None:
        os.write(self._say, json.dumps({"command": command}).encode() + b"\n")

    def goes(self) -> None:
        os.close(self._say)

    def events(self) -> list[str]:
        os.set_blocking(self._answers, False)
        return [json.loads(line)["event"] for line in os.read(self._answers, 4096).splitlines()]


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def test_an_agent_that_hears_nothing_for_its_lease_ends(coordinator, monkeypatch):
    waits: list[float] = []

    def nothing_comes(commands: int, left_s: float) -> None:
        waits.append(left_s)
        coordinator.now_s += 25.0

    monkeypatch.setattr(coordinator.agent, "_wait", nothing_comes)
    coordinator.agent.serve(coordinator.commands)
    assert waits == [60.0, 35.0, 10.0]
    assert coordinator.events() == ["ready"]


def test_every_word_renews_the_lease(coordinator, monkeypatch):
    wait, waits = coordinator.agent._wait, []

    def hears(commands: int, left_s: float) -> bytes | None:
        coordinator.now_s += 50.0
        waits.append(left_s)
        if len(waits) <= 3:
            coordinator.says("alive")
        else:
            coordinator.says("close")
        return wait(commands, left_s)

    monkeypatch.setattr(coordinator.agent, "_wait", hears)
    coordinator.agent.serve(coordinator.commands)
    assert waits == [60.0] * 4
    assert coordinator.events() == ["ready", "alive", "alive", "alive"]


def test_an_agent_whose_input_ends_ends(coordinator: Coordinator) -> None:
    coordinator.goes()
    coordinator.agent.serve(coordinator.commands)
    assert coordinator.events() == ["ready"]
