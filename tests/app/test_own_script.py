"""What is known of a user's own command before it has run."""

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.app.diagnose import _best_of, _changes, _search_command, _without_slower, diagnose
from autotune.app.exports import export_study, patch_study
from autotune.app.own_script import (
    _as_trial,
    _job_in_words,
    adopt_first_run,
    observe,
    open_command_session,
    own_candidate,
    ranks_in_words,
    refuse_missing_script,
)
from autotune.app.run import begin_study
from autotune.app.session import plan_search
from autotune.app.studies import find_study, state_of
from autotune.base import plugins
from autotune.base.errors import FleetError, JobError, StudyError
from autotune.base.units import format_bytes
from autotune.contract import Role, read_json, to_dict, write_json
from autotune.engines.base import Engine
from autotune.fleet.base import Fleet, Place
from autotune.job.job import Job
from autotune.job.observed import OBSERVED_FILE, Observed, digest_of, file_digest
from autotune.planning.lattice import Lattice
from autotune.record.study import Study
from autotune.report.candidates.ranking import MEMORY_PARTS
from autotune.report.explain.script import ScriptDiagnosis, describe_script
from autotune.report.explain.trial import Explanation
from autotune.report.story import read_story
from autotune.report.terminal.study import print_plan
from autotune.report.terminal.tables import print_told
from autotune.report.verdict import verdict_of
from autotune.search.trial_spec import Run, make_spec
from autotune.space.candidate import Candidate
from tests.jobs import CPU
from tests.observed import RAW, TRAINER, observed
from tests.report.told import printed

Diagnosed = Callable[..., ScriptDiagnosis]


def test_an_engine_that_cannot_be_loaded_ends_no_search_of_another(monkeypatch, tmp_path):
    broken = EntryPoint("broken", "no_such_module:Engine", "autotune.engines")
    monkeypatch.setitem(plugins._offered("engine"), "broken", broken)
    notes: list[str] = []
    assert _job_in_words(["python", "train.py"], tmp_path, None, notes.append) is None
    (note,) = notes
    assert "no_such_module:Engine cannot be loaded" in note
    with pytest.raises(JobError, match="cannot be loaded"):
        _job_in_words(["python", "train.py"], tmp_path, "broken", notes.append)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nnodes 2 --nproc-per-node 2 train.py",
        "srun -N 2 torchrun --nproc-per-node 2 train.py",
        "bash -c 'deepspeed --num_nodes 2 --num_gpus 2 train.py'",
        "accelerate launch --num_machines 2 --num_processes 4 train.py",
    ],
)
def test_a_command_of_several_nodes_is_refused_before_it_waits(command: str) -> None:
    with pytest.raises(JobError, match="on 2 nodes"):
        ranks_in_words(shlex.split(command))


@pytest.mark.cases("command", "variable", "world")
def test_the_ranks_that_a_command_is_expected_to_start(monkeypatch, command, variable, world):
    monkeypatch.setenv("NPROC_PER_NODE", variable)
    assert ranks_in_words(command.split()) == world


@pytest.fixture
def launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launchers of this interpreter, whether or not its environment is activated."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)


SMALL = {"study": "own", "space": "smoke"}
"""A study whose candidates are judged in no time."""


def studied(
    results: Path, description: dict[str, Any] = TRAINER, **said: Any
) -> tuple[list[str], Path]:
    """A command whose first run is there already, and where it ran."""
    folder = results.parent / "project"
    folder.mkdir()
    script = dataclasses.replace(observed(description), folder=str(folder), **said)
    (results / "own").mkdir(parents=True)
    write_json(results / "own" / OBSERVED_FILE, to_dict(script))
    return script.command, folder


@pytest.fixture
def diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launchers: None) -> Diagnosed:
    """What `diagnose` says of a command whose first run is there already."""

    def said(description: dict[str, Any] = TRAINER) -> ScriptDiagnosis:
        command, folder = studied(tmp_path / "results", description)
        monkeypatch.chdir(folder)
        return diagnose(command, SMALL, results=tmp_path / "results", fresh=False, note=print)

    return said


