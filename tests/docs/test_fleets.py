"""Every command in the pages about fleets is one that a test runs on such a fleet."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TRANSPORTS = "tests/fleet/transports"
OVER_SSH = f"{TRANSPORTS}/test_hostfile.py::test_a_search_outlives_its_coordinator"
EXAMINED = f"{TRANSPORTS}/test_hostfile.py::test_the_nodes_are_examined_and_probed_together"
SOAKED = "test_nodes_answer_as_here_and_what_they_are_handed_is_soaked_and_launched_on_them"
KINDS = "test_each_kind_of_device_is_searched_and_the_best_for_the_money_is_named"
IN_JOB = "test_a_search_in_an_allocation_leaves_it_and_answers_as_here"
ASKING = "test_a_search_that_asks_for_nodes_gives_them_back_however_it_ends"
ON_RAY = (
    f"{TRANSPORTS}/test_ray.py::"
    "test_what_a_killed_coordinator_ran_ends_and_its_nodes_run_another_trial"
)

RUN_BY = {
    "doctor --fleet hostfile:": EXAMINED,
    "search --fleet hostfile:hostfile --model": OVER_SSH,
    "--fleet-option kind=each": f"{TRANSPORTS}/test_ssh_faults.py::{KINDS}",
    "soak --fleet hostfile:": f"{TRANSPORTS}/test_hostfile.py::{SOAKED}",
    "export --launcher deepspeed": OVER_SSH,
    "--fleet slurm\n": f"{TRANSPORTS}/test_slurm.py::{IN_JOB}",
    "--fleet slurm:4711": f"{TRANSPORTS}/test_slurm.py::{IN_JOB}",
    '--fleet slurm:"-N 4': f"{TRANSPORTS}/test_slurm.py::{ASKING}",
    "--fleet ray ": ON_RAY,
    "--fleet ray:": ON_RAY,
}
"""Words of a command -> the test that runs it, with a model and nodes of the test's own."""


def commands() -> list[str]:
    pages = (page.read_text(encoding="utf-8") for page in REPOSITORY.glob("docs/fleet*.md"))
    blocks = (
        block for page in pages for block in re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)
    )
    lines = (f"{line}\n" for block in blocks for line in block.splitlines())
    return [line for line in lines if line.startswith("autotune")]


@pytest.mark.parametrize("command", commands())
def test_a_command_is_run_by_a_test(command: str) -> None:
    (test,) = (test for words, test in RUN_BY.items() if words in command)
    path, _, name = test.partition("::")
    assert f"\ndef {name}(" in (REPOSITORY / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("words", RUN_BY)
def test_no_test_is_named_for_nothing(words: str) -> None:
    assert any(words in command for command in commands())
