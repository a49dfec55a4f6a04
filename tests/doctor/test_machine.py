"""Looking at the machine that the test runs on, and the command that does."""

import json
import platform
import py_compile
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from autotune.devices import in_use
from autotune.doctor import Level, Speed, diagnose, findings
from autotune.doctor.findings import inspect_machine, uncompiled_folder
from autotune.engines.deepspeed.extensions import extensions_folder
from autotune.trial.prebuilt import BUILT_FILE


@pytest.fixture
def extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(in_use, "_SAMPLE_S", 0.01)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    folder = extensions_folder("cpu")
    folder.mkdir()
    return folder


def test_what_is_there_is_found(extensions: Path) -> None:
    found = inspect_machine()
    assert found.python == platform.python_version()
    assert found.packages["torch"]
    assert found.accelerator == "cpu"
    assert [device.index for device in found.devices] == sorted(psutil.Process().cpu_affinity())
    assert all(device.busy is None or 0 <= device.busy <= 1 for device in found.devices)
    assert found.extensions_folder == str(extensions)
    assert "torch" not in findings.__dict__


def test_built_extensions_and_stale_locks_are_told_apart(extensions, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    of_plain_runs = tmp_path / "cache" / "torch_extensions" / "py311_cpu" / "cpu_adam"
    of_plain_runs.mkdir(parents=True)
    (of_plain_runs / "lock").touch()
    for name in ("cpu_adam", "fused_adam"):
        (extensions / name).mkdir()
    (extensions / "cpu_adam" / BUILT_FILE).touch()
    (extensions / "fused_adam" / "lock").touch()
    found = inspect_machine()
    assert found.extensions_built == ("cpu_adam",)
    assert "fused_adam" in found.extensions_missing
    assert "cpu_adam" not in found.extensions_missing
    locks = (extensions / "fused_adam" / "lock", of_plain_runs / "lock")
    assert found.stale_locks == tuple(map(str, locks))


@pytest.mark.usefixtures("extensions")
def test_an_accelerator_that_is_not_there_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "xpu")
    found = inspect_machine()
    assert found.accelerator is None
    assert "DS_ACCELERATOR=xpu" in found.accelerator_problem
    assert found.accelerator_fix


@pytest.mark.parametrize(("code", "links"), [(0, True), (1, False)])
@pytest.mark.usefixtures("extensions")
def test_libaio_counts_if_a_program_links(tmp_path, monkeypatch, code, links) -> None:
    compiler = tmp_path / "bin" / "gcc"
    compiler.parent.mkdir()
    compiler.write_text(f"#!{sys.executable}\nimport sys\nsys.exit({code})\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(compiler.parent))
    found = inspect_machine()
    assert found.tools["gcc"] == str(compiler)
    assert found.tools["pdsh"] is None
    assert found.has_libaio is links


@pytest.mark.parametrize(
    ("is_compiled", "writes", "is_found"),
    [(True, False, False), (False, True, False), (False, False, True)],
)
def test_a_package_is_compiled_or_every_process_does_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_compiled: bool,
    writes: bool,
    is_found: bool,
) -> None:
    source = tmp_path / "heavy" / "__init__.py"
    source.parent.mkdir()
    source.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.pycache_prefix", None)
    monkeypatch.setattr("sys.dont_write_bytecode", not writes)
    if is_compiled:
        py_compile.compile(str(source))
    assert uncompiled_folder("heavy") == (str(source.parent) if is_found else "")


def test_a_package_that_is_not_there_is_not_compiled_again() -> None:
    assert uncompiled_folder("no_package_has_this_name") == ""


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int]]]:
    """What was asked of the measurement, which is not run here."""
    calls: list[tuple[str, list[int]]] = []

    def measure_speed(accelerator: str, devices: Sequence[int]) -> Speed:
        calls.append((accelerator, list(devices)))
        return Speed(
            devices=tuple(devices),
            matmul="",
            matmul_flops=(),
            all_reduce_bytes=0,
            all_reduce_busbw=None,
            wall_s=0.0,
            problem="rank 0: no route",
        )

    monkeypatch.setattr(findings, "measure_speed", measure_speed)
    monkeypatch.setattr(in_use, "_SAMPLE_S", 0.01)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    return calls


def test_every_device_is_measured_and_the_answer_is_json(asked) -> None:
    diagnosis = diagnose()
    assert asked == [("cpu", [device.index for device in diagnosis.machine.devices])]
    assert diagnosis.level is Level.FAIL
    data = json.loads(json.dumps(diagnosis.to_dict()))
    assert data["level"] == "fail"
    assert data["machine"]["packages"]["torch"] == diagnosis.machine.packages["torch"]
    assert {"level", "subject", "message", "fix"} == set(data["findings"][0])
    assert any("no route" in finding["message"] for finding in data["findings"])


def test_it_can_look_without_measuring(asked: list[tuple[str, list[int]]]) -> None:
    assert diagnose(measure=False).speed is None
    assert asked == []


def test_nothing_is_measured_on_an_accelerator_that_is_not_there(asked, monkeypatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "xpu")
    diagnosis = diagnose()
    assert (diagnosis.speed, asked) == (None, [])
    assert diagnosis.level is Level.FAIL
