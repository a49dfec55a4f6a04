"""The stages for a GPU, on any machine: order, limit, resumption, rehearsal and wheels."""

import json
from pathlib import Path
from threading import Thread

import pytest
import typer

from autotune.cli.base import cli
from autotune.contract import RESULT_FILE
from tests.gpu import accept, rehearse, wheels
from tests.gpu.accept import Stop, main, run
from tests.gpu.piece import STAGES_FILE, TERMINAL_FILE
from tests.gpu.stages import AUTOTUNE, GPU, REHEARSAL, REPOSITORY, Stage, stages_of
from tests.gpu.wheels import PAGE, WheelsError, packages_of
from tests.trials import wait_until

PRINTS = ("-c", "print('text')")


def stage(name: str, *command: str, least_s: float = 0.0) -> Stage:
    return Stage(
        name=name, answers="a question", command=command, least_s=least_s, leaves="nothing"
    )


@pytest.mark.parametrize("asked", stages_of(GPU), ids=lambda stage: stage.name)
def test_a_stage_is_a_command_that_there_is(asked: Stage) -> None:
    if asked.command[:2] != AUTOTUNE:
        assert asked.command[0] == "-m" or (REPOSITORY / asked.command[0]).is_file()
        return
    name, *flags = asked.command[2:]
    own = flags.index("--") if "--" in flags else len(flags)
    command = typer.main.get_group(cli).commands[name]
    _, left, _ = command.make_parser(typer.Context(command)).parse_args(flags[:own])
    assert not left
    if "--space" in flags and (path := flags[flags.index("--space") + 1]).endswith(".yaml"):
        assert Path(path).is_file()


def test_the_rehearsal_has_the_stages_of_a_gpu() -> None:
    assert [s.name for s in stages_of(REHEARSAL)] == [s.name for s in stages_of(GPU)]


def test_a_stage_leaves_its_result_and_is_not_run_again(tmp_path: Path, capsys) -> None:
    counter = f"from pathlib import Path; Path({str(tmp_path / 'n')!r}).open('a').write('x')"
    stages = [stage("count", "-c", counter)]
    assert run(stages, tmp_path / "results", 60) == 0
    assert run(stages, tmp_path / "results", 60) == 0
    assert (tmp_path / "n").read_text() == "x"
    assert "answered already" in capsys.readouterr().out
    (ended,) = json.loads((tmp_path / "results" / STAGES_FILE).read_text())
    assert ended["is_answered"]


def test_a_failed_stage_ends_no_other_and_runs_again(tmp_path: Path, capsys) -> None:
    fails = stage("fails", "-c", "import sys; sys.exit('no such device')")
    after = stage("after", *PRINTS)
    assert run([fails, after], tmp_path, 60) == 1
    assert "no such device" in capsys.readouterr().out
    assert "text\n" in (tmp_path / TERMINAL_FILE).read_text()
    assert run([stage("fails", *PRINTS), after], tmp_path, 60) == 0


def test_the_limit_ends_a_stage_and_leaves_the_next(tmp_path, monkeypatch) -> None:
    # Where CI ignores interrupts, the stage ignores them as well, and has to be killed.
    monkeypatch.setattr(accept, "GRACE_S", 1.0)
    sleeps = stage("sleeps", "-c", "import time; time.sleep(600)")
    after = stage("after", *PRINTS, least_s=10)
    assert run([sleeps, after], tmp_path, 2.0) == 3
    (ended,) = json.loads((tmp_path / STAGES_FILE).read_text())
    assert ended["was_cut"]
    assert not ended["is_answered"]
    assert run([after], tmp_path, 1) == 3


def test_ctrl_c_ends_the_stage_keeps_what_it_left_and_begins_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(accept, "GRACE_S", 6.0)
    listens, stop = tmp_path / "listens", Stop()

    def ask_when_it_listens() -> None:
        wait_until(listens.exists, "the stage listens")
        stop.asked = True

    script = (
        "import pathlib, signal, time\n"
        "def hear(*_):\n"
        "    signal.signal(signal.SIGINT, lambda *_: exit(print('a report')))\n"
        "signal.signal(signal.SIGINT, hear)\n"
        f"pathlib.Path({str(listens)!r}).touch()\n"
        "while True: time.sleep(600)"
    )
    stages = [stage("ends-at-the-second", "-c", script), stage("after", *PRINTS)]
    results = tmp_path / "results"
    asking = Thread(target=ask_when_it_listens)
    asking.start()
    assert run(stages, results, 60, stop=stop) == 130
    asking.join()
    (ended,) = json.loads((results / STAGES_FILE).read_text())
    assert ended["was_cut"]
    assert "a report" in (results / TERMINAL_FILE).read_text()
    assert "the same command again goes on" in capsys.readouterr().out


def test_without_a_gpu_nothing_but_a_rehearsal_runs(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--results", str(tmp_path)]) == 2
    assert "GPU=--rehearse" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_list_says_what_each_stage_answers_and_leaves(capsys) -> None:
    assert main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert all(f"{asked.name}: {asked.answers}" in shown for asked in stages_of(GPU))


@pytest.mark.thorough
@pytest.mark.real
@pytest.mark.package
def test_a_rehearsal_that_is_cut_off_twice_loses_nothing(tmp_path: Path) -> None:
    stages = ("--stage", "small-warm", "--stage", "listed")
    assert rehearse.main(["--folder", str(tmp_path), *stages, "--cut-after", "4", "12"]) == 0


def test_a_trial_that_a_cut_has_lost_was_not_measured(tmp_path: Path) -> None:
    for number, started_at_s in (("0000", 12.0), ("0001", 0.0)):
        folder = tmp_path / "small" / "trials" / number
        folder.mkdir(parents=True)
        (folder / RESULT_FILE).write_text(json.dumps({"started_at_s": started_at_s}))
    assert [result["started_at_s"] for result in rehearse._results(tmp_path)] == [12.0]


def test_the_page_lists_the_packages_of_the_machine() -> None:
    listed = packages_of(PAGE)
    assert listed["torch"].startswith("2.")
    assert "transformers" in listed
    assert not {"deepspeed", "optuna", "pydantic"} & listed.keys(), "these the wheels bring"


def test_a_folder_without_wheels_and_one_with_two_releases_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WheelsError, match=r"holds no wheel: make gpu-wheels"):
        wheels.prove(tmp_path / "nowhere", Path("python"), {})
    for version in ("5.0.0", "5.1.0"):
        (tmp_path / f"optuna-{version}-py3-none-any.whl").touch()
    with pytest.raises(WheelsError, match=r"holds optuna more than once: remove the old one"):
        wheels.prove(tmp_path, Path("python"), {})


def test_what_is_too_large_to_travel_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(wheels, "MOST_BYTES", 2**20)
    (tmp_path / "torch-2.11.0-py3-none-any.whl").write_bytes(b"0" * 2**21)
    with pytest.raises(WheelsError, match=r"holds 2\.0 MiB.*torch-2\.11\.0"):
        wheels._check_size(tmp_path)
