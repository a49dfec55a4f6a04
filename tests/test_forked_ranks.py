"""Ranks that answer, raise, wait for one that raised, end, and end once only."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked_ranks import ENDED, NO_ANSWER, needs_another_try

REPOSITORY = Path(__file__).resolve().parent.parent

QUESTIONS = """
import json, os, signal, sys, time
from pathlib import Path
import torch.distributed as dist
from tests.forked_ranks import ask

tries = Path(sys.argv[1])

def rank():
    dist.init_process_group("gloo")
    return dist.get_rank()

def agree():
    values = [None, None]
    dist.all_gather_object(values, rank())
    return {"error": None, "sees": values, "long": "x" * 200_000}

def one_raises():
    if rank() == 1:
        raise ValueError("no")
    dist.barrier()

def one_ends():
    me = rank()
    if me == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()

def one_ends_once():
    me = rank()
    if me == 1 and not tries.exists():
        tries.touch()
        os._exit(3)
    dist.barrier()
    return {"error": None}

def wait_for_ever():
    with tries.with_name("waits").open("a") as file:
        file.write("x")
    rank()
    time.sleep(600)

def said(question, within_s=60.0):
    return ask(question, 2, within_s=within_s, after_error_s=1.0)

print(json.dumps({
    "agree": said(agree),
    "one raises": said(one_raises),
    "one ends": said(one_ends),
    "one ends once": said(one_ends_once),
    "wait for ever": said(wait_for_ever, within_s=4.0),
}))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("forked")
    ran = subprocess.run(
        [sys.executable, "-c", QUESTIONS, str(folder / "tried")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert (folder / "waits").read_text() == "xxxx", "two ranks, asked twice"
    found: dict[str, list[dict[str, Any]]] = json.loads(ran.stdout)
    return found


def test_ranks_meet_and_answer_at_length(answers):
    assert [each["sees"] for each in answers["agree"]] == [[0, 1], [0, 1]]
    assert {len(each["long"]) for each in answers["agree"]} == {200_000}


def test_a_rank_that_waits_for_one_that_raised_says_where(answers):
    waits, raised = answers["one raises"]
    assert raised["error"] == "ValueError: no"
    assert "in one_raises" in raised["traceback"]
    assert waits["error"] == NO_ANSWER
    assert "in one_raises" in waits["traceback"]


def test_a_rank_that_ends_is_told_from_one_that_lost_it(answers):
    lost, ended = answers["one ends"]
    assert ended["error"] == f"{ENDED}: SIGKILL"
    assert lost["error"] != ended["error"]
    assert needs_another_try([lost, ended])


def test_what_went_wrong_once_without_a_cause_is_asked_again(answers):
    assert [each["error"] for each in answers["one ends once"]] == [None, None]


def test_a_wait_has_an_end(answers):
    assert [each["error"] for each in answers["wait for ever"]] == [NO_ANSWER, NO_ANSWER]


LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4"


@pytest.mark.parametrize(
    ("errors", "again"),
    [
        ((None, None), False),
        ((LOST, None), True),
        ((LOST, NO_ANSWER), True),
        ((LOST, "ValueError: 3 heads"), False),
        ((NO_ANSWER, "ValueError: 3 heads"), False),
    ],
)
def test_an_error_of_its_own_is_not_asked_about_twice(errors, again):
    assert needs_another_try([{"error": error} for error in errors]) is again
