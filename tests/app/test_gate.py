"""`compare --against`: the best of a study measured again on a scripted fleet."""

import dataclasses
import functools
import itertools
import json
import operator
import sys
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
from autotune.contract import Origin, Outcome, Role, Start, TrialResult, TrialSpec
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


class Bench:
    """A study whose search has ended, and the scripted fleet that measures its best again."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
        self.study = exportable(folder / "results")
        self.best = folder / "best.json"
        """What `search --json` printed, away from the study."""
        answer = answer_of(self.study)
        assert answer is not None
        self.best.write_text(json.dumps(answer_as_dict(answer, None)), encoding="utf-8")
        self._patch, self._capfd = monkeypatch, capfd

    def on(self, behave: Behaviour = realistic, at: Environment = ENVIRONMENT) -> ScriptedFleet:
        """The next gate runs on this fleet."""
        place, fleet = Here(at, {}), ScriptedFleet(behave)
        self._patch.setattr(app, "find_running_place", lambda *_: place)
        self._patch.setattr(place, "gangs", lambda _: fleet)
        return fleet

    def run(
        self, named: object = None, results: Path | None = None, **changes: Any
    ) -> Gate | None:
        wanted = {"within": "10%", "rounds": 6, "fleet": "local", "options": NO_OPTIONS}
        asked = {"results": results or self.study.root, "note": print, **wanted, **changes}
        return app.run_gate(str(named or self.best), **asked)

    def gate(self, *asked: Any, **changes: Any) -> Gate:
        found = self.run(*asked, **changes)
        assert found is not None
        return found

    def command(self, *words: object) -> tuple[int, str]:
        """Exit code of `autotune compare` with some words, and what it printed."""
        self._patch.setattr(sys, "argv", ["autotune", "compare", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = self._capfd.readouterr()
        return int(str(end.value.code)), printed.out or printed.err

    def against(self, *words: object) -> tuple[int, str]:
        """The same, of the reference; lines are joined."""
        code, shown = self.command("--against", self.best, "--results", self.study.root, *words)
        return code, " ".join(shown.split())

    def edit(self, *at: str, value: object) -> None:
        """Change one value of the reference's file."""
        data: dict[str, Any] = json.loads(self.best.read_text())
        *above, last = at
        functools.reduce(operator.getitem, above, data)[last] = value
        self.best.write_text(json.dumps(data))

    def scale(self, factor: float) -> None:
        """Make the reference so many times as fast."""
        was = json.loads(self.best.read_text())["reference"]["standing"]
        for name in ("samples_per_s", "samples_per_s_low", "samples_per_s_high"):
            self.edit("reference", "standing", name, value=was[name] * factor)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Bench:
    return Bench(tmp_path, monkeypatch, capfd)


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


def test_the_answer_of_a_search_holds_the_reference_and_a_study_the_same(bench, tmp_path):
    found = app.read_reference(str(bench.best), tmp_path / "nowhere")
    assert found == app.reference_of(bench.study)
    named = (bench.study.folder, bench.study.folder / "best" / "figures.json", "scripted")
    assert [app.read_reference(str(name), bench.study.root) for name in named] == [found] * 3
    assert found.job is not None
    assert yaml.safe_load(found.job)["model"] == "tiny-gpt2"


def test_as_fast_as_it_was_passes_and_is_recorded(bench: Bench) -> None:
    fleet = bench.on(at_rates(1.0, 0.99, 1.01))
    code, shown = bench.against("--within", "10%")
    assert code == ExitCode.FOUND
    assert "verdict pass: it is not more than 10% slower than it was" in shown
    handed_out = bench.study.read_state()["answer"]["best"]
    assert f"then trial {handed_out['trial']}:" in shown
    ran = [(s.identity.role, s.measure.start, s.identity.knobs) for s in fleet.specs]
    assert ran == [(Role.CONFIRM, Start.COLD, dict(handed_out["candidate"]["knobs"]))] * 3
    # The record of the search is as it was; the gate's own stands below it.
    kept = Study(bench.study.folder, "gate").trials()
    assert [t.result and t.result.outcome for t in kept] == [Outcome.OK] * 3
    assert not (bench.study.trials_folder / "0099").exists()
    found = read_gate(bench.study.folder)
    assert found.verdict is GateVerdict.WITHIN
    line = dict(facts_of(read_story(bench.study)))["gate"]
    assert "pass: it is not more than 10% slower" in line
    assert line in bench.study.page_file.read_text(encoding="utf-8")


