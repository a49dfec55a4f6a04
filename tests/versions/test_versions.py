"""What was tried with older releases of DeepSpeed is recorded, and is what the rules say."""

import json
import subprocess
from pathlib import Path

import pytest

from autotune.engines.deepspeed.rules.releases import READ, TRIED
from autotune.engines.megatron.plugin import Megatron
from autotune.engines.releases import release_of
from tests.cases import data_beside
from tests.engines.deepspeed.rules.cases import NEWEST
from tests.gpu.wheels import WheelsError
from tests.versions import pythons
from tests.versions.environments import REPOSITORY, VersionEnvironment, install, names, pins
from tests.versions.megatron import record_of
from tests.versions.run import RECORDS, TESTS, measured, summary

DATA = data_beside(__file__)

REPORT = DATA["REPORT"]


RECORDED = [name for name in names() if (RECORDS / f"{name}.json").exists()]


def release(name):
    return pins(name)["deepspeed"].partition("==")[2]


def test_what_is_called_tried_has_a_record():
    assert names() == sorted(names(), key=release_of)
    assert (*(release(name) for name in RECORDED), NEWEST) == TRIED
    assert READ[-1] == NEWEST
    assert {release(name) for name in names()} <= set(READ)


def test_every_release_of_megatron_that_is_called_tried_has_a_record():
    for release in Megatron.packages[0].tried:
        record = json.loads(record_of(release).read_text(encoding="utf-8"))
        assert record["versions"]["megatron-core"] == release
        assert record["failed"] == []
        assert record["candidates_trained"] >= 40


@pytest.mark.parametrize("release", pythons.NEWER)
def test_a_newer_python_passed_what_needs_no_torch(release):
    record = json.loads(pythons.record_of(release).read_text(encoding="utf-8"))
    assert record["versions"]["python"].startswith(f"{release}.")
    assert record["failed"] == []
    assert record["tests"]["test_login_node"]["passed"]
    classifiers = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert f"Python :: {release}" in classifiers


@pytest.mark.cases("installs", "pytest_code", "code", "line")
def test_a_newer_python_that_is_here_is_tried_or_fails(
    installs, pytest_code, code, line, tmp_path, monkeypatch, capsys
):
    def find(release):
        if release == "3.12":
            raise WheelsError("none")
        return Path(f"python{release}")

    def install(made):
        if not installs:
            raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(pythons, "find_python", find)
    monkeypatch.setattr(pythons, "install", install)
    monkeypatch.setattr(pythons, "run_tests", lambda made, tests: pytest_code)
    assert pythons.main(["--short", "--folder", str(tmp_path), "--records", str(tmp_path)]) == code
    missing = "Python 3.12: not on this machine, so not tried"
    assert capsys.readouterr().out.splitlines() == [missing, line]
    assert not list(tmp_path.iterdir()), "a short run is no record"


@pytest.mark.parametrize("name", names())
def test_every_package_is_pinned_once(name):
    found = pins(name)
    assert all(line.count("==") == 1 for line in found.values())
    assert found["torch"] == "torch==2.13.0"  # any other is a download of gigabytes


@pytest.mark.parametrize("name", RECORDED)
def test_the_record_is_of_these_pins_and_nothing_failed(name):
    record = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    for package in ("deepspeed", "torch", "transformers", "numpy", "pydantic"):
        assert record["versions"][package].partition("+")[0] == pins(name)[package].split("==")[1]
    assert record["failed"] == []
    assert record["candidates_parsed"] > 1000
    assert record["candidates_trained"] >= 40
    ran = {Path(test).stem for test in TESTS}
    assert set(record["tests"]) == ran
    assert all(counts["passed"] for counts in record["tests"].values())


@pytest.mark.parametrize("release", TRIED)
def test_the_page_names_every_release_that_was_tried(release):
    assert release in (REPOSITORY / "docs" / "versions.md").read_text(encoding="utf-8")


def test_a_record_has_the_figures_that_are_asked_for(tmp_path, monkeypatch):
    report = tmp_path / "report.xml"

    def runs(command, **_):
        report.write_text(REPORT)
        return subprocess.CompletedProcess(command, 0, stdout=b"{}")

    monkeypatch.setattr("tests.versions.run.subprocess.run", runs)
    plain = measured(Path("python"), (), report, (), figures=())
    counted = measured(Path("python"), (), report, (), figures=("candidates_parsed",))
    assert list(plain) == ["versions", "date", "machine", "wall_s", "tests", "failed"]
    assert counted["candidates_parsed"] == 42


def test_an_environment_is_ready_while_its_pins_are_the_same(tmp_path, monkeypatch):
    made = VersionEnvironment(name="0.18", folder=tmp_path)
    started = []
    run = "tests.versions.environments.subprocess.run"
    monkeypatch.setattr(run, lambda command, **_: started.append(command))
    assert not made.is_ready
    install(made)
    assert made.is_ready
    before = len(started)
    install(made)
    assert len(started) == before
    monkeypatch.setattr("tests.versions.environments.pins", lambda name: {"numpy": "numpy==9"})
    assert not made.is_ready


def test_a_report_becomes_counts_and_failures(tmp_path: Path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    found = summary(report)
    assert found["candidates_parsed"] == 42
    assert found["candidates_trained"] == 0
    assert found["tests"] == {
        "test_keys": {"failed": 2, "skipped": 1},
        "test_lattice_reality": {"passed": 2},
    }
    assert found["failed"] == [
        {"test": "test_keys::strict", "message": "assert 1 == 2"},
        {"test": "test_keys::broken", "message": "no module"},
    ]
