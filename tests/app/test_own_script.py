"""What is known of a user's own command before it has run."""

import pytest

from autotune.app.own_script import world_of
from tests.jobs import CPU


@pytest.mark.parametrize(
    ("command", "variable", "world"),
    [
        ("axolotl train x.yaml --launcher torchrun -- --nproc-per-node 3", "", 3),
        ("torchrun --nproc-per-node {world=3} train.py", "", 3),
        ("llamafactory-cli train x.yaml", "3", 3),
        ("python train.py", "", 2),
    ],
)
def test_the_ranks_that_a_command_is_expected_to_start(
    monkeypatch: pytest.MonkeyPatch, command: str, variable: str, world: int
) -> None:
    monkeypatch.setenv("NPROC_PER_NODE", variable)
    assert world_of(command.split(), CPU) == world