def test_slower_is_proven_and_fails(bench: Bench) -> None:
    fleet = bench.on()
    bench.scale(2)
    code, shown = bench.against("--within", "0.05", "--json")
    answer = json.loads(shown)
    assert (code, answer["verdict"]) == (ExitCode.CHECK_FAILED, "slower")
    assert answer["ratio"]["ratio"] == pytest.approx(0.5)
    assert answer["ratio"]["high"] < 0.95
    assert len(fleet.specs) == 3, "it is sure after the first look"
    # Not what the study handed out: the reference is of another figure, and of the same candidate.
    code, shown = bench.against("--within", "0.05", "--markdown")
    assert code == ExitCode.CHECK_FAILED
    assert shown.startswith("**scripted: slower: it is proven to be more than 5% slower")
    assert " - now: " in shown


def test_a_program_measures_it_by_a_call(bench: Bench) -> None:
    bench.on(at_rates(1.0, 0.99, 1.01))
    found = autotune.gate(bench.best, within=0.1, results=bench.study.root)
    assert found.passes
    assert found.value.ratio.ratio == pytest.approx(1.0, abs=0.02)
    assert found.as_dict()["verdict"] == "within"
    assert "pass: it is not more than 10% slower" in str(found)
    # A study by its name is taken, too; errors name arguments.
    bench.on(at_rates(0.5))
    slower = autotune.gate("scripted", results=bench.study.root)
    assert not slower.passes
    for wrong in ({"rounds": 2}, {"within": "five"}):
        (name,) = wrong
        with pytest.raises(JobError, match=rf"^{name}\b"):
            autotune.gate(bench.best, results=bench.study.root, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("behave", "n_runs", "code", "shown"),
    [
        (
            at_rates(0.5, disturbed="other processes took 90% of core 0"),
            *(6, ExitCode.UNDECIDED, "other work took time from most of the runs"),
        ),
        (
            at_rates(1.0, peak_memory_bytes=None, memory_bytes={}),
            *(3, ExitCode.FOUND, "memory is not compared"),
        ),
        (realistic, 1, ExitCode.FOUND, "it may have been lucky"),
    ],
)
def test_what_to_be_careful_about_is_said(bench, behave, n_runs, code, shown):
    bench.on(behave)
    bench.edit("reference", "standing", "n_runs", value=n_runs)
    ended, printed = bench.against("--within", "10%")
    assert ended == code
    assert shown in printed


def test_what_is_not_decided_says_what_would_decide_it(bench: Bench) -> None:
    fleet = bench.on(at_rates(0.9, 1.0, 0.94, 1.02, 0.92, 1.01))
    code, shown = bench.against("--within", "5%")
    assert code == ExitCode.UNDECIDED
    assert "not decided: the interval holds 0.950x, where 5% ends." in shown
    assert "likely to decide it" in shown
    assert len(fleet.specs) == 6

    near = bench.on(at_rates(0.98, 1.0, 0.99))
    found = bench.gate(within="5%", rounds=3)
    assert (found.verdict, len(near.specs)) == (GateVerdict.UNDECIDED, 3)
    needed = found.runs_to_decide
    assert needed is not None
    more = bench.on(at_rates(0.98, 1.0, 0.99))
    found = bench.gate(within="5%", rounds=needed)
    assert (found.verdict, found.runs_to_decide) == (GateVerdict.WITHIN, None)
    assert len(more.specs) == needed


def test_more_memory_fails_where_every_run_takes_it(bench: Bench) -> None:
    bench.on(at_rates(1.0, peak=1.2))
    found = bench.gate()
    assert (found.verdict, found.verdict.exit_code) == (GateVerdict.MORE_MEMORY, 5)
    bench.on(at_rates(1.0, peak=1.04))
    assert bench.gate().verdict is GateVerdict.WITHIN


