"""Each case runs in a forked process of its own: a limit cannot be taken back."""

from pathlib import Path

import pytest

from tests import forked_children

CASE = """
import sys
import torch
from autotune.trial.memory import make_meter
meter = make_meter("cpu")
meter.start({limit})
{body}
"""


def run(body: str, limit: int | None = None) -> str:
    code = CASE.format(limit=limit, body=body)
    done = forked_children.run_code(code, folder=Path("/"), variables={})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_peak_is_what_was_allocated_even_untouched_and_freed():
    body = "x = torch.empty(100 * 2**20, dtype=torch.uint8); meter.read(); del x\n"
    peak = int(run(body + "print(meter.read()['peak'])"))
    assert 100 * 2**20 <= peak < 130 * 2**20


def test_the_watching_thread_sees_a_peak_between_readings():
    body = (
        "import time; x = torch.zeros(200 * 2**20, dtype=torch.uint8)\n"
        "time.sleep(1.0); del x; print(meter.read()['peak'])"
    )
    assert int(run(body)) >= 200 * 2**20


@pytest.mark.parametrize(("mebibytes", "fits"), [(50, True), (150, False)])
def test_the_limit_is_in_the_same_unit(mebibytes, fits):
    body = (
        "try:\n"
        f"    x = torch.empty({mebibytes} * 2**20, dtype=torch.uint8); print('fits')\n"
        "except RuntimeError as error:\n"
        "    print('too much', meter.explains(ValueError()))"
    )
    assert run(body, limit=100 * 2**20) == ("fits" if fits else "too much False")


def test_an_odd_failure_at_the_limit_is_explained_by_it():
    body = (
        "x = torch.empty(99 * 2**20, dtype=torch.uint8)\n"
        "print(meter.explains(SystemError('returned NULL')), meter.explains(KeyboardInterrupt()))"
    )
    assert run(body, limit=100 * 2**20) == "True False"


def test_while_steps_are_measured_it_looks_seldom():
    body = (
        "import threading, time\n"
        "looks = []; sample = meter._sample; meter._sample = lambda: looks.append(sample())\n"
        "closely = 0\n"
        "for _ in range(20):  # a busy machine may leave it little of half a second\n"
        "    before = len(looks); time.sleep(0.5); closely = max(closely, len(looks) - before)\n"
        "    if closely > 30: break\n"
        "meter.settle(); before = len(looks); time.sleep(0.5)\n"
        "print(closely, len(looks) - before)"
    )
    closely, settled = map(int, run(body).split())
    assert settled <= 6 < 30 < closely


@pytest.mark.parametrize(
    ("visible", "name"), [("", "1"), ("4,5", "5"), ("4, 5", "5"), ("GPU-a, GPU-b", "GPU-b")]
)
def test_a_rank_asks_about_the_gpu_that_it_sees(visible, name, monkeypatch):
    from autotune.trial.memory import _device_name  # torch

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _device_name(1) == name
