"""`compare --against`: the best of a study measured again on a scripted fleet."""

import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import autotune
from autotune import cli
from autotune.app import gate as app
from autotune.app.own_script import adopt_first_run, open_command_session
from autotune.app.run import begin_study
from autotune.app.searching import answer_as_dict
from autotune.base.errors import AutotuneError, ExitCode, JobError, StudyError
from autotune.base.units import parse_share
from autotune.contract import Origin, Outcome, Role, TrialResult, TrialSpec
from autotune.devices.hardware import Environment
from autotune.fleet.options import NO_OPTIONS
from autotune.fleet.transports.local import Here
from autotune.record.answer import answer_of
from autotune.record.gate import GATE_FILE, Gate, GateVerdict, read_gate
from autotune.record.study import Study
from autotune.report.story import read_story
from tests.app.test_own_script import SMALL, launchers, studied  # noqa: F401
from tests.observed import TRAINER
from tests.report.test_terminal import exportable
from tests.report.told import facts_of
from tests.search.scripted import (
    ENVIRONMENT,
    Behaviour,
    ScriptedFleet,
    fault,
    ok,
    realistic,
    search,
)

Machine = Callable[..., ScriptedFleet]


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return exportable(tmp_path / "results")


@pytest.fixture
def best(study: Study, tmp_path: Path) -> Path:
    """What `search --json` printed, away from the study."""
    answer = answer_of(study)
    assert answer is not None
    file = tmp_path / "best.json"
    file.write_text(json.dumps(answer_as_dict(answer, None)), encoding="utf-8")
    return file


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Lets the next gate run on a scripted fleet; answers with the fleet."""

    def use(
        behave: Behaviour = realistic, environment: Environment = ENVIRONMENT
    ) -> ScriptedFleet:
        place, fleet = Here(environment, {}), ScriptedFleet(behave)
        monkeypatch.setattr(app, "find_running_place", lambda *_: place)
        monkeypatch.setattr(place, "gangs", lambda _: fleet)
        return fleet

    return use


def at_rates(*factors: float, peak: float = 1.0, **changes: Any) -> Behaviour:
    """Runs so many times as fast as they were, in turn."""
    n_runs = iter(range(10**6))

    def behave(spec: TrialSpec) -> TrialResult:
        was = realistic(spec)
        assert was.samples_per_s is not None
        assert was.peak_memory_bytes is not None
        rate = was.samples_per_s * factors[next(n_runs) % len(factors)]
        found = ok(spec, rate, peak=peak * was.peak_memory_bytes)
        return dataclasses.replace(found, **changes)

    return behave


def gate(named: object, results: Path, **changes: Any) -> Gate:
    wanted = {"within": "10%", "rounds": 6, "fleet": "local", "options": NO_OPTIONS}
    found = app.run_gate(str(named), results=results, **{"note": print, **wanted, **changes})
    assert found is not None
    return found


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Exit code of `autotune compare` with some words."""
    monkeypatch.setattr(sys, "argv", ["autotune", "compare", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(str(end.value.code))


def test_the_answer_of_a_search_holds_the_reference_and_a_study_the_same(
    study: Study, best: Path, tmp_path: Path
) -> None:
    found = app.read_reference(str(best), tmp_path / "nowhere")
    assert found == app.reference_of(study)
    named = (study.folder, study.folder / "best" / "figures.json", "scripted")
    assert [app.read_reference(str(name), study.root) for name in named] == [found] * 3
    assert found.job is not None
    assert yaml.safe_load(found.job)["model"] == "tiny-gpt2"


def test_as_fast_as_it_was_passes_and_is_recorded(
    study: Study, best: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    fleet = machine(at_rates(1.0, 0.99, 1.01))
    words = ("--against", best, "--within", "10%", "--results", study.root)
    assert command(monkeypatch, *words) == ExitCode.FOUND
    shown = " ".join(capfd.readouterr().out.split())
    assert "verdict pass: it is not more than 10% slower than it was" in shown
    handed_out = study.read_state()["answer"]["best"]
    assert f"then trial {handed_out['trial']}:" in shown
    assert [s.identity.role for s in fleet.specs] == [Role.CONFIRM] * 3
    assert {s.identity.knobs == dict(handed_out["candidate"]["knobs"]) for s in fleet.specs} == {
        True
    }
    # The record of the search is as it was; the gate's own stands below it.
    kept = Study(study.folder, "gate").trials()
    assert [t.result and t.result.outcome for t in kept] == [Outcome.OK] * 3
    assert not (study.trials_folder / "0099").exists()
    found = read_gate(study.folder)
    assert found is not None
    assert found.verdict is GateVerdict.WITHIN
    line = dict(facts_of(read_story(study)))["gate"]
    assert "pass: it is not more than 10% slower" in line
    assert line in study.page_file.read_text(encoding="utf-8")


def test_slower_is_proven_and_fails(
    study: Study, best: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    fleet = machine()
    data = json.loads(best.read_text())
    standing = data["reference"]["standing"]
    for name in ("samples_per_s", "samples_per_s_low", "samples_per_s_high"):
        standing[name] *= 2
    best.write_text(json.dumps(data))
    words = ("--against", best, "--within", "0.05", "--results", study.root)
    assert command(monkeypatch, *words, "--json") == ExitCode.CHECK_FAILED
    answer = json.loads(capfd.readouterr().out)
    assert answer["verdict"] == "slower"
    assert answer["ratio"]["ratio"] == pytest.approx(0.5)
    assert answer["ratio"]["high"] < 0.95
    assert len(fleet.specs) == 3, "it is sure after the first look"
    # Not what the study handed out: the reference is of another figure, and of the same candidate.
    assert command(monkeypatch, *words, "--markdown") == ExitCode.CHECK_FAILED
    shown = capfd.readouterr().out
    assert shown.startswith("**scripted: slower: it is proven to be more than 5% slower")
    assert "\n- now: " in shown


def test_a_program_measures_it_by_a_call(
    study: Study, best: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    machine(at_rates(1.0, 0.99, 1.01))
    found = autotune.gate(best, within=0.1, results=study.root)
    assert found is not None
    assert found.passes
    assert found.value.ratio is not None
    assert found.value.ratio.ratio == pytest.approx(1.0, abs=0.02)
    assert found.as_dict()["verdict"] == "within"
    assert "pass: it is not more than 10% slower" in str(found)
    # A study by its name is taken, too; errors name arguments.
    machine(at_rates(0.5))
    slower = autotune.gate("scripted", results=study.root)
    assert slower is not None
    assert not slower.passes
    for wrong in ({"rounds": 2}, {"within": "five"}):
        (name,) = wrong
        with pytest.raises(JobError, match=rf"^{name}\b"):
            autotune.gate(best, results=study.root, **wrong)  # type: ignore[arg-type]


def test_slow_runs_of_a_busy_machine_are_said_to_be_that(
    study: Study, best: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    machine(at_rates(0.5, disturbed="other processes took 90% of core 0"))
    words = ("--against", best, "--results", study.root)
    assert command(monkeypatch, *words) == ExitCode.CHECK_FAILED
    shown = " ".join(capfd.readouterr().out.split())
    assert "careful other work disturbed 3 of the 3 runs" in shown


def test_what_is_not_decided_says_what_would_decide_it(
    study: Study, best: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    fleet = machine(at_rates(0.9, 1.0, 0.94, 1.02, 0.92, 1.01))
    words = ("--against", best, "--within", "5%", "--results", study.root)
    assert command(monkeypatch, *words) == ExitCode.UNDECIDED
    shown = " ".join(capfd.readouterr().out.split())
    assert "not decided: the interval holds 0.950x, where 5% ends." in shown
    assert "likely to decide it" in shown
    assert len(fleet.specs) == 6

    near = machine(at_rates(0.98, 1.0, 0.99))
    found = gate(best, study.root, within="5%", rounds=3)
    assert (found.verdict, len(near.specs)) == (GateVerdict.UNDECIDED, 3)
    needed = found.runs_to_decide
    assert needed is not None
    more = machine(at_rates(0.98, 1.0, 0.99))
    found = gate(best, study.root, within="5%", rounds=needed)
    assert found.verdict is GateVerdict.WITHIN
    assert len(more.specs) == needed


def test_more_memory_fails_where_every_run_takes_it(
    study: Study, best: Path, machine: Machine
) -> None:
    machine(at_rates(1.0, peak=1.2))
    found = gate(best, study.root)
    assert (found.verdict, found.verdict.exit_code) == (GateVerdict.MORE_MEMORY, 5)
    machine(at_rates(1.0, peak=1.04))
    assert gate(best, study.root).verdict is GateVerdict.WITHIN


def test_what_does_not_run_any_more_fails_with_its_evidence(
    study: Study, best: Path, machine: Machine
) -> None:
    fleet = machine(lambda spec: fault(spec, Outcome.OOM, "CUDA out of memory"))
    found = gate(best, study.root)
    assert (found.verdict, found.verdict.exit_code) == (GateVerdict.DOES_NOT_RUN, 5)
    assert found.why == "oom: CUDA out of memory"
    assert len(fleet.specs) == 1


def test_the_platform_is_not_the_best_ones_fault(
    study: Study, best: Path, machine: Machine
) -> None:
    fleet = machine(lambda spec: fault(spec, Outcome.COMM, "connection reset"))
    found = gate(best, study.root)
    assert (found.verdict, found.verdict.exit_code) == (GateVerdict.NOT_MEASURED, 4)
    assert "the last by comm: connection reset" in found.why
    assert [s.provenance.retry_of for s in fleet.specs] == [None, 0, 1]
    machine()
    assert gate(best, study.root).verdict is GateVerdict.WITHIN, "the next one begins anew"


def test_a_disturbed_run_runs_once_more(study: Study, best: Path, machine: Machine) -> None:
    quiet = at_rates(1.0)

    def behave(spec: TrialSpec) -> TrialResult:
        if spec.identity.number == 1:
            return at_rates(0.5, disturbed="other processes took 40% of core 0")(spec)
        return quiet(spec)

    fleet = machine(behave)
    found = gate(best, study.root)
    assert [s.provenance.repeat_of for s in fleet.specs] == [None, None, 1, None]
    assert found.verdict is GateVerdict.WITHIN
    assert found.now is not None
    assert (found.now.n_runs, found.now.n_disturbed) == (3, 0)


def interrupt(study: Study, best: Path, machine: Machine, **changes: Any) -> None:
    """A gate that is asked to end in its third run, which counts no more."""
    fleet = machine()

    def behave(spec: TrialSpec) -> TrialResult:
        if spec.identity.number == 1:
            fleet.n_polls = 10**6  # the third one is asked to end
        return dataclasses.replace(realistic(spec), **changes)

    fleet.behave = behave
    wanted = {"within": "10%", "rounds": 6, "fleet": "local", "options": NO_OPTIONS}
    with pytest.MonkeyPatch.context() as patch:
        is_asked = property(lambda _: fleet.n_polls > 2)
        patch.setattr("autotune.search.interrupt.Interrupt.draining", is_asked)
        assert app.run_gate(str(best), results=study.root, note=print, **wanted) is None
    assert not (study.folder / GATE_FILE).exists()
    assert len(fleet.specs) == 3


def test_an_interrupted_gate_goes_on_and_one_that_ended_begins_anew(
    study: Study, best: Path, machine: Machine
) -> None:
    interrupt(study, best, machine)
    fleet = machine()
    assert gate(best, study.root).verdict is GateVerdict.WITHIN
    assert [s.identity.confirm_round for s in fleet.specs] == [2]
    fleet = machine()
    gate(best, study.root)
    assert [s.identity.confirm_round for s in fleet.specs] == [3, 4, 5]


def test_after_an_upgrade_nothing_of_before_counts(
    study: Study, best: Path, machine: Machine
) -> None:
    interrupt(study, best, machine)
    fleet = machine(environment=dataclasses.replace(ENVIRONMENT, torch_version="2.14.0"))
    assert gate(best, study.root).verdict is GateVerdict.WITHIN
    assert len(fleet.specs) == 3


def test_after_a_new_driver_nothing_of_before_counts(
    study: Study, best: Path, machine: Machine
) -> None:
    interrupt(study, best, machine, versions={"nvidia-driver": "550.54"})
    fleet = machine(at_rates(1.0, versions={"nvidia-driver": "580.10"}))
    found = gate(best, study.root)
    assert [s.identity.confirm_round for s in fleet.specs] == [2, 3, 4]
    assert found.now is not None
    assert found.now.n_runs == 3
    # Nodes whose drivers differ do not make it begin anew for ever.
    turns = itertools.cycle([{"nvidia-driver": "550.54"}, {"nvidia-driver": "580.10"}])
    fleet = machine(lambda spec: dataclasses.replace(realistic(spec), versions=next(turns)))
    assert gate(best, study.root).verdict is GateVerdict.WITHIN
    assert len(fleet.specs) == 3


def test_runs_of_another_day_do_not_count(
    study: Study, best: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(study, best, machine)
    now_s = app.unix_now_s() + app.RESUMED_WITHIN_S + 60
    monkeypatch.setattr(app, "unix_now_s", lambda: now_s)
    fleet = machine()
    gate(best, study.root)
    assert [s.identity.confirm_round for s in fleet.specs] == [3, 4, 5]


def test_a_verdict_that_could_not_be_written_costs_no_runs(
    study: Study, best: Path, machine: Machine
) -> None:
    machine()
    (study.folder / GATE_FILE).mkdir()
    with pytest.raises(StudyError, match="cannot be written"):
        gate(best, study.root)
    (study.folder / GATE_FILE).rmdir()
    fleet = machine()
    assert gate(best, study.root).verdict is GateVerdict.WITHIN
    assert not fleet.specs


def test_a_page_that_cannot_be_drawn_is_noted(study: Study, best: Path, machine: Machine) -> None:
    machine()
    study.page_file.unlink(missing_ok=True)
    study.page_file.mkdir()
    notes: list[str] = []
    assert gate(best, study.root, note=notes.append).verdict is GateVerdict.WITHIN
    assert [note for note in notes if note.startswith("report.html is not kept up: ")]


def test_a_study_that_is_searched_is_not_measured(
    study: Study, best: Path, machine: Machine
) -> None:
    fleet = machine()
    study.lock()
    with pytest.raises(StudyError, match="another search holds this study"):
        gate(best, study.root)
    study.unlock()
    assert not fleet.specs
    assert gate(best, study.root).verdict is GateVerdict.WITHIN


def test_a_reference_of_another_figure_is_none_of_the_study_s_report(
    study: Study, best: Path, machine: Machine
) -> None:
    machine()
    data = json.loads(best.read_text())
    names = ("samples_per_s", "samples_per_s_low", "samples_per_s_high")
    data["reference"]["standing"] |= {
        name: data["reference"]["standing"][name] / 2 for name in names
    }
    best.write_text(json.dumps(data))
    assert gate(best, study.root).verdict is GateVerdict.WITHIN
    assert "gate" not in dict(facts_of(read_story(study)))


def test_memory_that_no_meter_told_is_not_compared(
    study: Study, best: Path, machine: Machine, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(at_rates(1.0, peak_memory_bytes=None, memory_bytes={}))
    words = ("--against", best, "--within", "10%", "--results", study.root)
    assert command(monkeypatch, *words) == ExitCode.FOUND
    assert "memory is not compared" in " ".join(capfd.readouterr().out.split())


def test_one_run_that_was_picked_may_have_been_lucky(
    study: Study, best: Path, machine: Machine, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine()
    data = json.loads(best.read_text())
    data["reference"]["standing"]["n_runs"] = 1
    best.write_text(json.dumps(data))
    command(monkeypatch, "--against", best, "--results", study.root)
    assert "it may have been lucky" in " ".join(capfd.readouterr().out.split())


def test_a_file_from_elsewhere_asks_for_what_its_job_names(
    study: Study, best: Path, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fleet = machine()
    assert gate(best, study.root).verdict is GateVerdict.WITHIN, "it names nothing"
    fleet.specs.clear()
    data = json.loads(best.read_text())
    job = yaml.safe_load(data["reference"]["job"])
    (tmp_path / "space.yaml").write_text("knobs: {}\n")
    for key, value, deed in (
        ("model", "evil:build", "model: imports evil"),
        ("base_config", "ds.json", f"base_config: reads {tmp_path / 'ds.json'}"),
        ("space", "space.yaml", f"space: reads {tmp_path / 'space.yaml'}"),
    ):
        named = yaml.safe_dump({**job, key: value})
        best.write_text(json.dumps(edited(data, ("reference", "job"), named)))
        with pytest.raises(JobError, match=f"--against {best}: is not a file of yours") as caught:
            gate(best, study.root)
        assert deed in caught.value.message
        assert "--trust-job" in caught.value.hint
        asked: list[str] = []
        with pytest.raises(JobError, match="not trusted"):
            gate(best, study.root, ask=asked.append)
        assert asked == ["Trust it?"]
        assert not fleet.specs
    assert gate(best, study.root, trust_job=True).verdict is GateVerdict.WITHIN


def test_only_words_of_the_user_s_stay_in_the_study(study: Study) -> None:
    """A checkout of Megatron-LM takes arguments always: those that the layout comes with."""
    for file in study.trials_folder.glob("*/spec.json"):
        file.write_text(
            json.dumps(edited(json.loads(file.read_text()), ("workload", "arguments"), ["--x"]))
        )
    found = app.reference_of(study)
    assert found is not None
    assert found.job is not None
    job = yaml.safe_load(study.job_file.read_text())
    study.job_file.write_text(yaml.safe_dump({**job, "megatron_arguments": ["--wandb-key", "x"]}))
    found = app.reference_of(study)
    assert found is not None
    assert found.job is None


def test_what_differs_from_then_is_shown(
    best: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any
) -> None:
    """The study is not there any more: the file is all."""
    data = json.loads(best.read_text())
    data["reference"]["versions"] = {"torch": "2.13.0", "nvidia-driver": "550.54"}
    data["reference"]["configuration"] = "0" * 12
    best.write_text(json.dumps(data))
    versions = {"torch": "2.14.0", "nvidia-driver": "550.54", "peft": "1.0"}
    machine(at_rates(1.0, versions=versions), dataclasses.replace(ENVIRONMENT, n_devices=4))
    words = ("--against", best, "--results", tmp_path / "of-ci")
    assert command(monkeypatch, *words) == ExitCode.FOUND
    shown = " ".join(capfd.readouterr().out.split())
    for words_of_it in (
        "differs n_devices: 2 then, 4 now",
        "differs torch: 2.13.0 then, 2.14.0 now",
        "differs peft: - then, 1.0 now",
        "differs configuration: 000000000000 then, ",
    ):
        assert words_of_it in shown
    assert "nvidia-driver" not in shown
    assert (tmp_path / "of-ci" / "scripted" / "gate" / "trials" / "0002").is_dir()


def test_other_devices_are_refused(study: Study, best: Path, machine: Machine) -> None:
    fleet = machine(environment=dataclasses.replace(ENVIRONMENT, device_name="another CPU"))
    with pytest.raises(StudyError, match=r"measured on scripted .cpu., and here is another CPU"):
        gate(best, study.root)
    assert not fleet.specs


def edited(data: dict[str, Any], at: Sequence[str], value: object) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(data))
    inside = changed
    for key in at[:-1]:
        inside = inside[key]
    inside[at[-1]] = value
    return changed


KNOBS = ("reference", "standing", "candidate", "knobs")


@pytest.mark.parametrize(
    ("at", "value", "shown"),
    [
        (("reference",), None, "has not found a best configuration"),
        (("reference",), "much", "holds no reference of this release"),
        (("reference", "version"), 2, "holds no reference of this release"),
        (("reference", "study"), "../../elsewhere", "holds no reference of this release"),
        (("reference", "standing", "samples_per_s"), -1.0, "holds no reference of this release"),
        (("reference", "standing", "n_runs"), 0, "holds no reference of this release"),
        (("reference", "degrees"), 10**9, "holds no reference of this release"),
        (("reference", "standing", "samples_per_s"), math.inf, "not readable|no reference"),
        (("reference", "job"), "model: [", "not valid YAML"),
        (("reference", "job"), "model: tiny-gpt2", "seq_len"),
        (KNOBS, [["micro_batch", 4], ["no_such_knob", 1]], "its candidate is none of its job"),
        (KNOBS, [["micro_batch", "many"]], "its candidate is none of its job"),
        ((*KNOBS[:-1], "world"), 8, "its candidate is none of its job"),
    ],
)
def test_a_file_that_is_no_reference_is_named(
    study: Study, best: Path, machine: Machine, at: Sequence[str], value: object, shown: str
) -> None:
    fleet = machine()
    best.write_text(json.dumps(edited(json.loads(best.read_text()), at, value)))
    with pytest.raises(AutotuneError, match=shown) as caught:
        gate(best, study.root)
    assert caught.value.exit_code == ExitCode.INVALID_INPUT
    assert caught.value.hint
    assert not fleet.specs


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{", "not readable as JSON"),
        ("[]", "holds a list"),
        ("{}", "holds no reference"),
        ('{"answers": []}', "holds no reference"),
        ('{"reference": null, "origin": "simulated"}', "its figures are simulated"),
    ],
)
def test_a_file_of_something_else_is_named(tmp_path: Path, text: str, shown: str) -> None:
    file = tmp_path / "best.json"
    with pytest.raises(JobError, match="no such file"):
        gate(file, tmp_path)
    file.write_text(text)
    with pytest.raises(AutotuneError, match=shown):
        gate(file, tmp_path)


def test_a_file_in_which_everybody_writes_runs_nothing(best: Path, machine: Machine) -> None:
    fleet = machine()
    best.chmod(0o666)
    with pytest.raises(JobError, match="belongs to another user, and says what runs here"):
        gate(best, best.parent)
    assert not fleet.specs


def test_a_simulated_study_is_refused(study: Study) -> None:
    study.write_state({**study.read_state(), "origin": Origin.SIMULATED.value})
    assert app.reference_of(study) is None
    with pytest.raises(StudyError, match="its figures are simulated: nothing of it was measured"):
        gate(study.folder, study.root)


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), (" 2.5 % ", 0.025)])
def test_a_share_is_read_either_way(text: str, share: float) -> None:
    assert parse_share(text, where="--within") == pytest.approx(share)


@pytest.mark.parametrize("text", ["5", "0", "0%", "100%", "-1%", "much", "", "nan"])
def test_what_is_no_share_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(JobError, match=r"--within: .* is no share above 0 and below 1"):
        gate("any", tmp_path, within=text)


def test_flags_that_say_two_things_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    for words, shown in (
        (("a", "--against", "b"), "they are two questions"),
        (("--against", "b", "--csv"), "each is another form"),
        (("--against", "b", "--rounds", "2"), "--rounds: '2' is not allowed"),
        (("a", "b", "--markdown"), "it is a form of --against"),
        ((), "at least two studies"),
    ):
        assert command(monkeypatch, *words) == ExitCode.INVALID_INPUT
        assert shown in " ".join(capfd.readouterr().err.split())


@pytest.mark.usefixtures("launchers")
def test_a_command_stays_in_its_study(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    command, folder = studied(results, TRAINER)
    monkeypatch.chdir(folder)
    session = open_command_session(command, SMALL, results=results, note=print)
    session.study.lock()
    begin_study(session, print)
    adopt_first_run(session)
    ended = search(
        session.study,
        session.job,
        lambda spec: ok(spec, 100.0 * spec.layout.micro_batch),
        engine=session.engine,
        lattice=session.lattice,
    )
    state = {**session.study.read_state(), "answer": ended.to_dict()}
    session.study.write_state(state)
    session.study.unlock()
    best = tmp_path / "best.json"
    best.write_text(json.dumps(answer_as_dict(ended, None)))
    reference = app.read_reference(str(best), results)
    assert reference.job is None
    assert not [word for word in ("--nproc-per-node", "train.py") if word in best.read_text()]

    fleet = machine(lambda spec: ok(spec, 100.0 * spec.layout.micro_batch))
    with pytest.raises(JobError, match="script: runs the command of"):
        gate(best, results)
    for file in (results / "own" / "job.yaml", results / "own" / "observed.json", results / "own"):
        mode = file.stat().st_mode
        file.chmod(mode | 0o002)
        with pytest.raises(JobError, match=f"{file}: belongs to another user, and says what runs"):
            gate(best, results, trust_job=True)
        file.chmod(mode)
    assert not fleet.specs
    assert gate(best, results, trust_job=True).verdict is GateVerdict.WITHIN
    assert fleet.specs[0].workload.command
    (results / "own").rename(tmp_path / "moved")
    assert gate(tmp_path / "moved", tmp_path).verdict is GateVerdict.WITHIN
    with pytest.raises(StudyError, match=r"its command, or its arguments of .* stand in"):
        gate(best, tmp_path / "of-ci")