def test_what_does_not_run_any_more_fails_with_its_evidence(bench: Bench) -> None:
    fleet = bench.on(lambda spec: fault(spec, Outcome.OOM, "CUDA out of memory"))
    found = bench.gate()
    assert (found.verdict, found.verdict.exit_code) == (GateVerdict.DOES_NOT_RUN, 5)
    assert found.why == "oom: CUDA out of memory"
    assert len(fleet.specs) == 1


def test_the_platform_is_not_the_best_ones_fault(bench: Bench) -> None:
    fleet = bench.on(lambda spec: fault(spec, Outcome.COMM, "connection reset"))
    found = bench.gate()
    assert (found.verdict, found.verdict.exit_code) == (GateVerdict.NOT_MEASURED, 4)
    assert "the last by comm: connection reset" in found.why
    assert [s.provenance.retry_of for s in fleet.specs] == [None, 0, 1]
    bench.on()
    assert bench.gate().verdict is GateVerdict.WITHIN, "the next one begins anew"


def test_a_disturbed_run_runs_once_more(bench: Bench) -> None:
    quiet = at_rates(1.0)

    def behave(spec: TrialSpec) -> TrialResult:
        if spec.identity.number == 1:
            return at_rates(0.5, disturbed="other processes took 40% of core 0")(spec)
        return quiet(spec)

    fleet = bench.on(behave)
    found = bench.gate()
    assert [s.provenance.repeat_of for s in fleet.specs] == [None, None, 1, None]
    assert found.verdict is GateVerdict.WITHIN
    assert (found.now.n_runs, found.now.n_disturbed) == (3, 0)


def interrupt(bench: Bench, **changes: Any) -> None:
    """A gate that is asked to end in its third run, which counts no more."""
    fleet = bench.on()

    def behave(spec: TrialSpec) -> TrialResult:
        if spec.identity.number == 1:
            fleet.n_polls = 10**6  # the third one is asked to end
        return dataclasses.replace(realistic(spec), **changes)

    fleet.behave = behave
    with pytest.MonkeyPatch.context() as patch:
        is_asked = property(lambda _: fleet.n_polls > 2)
        patch.setattr("autotune.search.interrupt.Interrupt.draining", is_asked)
        assert bench.run() is None
    assert not (bench.study.folder / GATE_FILE).exists()
    assert len(fleet.specs) == 3


def test_an_interrupted_gate_goes_on_and_one_that_ended_begins_anew(bench: Bench) -> None:
    interrupt(bench)
    fleet = bench.on()
    assert bench.gate().verdict is GateVerdict.WITHIN
    assert [s.identity.confirm_round for s in fleet.specs] == [2]
    fleet = bench.on()
    bench.gate()
    assert [s.identity.confirm_round for s in fleet.specs] == [3, 4, 5]


def test_after_an_upgrade_nothing_of_before_counts(bench: Bench) -> None:
    interrupt(bench)
    fleet = bench.on(at=dataclasses.replace(ENVIRONMENT, torch_version="2.14.0"))
    assert bench.gate().verdict is GateVerdict.WITHIN
    assert len(fleet.specs) == 3


def test_after_a_new_driver_nothing_of_before_counts(bench: Bench) -> None:
    interrupt(bench, versions={"nvidia-driver": "550.54"})
    fleet = bench.on(at_rates(1.0, versions={"nvidia-driver": "580.10"}))
    found = bench.gate()
    assert [s.identity.confirm_round for s in fleet.specs] == [2, 3, 4]
    assert found.now.n_runs == 3
    # Nodes whose drivers differ do not make it begin anew for ever.
    turns = itertools.cycle([{"nvidia-driver": "550.54"}, {"nvidia-driver": "580.10"}])
    fleet = bench.on(lambda spec: dataclasses.replace(realistic(spec), versions=next(turns)))
    assert bench.gate().verdict is GateVerdict.WITHIN
    assert len(fleet.specs) == 3