def test_the_search_that_goes_on_names_the_fleet_as_it_was_typed() -> None:
    """The allocation that a fleet held for the run is gone by then."""
    typed = {"results": Path("results"), "fleet": "slurm", "fleet_option": ["wait=5m", "slots=2"]}
    words = _search_command(["torchrun", "t.py"], typed)
    options = "--fleet slurm --fleet-option wait=5m --fleet-option slots=2"
    assert words == f"autotune search {options} -- torchrun t.py"


def test_a_study_that_was_only_diagnosed_says_so(diagnosed: Diagnosed, tmp_path: Path) -> None:
    diagnosed()
    study = find_study(tmp_path / "results", "own")
    verdict = verdict_of(read_story(study))
    assert verdict.headline.startswith("Diagnosed: ")
    assert "ran the command as it is. No search was started: no gain is claimed." in verdict.words
    assert "?" not in verdict.about["place"]
    state = state_of(study)
    assert not state.is_searched
    assert "diagnosed, not searched" in printed(print_told, "states", {"states": [state]})


def test_a_study_of_a_command_may_be_moved(diagnosed, tmp_path, monkeypatch):
    diagnosed()
    folder = tmp_path / "project"
    (tmp_path / "results").rename(tmp_path / "elsewhere")
    study = find_study(tmp_path / "elsewhere", "own")
    files = export_study(study, tmp_path / "tuned", trial=0)
    assert tmp_path / "tuned" / "ds_config.json" in files
    (patched,) = patch_study(study, [written(folder / "ds.json")], trial=0).files
    assert not patched.is_changed, "it is the command as it is"
    assert not patched.left
    monkeypatch.chdir(tmp_path)
    (folder / "train.py").write_text("pass\n")
    folder.rename(tmp_path / "moved")
    with pytest.raises(StudyError, match="which is not there") as refused:
        export_study(study, tmp_path / "tuned", trial=0)
    assert "search again where it is now" in refused.value.hint


def written(path: Path) -> Path:
    """The configuration that arrived, as a file."""
    path.write_text(json.dumps(TRAINER["config"]), encoding="utf-8")
    return path


def test_nothing_runs_where_the_devices_are_not_those_of_the_job(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("raise AssertionError('it ran')\n")
    monkeypatch.chdir(tmp_path)
    notes: list[str] = []
    with pytest.raises(FleetError, match="--gpu H100: trials would run on"):
        open_command_session(
            [sys.executable, "train.py"],
            {"gpu": "H100"},
            results=tmp_path / "r",
            note=notes.append,
        )
    assert (notes, (tmp_path / "r").exists()) == ([], False)


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launchers: None) -> Study:
    """A study of a command with files: trial 0 ran it as it is, trial 1 with ZeRO stage 1."""
    folder = tmp_path / "project"
    names = [str(folder / name) for name in ("ds.json", "run.sh", "train.py")]
    own, _ = studied(tmp_path / "results", {**TRAINER, "config_file": names[0]}, sources=names)
    written(folder / "ds.json")
    (folder / "run.sh").write_text("torchrun --nproc-per-node 2 train.py --deepspeed ds.json\n")
    (folder / "train.py").write_text("pass\n")
    path = tmp_path / "results" / "own" / OBSERVED_FILE
    digests = {name: file_digest(name) for name in names}
    said = read_json(path) | {"observed_digest": digest_of(own, names), "source_digests": digests}
    write_json(path, said)
    monkeypatch.chdir(folder)
    session = open_command_session(own, SMALL, results=tmp_path / "results", note=print)
    session.study.lock()
    begin_study(session, print)
    adopt_first_run(session)
    values = {**own_candidate(session).values, "zero.stage": 1}
    candidate = Candidate.of(values, world=2, global_batch=session.job.global_batch)
    spec = make_spec(
        Run(candidate=candidate, role=Role.SEARCH),
        study="own",
        number=1,
        job=session.job,
        engine=session.engine,
        environment=session.environment,
    )
    trial = session.study.write_spec(spec, session.engine.files(candidate))
    session.study.take_result(trial, spec, _as_trial(Observed.read(path), spec))
    session.study.unlock()
    return session.study


