"""Each case runs in a process of its own: a limit cannot be taken back."""

import json
import subprocess
import sys

import pytest

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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
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


NOT_WRITABLE = """
import ctypes, mmap
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [
    ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def mapped(size, flags=0):
    at = libc.mmap(None, size, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags, -1, 0)
    assert at not in (None, 2**64 - 1), "no memory"
    ctypes.memset(at, 1, size)
    return at
"""

HIDES = {
    "pieces that are filled, and then only read": (
        "for _ in range(8):\n    at = mapped(30 * 2**20); libc.mprotect(at, 30 * 2**20, 1)"
    ),
    "pieces that are filled, and then not accessible": (
        "for _ in range(8):\n    at = mapped(30 * 2**20); libc.mprotect(at, 30 * 2**20, 0)"
    ),
    "pieces that are filled, and then run": (
        "for _ in range(8):\n    at = mapped(30 * 2**20); libc.mprotect(at, 30 * 2**20, 5)"
    ),
    "stacks (MAP_GROWSDOWN)": "for _ in range(8):\n    at = mapped(30 * 2**20, 0x100)",
    "a limit that is raised": (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))\n"
        "x = torch.empty(240 * 2**20, dtype=torch.uint8)"
    ),
    "a limit that is raised, and memory that is gone": (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (2**50, -1))\n"
        "x = torch.empty(240 * 2**20, dtype=torch.uint8); meter._sample(); del x"
    ),
}


FINE = {
    "memory below the limit": "at = mapped(90 * 2**20)",
    "memory after the limit": "meter.lift(); at = mapped(240 * 2**20)",
    "memory that was protected": "at = mapped(60 * 2**20); libc.mprotect(at, 60 * 2**20, 1)",
}

FORKED = """
import json, os, sys
import torch
from autotune.trial.memory import make_meter
{helpers}
for how, body in json.loads(sys.stdin.read()).items():
    if os.fork() == 0:
        meter = make_meter("cpu")
        meter.start(100 * 2**20)
        exec(body)
        said = ""
        try:
            meter.check()
        except RuntimeError as error:
            said = str(error)
        meter.lift()
        print(json.dumps([how, meter.read()["peak"], said]), flush=True)
        os._exit(0)
    os.wait()
"""


def test_private_memory_beside_its_limit_is_seen_and_no_other():
    code = FORKED.format(helpers=NOT_WRITABLE)
    request = json.dumps(HIDES | FINE)
    done = subprocess.run(
        [sys.executable, "-c", code], input=request, capture_output=True, text=True
    )
    seen = {how: (peak, text) for how, peak, text in map(json.loads, done.stdout.splitlines())}
    assert seen.keys() == HIDES.keys() | FINE.keys(), done.stderr
    for how in HIDES:
        peak_bytes, text = seen[how]
        assert 240 * 2**20 <= peak_bytes < 270 * 2**20, how
        assert f"over the limit of {100 * 2**20} bytes" in text, how
    for how in FINE:
        assert seen[how][1] == "", how


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