def test_runs_of_another_day_do_not_count(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(bench)
    now_s = app.unix_now_s() + app.RESUMED_WITHIN_S + 60
    monkeypatch.setattr(app, "unix_now_s", lambda: now_s)
    fleet = bench.on()
    bench.gate()
    assert [s.identity.confirm_round for s in fleet.specs] == [3, 4, 5]


def test_a_verdict_that_could_not_be_written_costs_no_runs(bench: Bench) -> None:
    bench.on()
    (bench.study.folder / GATE_FILE).mkdir()
    with pytest.raises(StudyError, match="cannot be written"):
        bench.gate()
    (bench.study.folder / GATE_FILE).rmdir()
    fleet = bench.on()
    assert bench.gate().verdict is GateVerdict.WITHIN
    assert not fleet.specs


def test_a_page_that_cannot_be_drawn_is_noted(bench: Bench) -> None:
    bench.on()
    bench.study.page_file.unlink(missing_ok=True)
    bench.study.page_file.mkdir()
    notes: list[str] = []
    assert bench.gate(note=notes.append).verdict is GateVerdict.WITHIN
    assert [note for note in notes if note.startswith("report.html is not kept up: ")]


def test_a_study_that_is_searched_is_not_measured(bench: Bench) -> None:
    fleet = bench.on()
    bench.study.lock()
    with pytest.raises(StudyError, match="another search holds this study"):
        bench.gate()
    bench.study.unlock()
    assert not fleet.specs
    assert bench.gate().verdict is GateVerdict.WITHIN


def test_a_reference_of_another_figure_is_none_of_the_study_s_report(bench: Bench) -> None:
    bench.on()
    bench.scale(0.5)
    assert bench.gate().verdict is GateVerdict.WITHIN
    assert "gate" not in dict(facts_of(read_story(bench.study)))


def test_a_file_from_elsewhere_asks_for_what_its_job_names(bench, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fleet = bench.on()
    assert bench.gate().verdict is GateVerdict.WITHIN, "it names nothing"
    fleet.specs.clear()
    job = yaml.safe_load(json.loads(bench.best.read_text())["reference"]["job"])
    (tmp_path / "space.yaml").write_text("knobs: {}\n")
    for key, value, deed in (
        ("model", "evil:build", "model: imports evil"),
        ("base_config", "ds.json", f"base_config: reads {tmp_path / 'ds.json'}"),
        ("space", "space.yaml", f"space: reads {tmp_path / 'space.yaml'}"),
    ):
        bench.edit("reference", "job", value=yaml.safe_dump({**job, key: value}))
        with pytest.raises(JobError, match=r"best\.json: is not a file of yours") as caught:
            bench.gate()
        assert deed in caught.value.message
        assert "--trust-job" in caught.value.hint
        asked: list[str] = []
        with pytest.raises(JobError, match="not trusted"):
            bench.gate(ask=asked.append)
        assert asked == ["Trust it?"]
        assert not fleet.specs
    assert bench.gate(trust_job=True).verdict is GateVerdict.WITHIN


def test_only_words_of_the_user_s_stay_in_the_study(bench: Bench) -> None:
    """A checkout of Megatron-LM takes arguments always: those that the layout comes with."""
    for file in bench.study.trials_folder.glob("*/spec.json"):
        asked = json.loads(file.read_text())
        asked["workload"]["arguments"] = ["--x"]
        file.write_text(json.dumps(asked))
    file = bench.study.job_file
    for given, is_kept in (({}, True), ({"megatron_arguments": ["--wandb-key", "x"]}, False)):
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **given}))
        found = app.reference_of(bench.study)
        assert (found.job is not None) == is_kept


def test_what_differs_from_then_is_shown(bench: Bench, tmp_path: Path) -> None:
    """The study is not there any more: the file is all."""
    was = {"torch": "2.13.0", "nvidia-driver": "550.54"}
    bench.edit("reference", "versions", value=was)
    bench.edit("reference", "configuration", value="0" * 12)
    versions = {"torch": "2.14.0", "nvidia-driver": "550.54", "peft": "1.0"}
    bench.on(at_rates(1.0, versions=versions), dataclasses.replace(ENVIRONMENT, n_devices=4))
    code, shown = bench.against("--results", tmp_path / "of-ci")
    assert code == ExitCode.FOUND
    for words_of_it in (
        "differs n_devices: 2 then, 4 now",
        "differs torch: 2.13.0 then, 2.14.0 now",
        "differs peft: - then, 1.0 now",
        "differs configuration: 000000000000 then, ",
    ):
        assert words_of_it in shown
    assert "nvidia-driver" not in shown
    assert (tmp_path / "of-ci" / "scripted" / "gate" / "trials" / "0002").is_dir()