def patch(study: Study, name: str, trial: int = 1) -> bool:
    """Patch a file; says whether there was anything to write."""
    made = patch_study(study, [Path(name)], trial=trial)
    for one in made.files:
        made.write(one)
    return any(one.is_changed for one in made.files)


def test_what_a_study_s_own_patch_wrote_makes_it_no_other_study(tuned: Study) -> None:
    out = tuned.root / "out"
    assert patch(tuned, "ds.json")
    assert json.loads(Path("ds.json").read_text())["zero_optimization"]["stage"] == 1
    assert not patch(tuned, "ds.json"), "a second run changes nothing"
    patch(tuned, "run.sh")
    export_study(tuned, out, trial=1)
    after = Path("ds.json").read_text()
    Path("ds.json").write_text(after + " ")
    with pytest.raises(StudyError, match=r"project/ds\.json is not what it was"):
        export_study(tuned, out, trial=1)


def test_what_a_patch_wrote_is_no_part_of_another_trial(tuned: Study) -> None:
    """The changes of both would be in what is handed out."""
    before = Path("ds.json").read_text()
    patch(tuned, "ds.json")
    with pytest.raises(StudyError, match=r"ds\.json holds the configuration of trial 1, which"):
        export_study(tuned, tuned.root / "out", trial=0)
    Path("ds.json").write_text(before)
    export_study(tuned, tuned.root / "out", trial=0)


def test_a_file_that_the_user_changed_is_named(tuned: Study) -> None:
    patch(tuned, "ds.json")
    Path("train.py").write_text("import torch\n")
    with pytest.raises(StudyError, match=r"describe now: \S+train\.py is not what it was\n"):
        patch(tuned, "ds.json")


def test_a_patched_command_is_observed_anew(tuned: Study) -> None:
    """As it is now it is another baseline."""
    script = Observed.read(tuned.folder / OBSERVED_FILE)
    patch(tuned, "ds.json")
    assert script.digest() != script.observed_digest


def test_what_cannot_be_predicted_is_not_called_slower(diagnosed: Diagnosed) -> None:
    """It also ended before a diagnostic pass."""
    sizes = dict.fromkeys(TRAINER["sizes"], 0)
    said = diagnosed(RAW | {"sizes": sizes})
    assert (
        dict(describe_script(said))["changes"] == "none can be predicted: a search measures them"
    )
    assert any(note.startswith("nothing can be predicted: model") for note in said.notes)
    assert any("ended too soon" in note for note in said.notes)
    assert said.row["tokens_per_s"] is None, "none was counted"


@pytest.mark.usefixtures("launchers")
def test_tokens_of_a_command_are_those_that_were_counted(tmp_path, monkeypatch):
    """Its samples differ in length, and the longest says nothing of the others."""
    command, folder = studied(tmp_path / "results")
    path = tmp_path / "results" / "own" / OBSERVED_FILE
    script = read_json(path)
    script["result"] |= {"tokens_per_step": 300.0, "padded_tokens_per_step": 400.0}
    write_json(path, script)
    monkeypatch.chdir(folder)
    said = diagnose(
        command, {"study": "own"}, results=tmp_path / "results", fresh=False, note=print
    )
    steps_per_s = said.row["samples_per_s"] / said.settings["global_batch"]
    assert said.row["tokens_per_s"] == pytest.approx(300 * steps_per_s)
    assert said.row["padded_tokens_per_s"] == pytest.approx(400 * steps_per_s)