def test_other_devices_are_refused(bench: Bench) -> None:
    fleet = bench.on(at=dataclasses.replace(ENVIRONMENT, device_name="another CPU"))
    with pytest.raises(StudyError, match=r"measured on scripted .cpu., and here is another CPU"):
        bench.gate()
    assert not fleet.specs


@pytest.mark.cases("at", "value", "shown")
def test_a_file_that_is_no_reference_is_named(bench, at, value, shown):
    fleet = bench.on()
    bench.edit(*at, value=value)
    with pytest.raises(AutotuneError, match=shown) as caught:
        bench.gate()
    assert caught.value.exit_code == ExitCode.INVALID_INPUT
    assert caught.value.hint
    assert not fleet.specs


@pytest.mark.cases("text", "shown")
def test_a_file_of_something_else_is_named(bench: Bench, text: str | None, shown: str) -> None:
    bench.best.unlink()
    if text is not None:
        bench.best.write_text(text)
    with pytest.raises(AutotuneError, match=shown):
        bench.gate()


def test_a_file_in_which_everybody_writes_runs_nothing(bench: Bench) -> None:
    fleet = bench.on()
    bench.best.chmod(0o666)
    with pytest.raises(JobError, match="belongs to another user, and says what runs here"):
        bench.gate()
    assert not fleet.specs


def test_a_simulated_study_is_refused(bench: Bench) -> None:
    bench.study.write_state({**bench.study.read_state(), "origin": Origin.SIMULATED.value})
    assert app.reference_of(bench.study) is None
    with pytest.raises(StudyError, match="its figures are simulated: nothing of it was measured"):
        bench.gate(bench.study.folder)


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("0.05", 0.05), (" 2.5 % ", 0.025)])
def test_a_share_is_read_either_way(text: str, share: float) -> None:
    assert parse_share(text, where="--within") == pytest.approx(share)


@pytest.mark.parametrize("text", ["5", "0", "0%", "100%", "-1%", "much", "", "nan"])
def test_what_is_no_share_is_named(text: str) -> None:
    with pytest.raises(JobError, match=r"--within: .* is no share above 0 and below 1"):
        parse_share(text, where="--within")


def test_flags_that_say_two_things_are_refused(bench: Bench) -> None:
    for words, told in (
        (("a", "--against", "b"), "they are two questions"),
        (("--against", "b", "--csv"), "each is another form"),
        (("--against", "b", "--rounds", "2"), "--rounds: '2' is not allowed"),
        (("--against", "b", "--within", "much"), "--within: 'much' is no share"),
        (("a", "b", "--markdown"), "it is a form of --against"),
        ((), "at least two studies"),
    ):
        code, shown = bench.command(*words)
        assert code == ExitCode.INVALID_INPUT
        assert told in " ".join(shown.split())


@pytest.mark.usefixtures("launchers")
def test_a_command_stays_in_its_study(bench, tmp_path, monkeypatch):
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
    session.study.write_state({**session.study.read_state(), "answer": ended.to_dict()})
    session.study.unlock()
    bench.best.write_text(json.dumps(answer_as_dict(ended, None)))
    reference = app.read_reference(str(bench.best), results)
    assert reference.job is None
    assert not [
        word for word in ("--nproc-per-node", "train.py") if word in bench.best.read_text()
    ]

    fleet = bench.on(lambda spec: ok(spec, 100.0 * spec.layout.micro_batch))
    with pytest.raises(JobError, match="script: runs the command of"):
        bench.gate(bench.best, results)
    for file in (results / "own" / "job.yaml", results / "own" / "observed.json", results / "own"):
        mode = file.stat().st_mode
        file.chmod(mode | 0o002)
        with pytest.raises(JobError, match=f"{file}: belongs to another user, and says what runs"):
            bench.gate(bench.best, results, trust_job=True)
        file.chmod(mode)
    assert not fleet.specs
    assert bench.gate(bench.best, results, trust_job=True).verdict is GateVerdict.WITHIN
    assert fleet.specs[0].workload.command
    (results / "own").rename(tmp_path / "moved")
    assert bench.gate(tmp_path / "moved", tmp_path).verdict is GateVerdict.WITHIN
    with pytest.raises(StudyError, match=r"its command, or its arguments of .* stand in"):
        bench.gate(bench.best, tmp_path / "of-ci")