def test_other_work_beside_the_command_is_told(diagnosed: Diagnosed) -> None:
    said = diagnosed()
    assert "disturbed" not in dict(describe_script(said))
    assert said.as_dict()["disturbed"] == ""
    why = "other processes took 40% of core 0, 1"
    said = dataclasses.replace(said, result=dataclasses.replace(said.result, disturbed=why))
    assert dict(describe_script(said))["disturbed"].startswith(f"{why}: ")
    assert said.as_dict()["disturbed"] == why


@pytest.mark.usefixtures("launchers")
def test_a_slow_run_is_no_gain_of_any_change(tmp_path, monkeypatch) -> None:
    """The forecasts of a change and of the command are compared, and its run scales both."""
    gains = []
    for name, factor in (("calm", 1), ("disturbed", 20)):
        (tmp_path / name).mkdir()
        result = observed(TRAINER).result
        keys = ("step_time_s", "step_time_low_s", "step_time_high_s", "wall_s")
        times = {key: factor * result[key] for key in keys}
        times["step_times_s"] = [factor * step_s for step_s in result["step_times_s"]]
        command, folder = studied(tmp_path / name / "results", result={**result, **times})
        monkeypatch.chdir(folder)
        said = diagnose(command, SMALL, results=folder.parent / "results", fresh=False, note=print)
        gains.append({change.settings: change.gain for change in said.changes})
    assert gains[0]
    assert gains[1] == pytest.approx(gains[0])


def test_a_change_is_named_once_with_what_suits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage brings knobs that stage 0 has not: all of its candidates are one change."""

    def candidate(**values: Any) -> Candidate:
        return Candidate.of({"micro_batch": 4, **values}, world=2, global_batch=8)

    steps_s = {
        candidate(stage=0): 1.0,
        candidate(stage=1, offload="none"): 0.8,
        candidate(stage=1, offload="cpu"): 0.5,
        candidate(stage=2, offload="cpu"): 0.6,
    }

    def predict(_: Any, found: Candidate) -> SimpleNamespace:
        times = dict.fromkeys(
            ("step_time_s", "step_time_low_s", "step_time_high_s"), steps_s[found]
        )
        peaks = ("peak_memory_bytes", "peak_memory_low_bytes", "peak_memory_high_bytes")
        return SimpleNamespace(**times, **dict.fromkeys(peaks, 1.0))

    monkeypatch.setattr(
        "autotune.app.diagnose.describe_difference", lambda found, *_: str(found.values["stage"])
    )
    lattice = SimpleNamespace(candidates=list(steps_s), is_legal=lambda _: True)
    engine = SimpleNamespace(context=None, edits_in_words=lambda _: ())
    session: Any = SimpleNamespace(lattice=lattice, engine=engine)
    steering: Any = SimpleNamespace(predict=predict, objective=SimpleNamespace(allowed_bytes=None))
    history: Any = None
    changes = _changes(session, steering, history, candidate(stage=0))
    assert [(change.settings, round(change.gain, 2)) for change in _best_of(changes)] == [
        ("1", 2.0),
        ("2", 1.67),
    ]
    advice: Any = [SimpleNamespace(knob="stage", after=at, tried=None) for at in (1, 3)]
    others: Any = dict.fromkeys(("spec", "result", "diagnosis", "bottleneck"))
    explanation = Explanation(
        trial=0, advice=advice, precision="", peak_flops=None, flops_per_s=None, rerun=(), **others
    )
    slower: Any = {(("stage", 3),): SimpleNamespace(gain=0.9)}
    kept = _without_slower(explanation, {**changes, **slower}).advice
    assert [one.after for one in kept] == [1], "no advice that the forecast contradicts"


def test_the_parts_of_a_commands_memory_are_the_predicted_peak(diagnosed: Diagnosed) -> None:
    """What the process itself takes is one of them."""
    said = diagnosed()
    on_device = {name: value for name, value in said.memory_bytes.items() if name != "host"}
    assert set(on_device) == {part.removesuffix("_bytes") for part in MEMORY_PARTS}, (
        "together they are the peak"
    )
    text = dict(describe_script(said))["memory"]
    assert f"predicted {format_bytes(sum(on_device.values()))} in all" in text
    assert "driver and libraries" in text


@pytest.mark.usefixtures("launchers")
@pytest.mark.parametrize(
    ("description", "said"),
    [(TRAINER, "sequence 64, global"), (RAW, "samples without a length, global")],
    ids=["tokens", "images"],
)
def test_a_plan_names_the_length_of_samples_that_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, description: dict[str, Any], said: str
) -> None:
    command, folder = studied(tmp_path / "results", description)
    monkeypatch.chdir(folder)
    session = open_command_session(command, SMALL, results=tmp_path / "results", note=print)
    plan = plan_search(session, fresh=False)
    assert said in printed(print_plan, plan, width=200, reasons=False)


@pytest.mark.usefixtures("launchers")
def test_a_plan_names_a_knob_that_all_candidates_change_alike(tmp_path, monkeypatch):
    """What the command sets itself stays a choice, unlike a default of DeepSpeed."""
    config = {"zero_optimization": {"stage": 2, "reduce_bucket_size": 16384}}
    description = {**TRAINER, "config": {**TRAINER["config"], **config}}
    command, folder = studied(tmp_path / "results", description)
    monkeypatch.chdir(folder)
    (space := tmp_path / "space.yaml").write_text(
        "name: x\ndescription: x\nknobs: {overlap_comm: [true], reduce_bucket_size: [50000000]}"
    )
    flags = {"study": "own", "space": str(space)}
    session = open_command_session(command, flags, results=tmp_path / "results", note=print)
    plan = plan_search(session, fresh=False)
    assert session.lattice.values.keys() & {"overlap_comm", "reduce_bucket_size"} == {
        "reduce_bucket_size"
    }
    assert plan.ways["overlap_comm"] == plan.ways["reduce_bucket_size"] == "configuration"
    assert not {"stage3.sub_group_size", "zenflow"} & plan.ways.keys()


@pytest.mark.usefixtures("launchers")
def test_a_first_run_without_the_limit_is_no_trial_within_it(tmp_path, monkeypatch):
    """It took 1 GiB."""
    command, folder = studied(tmp_path / "results")
    monkeypatch.chdir(folder)
    limited = {"study": "own", "memory_limit": "512MiB"}
    with pytest.raises(JobError, match=r"does not fit in 512 MiB: .* takes 1 GiB"):
        diagnose(command, limited, results=tmp_path / "results", fresh=False, note=print)


@pytest.mark.cases("line", "missing")
def test_a_script_that_is_not_there_is_refused(tmp_path, line, missing):
    (tmp_path / "train.py").touch()
    if missing is None:
        refuse_missing_script(line.split(), tmp_path)
        return
    with pytest.raises(JobError, match=f"{missing}: there is no such script"):
        refuse_missing_script(line.split(), tmp_path)


class Refusing(Place):
    """A place where no first run comes about."""

    is_elsewhere = True  # nothing is compiled for it here
    error: type[BaseException] = KeyboardInterrupt

    def gangs(self, world: int) -> Fleet:
        raise self.error("the ranks cannot meet", "mend it")

    def remarks(self, world: int) -> Sequence[str]:
        return ("somebody else measures here",)

    def fleet_for(self, job: Job, engine: Engine, lattice: Lattice) -> Callable[[], Fleet]:
        raise AssertionError("no search begins")


@pytest.mark.parametrize("error", [KeyboardInterrupt, FleetError])
@pytest.mark.parametrize("was_there", [False, True])
def test_a_first_run_that_never_was_leaves_what_it_found(tmp_path, was_there, error):
    place = Refusing(CPU, {})
    place.error = error
    study, said = Study(tmp_path, "own"), list[str]()
    if was_there:
        study.folder.mkdir()
    with pytest.raises(error):
        observe(
            ["python", "train.py"],
            {},
            place=place,
            study=study,
            folder=str(tmp_path),
            note=said.append,
        )
    assert study.folder.exists() == was_there
    assert "somebody else measures here" in said
