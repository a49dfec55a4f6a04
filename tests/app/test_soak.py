"""Soaks of studies and exports on a scripted fleet, and what the exports say of them."""

import dataclasses
import itertools
import json
import sys
from pathlib import Path

import pytest

from autotune import cli
from autotune.app import soak as app
from autotune.app.exports import export_study
from autotune.app.worth import run_ladder
from autotune.base.errors import ExitCode, JobError, StudyError
from autotune.contract import Outcome, Role, TrialSpec
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.export.door import export_handout, handout_of, read_export
from autotune.fleet.options import NO_OPTIONS
from autotune.fleet.transports.local import Here
from autotune.job.adapters import Lora
from autotune.job.lengths import Lengths
from autotune.record.found import write_found
from autotune.record.soak import SOAK_FILE, SoakResult, read_soak
from autotune.record.study import Study, flags_of
from autotune.report.story import read_story
from autotune.search.trial_spec import MEASURE, Run, make_spec
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import canonical
from tests.report.test_terminal import exportable
from tests.report.told import facts_of
from tests.search.scripted import ENVIRONMENT, Behaviour, candidate, fault, make
from tests.search.test_soak import SoakFleet, steady


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return exportable(tmp_path / "results")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Lets the next soak run on a scripted fleet; answers with the fleet."""
    place = Here(ENVIRONMENT, {})
    monkeypatch.setattr(app, "find_running_place", lambda *_: place)

    def use(behave: Behaviour = steady) -> SoakFleet:
        fleet = SoakFleet(behave)
        monkeypatch.setattr(place, "gangs", lambda _: fleet)
        return fleet

    return use


def soak(study: Study) -> SoakResult:
    found = app.run_soak(study, minutes=2.0, note=lambda _: None)
    assert found is not None
    return found


def test_the_winner_is_soaked_and_its_export_says_so(study: Study, machine, tmp_path: Path):
    export_study(study, tmp_path / "before", to="deepspeed", trial=None)
    readme = (tmp_path / "before" / "README.md").read_text()
    assert "It was not soaked" in readme
    assert f"(`autotune soak {flags_of(study.folder)}`;" in readme
    assert json.loads((tmp_path / "before" / "figures.json").read_text())["soak"] is None

    assert "soak" not in dict(facts_of(read_story(study)))

    fleet = machine()
    found = soak(study)
    best = study.read_state()["answer"]["best"]
    knobs = dict(best["candidate"]["knobs"])
    assert found.passed
    assert (found.trial, found.steps, found.minutes) == (best["trial"], 36, 36 / 60)
    assert {s.identity.knobs == knobs for s in fleet.specs} == {True}
    assert {s.identity.role for s in fleet.specs} == {Role.SOAK}
    assert fleet.specs[0].measure.memory_limit_bytes == 24 * 2**30
    assert read_soak(study.folder) == found
    assert len(study.trials()) == len(Study(study.root, study.name).trials())
    assert not [t for t in study.trials() if t.spec.identity.role is Role.SOAK], (
        "no part of the record"
    )

    words = (
        "Soak (`autotune soak`) passed: 0.6 minutes, 36 steps at sequence 64, with a checkpoint"
    )
    assert words in (study.best_folder / "README.md").read_text()
    figures = json.loads((study.best_folder / "figures.json").read_text())
    assert (figures["soak"]["passed"], figures["soak"]["steps"]) == (True, 36)
    said = dict(facts_of(read_story(study)))["soak"]
    assert said.startswith("passed: 0.6 minutes, 36 steps")


def test_another_configuration_is_not_called_soaked(study: Study, machine, tmp_path: Path):
    machine()
    best = soak(study).trial
    others = [
        t.spec.identity.number
        for t in study.trials()
        if t.spec.identity.role is Role.SEARCH
        and t.spec.identity.candidate_hash
        != study.trials()[best or 0].spec.identity.candidate_hash
    ]
    export_study(study, tmp_path / "other", to="deepspeed", trial=others[0])
    assert "It was not soaked" in (tmp_path / "other" / "README.md").read_text()


def test_an_edited_configuration_is_not_called_soaked(study: Study, machine, tmp_path: Path):
    machine()
    found = soak(study)
    write_found(
        study.folder / SOAK_FILE, dataclasses.replace(found, ds_config_digest="of another")
    )
    export_study(study, tmp_path / "edited", to="deepspeed", trial=None)
    assert "It was not soaked" in (tmp_path / "edited" / "README.md").read_text()


def test_a_soak_that_fails_ends_with_its_own_code_and_the_export_says_why(
    study: Study, machine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    machine(lambda s: fault(s, Outcome.OOM, "out of memory after an hour"))
    command = ["autotune", "soak", "--results", str(study.root), "--minutes", "2", "--json"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == ExitCode.CHECK_FAILED
    answer = json.loads(capfd.readouterr().out)
    assert answer["problems"] == ["first half: oom: out of memory after an hour [script]"]
    readme = (study.best_folder / "README.md").read_text()
    assert "failed: 0.0 minutes" in readme
    assert "- first half: oom: out of memory after an hour" in readme


def test_a_soak_that_is_too_short_to_judge_is_not_called_failed(
    study: Study, machine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    fleet = machine()
    fleet.n_samples = 3
    command = ["autotune", "soak", "--results", str(study.root), "--minutes", "2"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == ExitCode.CHECK_FAILED
    said = " ".join(capfd.readouterr().out.split())
    assert "too short to know: 0.6 minutes, 36 steps" in said
    assert "not known first half: whether memory grows is not known: 2 samples" in said
    found = read_soak(study.folder)
    assert (found.passed, found.too_short) == (False, True)
    readme = (study.best_folder / "README.md").read_text()
    assert "(`autotune soak`) too short to know: 0.6 minutes" in readme
    assert "failed" not in said


def test_people_get_a_few_lines(study, machine, monkeypatch, capfd):
    machine()
    monkeypatch.setattr(sys, "argv", ["autotune", "soak", "--results", str(study.root)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == ExitCode.FOUND
    text = capfd.readouterr().out
    for word in ("passed", "1000 B after 20 steps", "host_rss: 0 B per hour", "allowed"):
        assert word in text


def test_an_export_is_soaked_where_it_lies(study: Study, machine, tmp_path: Path):
    out = tmp_path / "out"
    export_study(study, out, to="deepspeed", trial=None)
    fleet = machine()
    found = app.run_soak(out, minutes=2.0, note=lambda _: None)
    assert found.passed
    assert read_soak(out) == found
    (theirs,) = [t.spec for t in study.trials() if t.spec.identity.number == best_of(study)]
    check_same(theirs, fleet.specs[0])
    written = (out / "soak" / "trials" / "0000" / "config" / "ds_config.json").read_text()
    assert written == (out / "ds_config.json").read_text()


CUDA = dataclasses.replace(ENVIRONMENT, accelerator="cuda")
SWAPPED = {"zero__stage": 3, "offload__optimizer": "nvme"}
PROCESS = {"allocator": "expandable_segments", "core_binding": "ranks"}


@pytest.mark.parametrize(
    ("environment", "knobs"),
    [
        (ENVIRONMENT, {"attention": "eager", "loss_chunk_tokens": 16, "compile": "torch"}),
        (ENVIRONMENT, {**SWAPPED, "micro_batch": 4, "recompute": "every_2"}),
        (CUDA, {"zero__stage": 1, "tp": 2, **PROCESS}),
    ],
    ids=["script", "swapped", "process"],
)
def test_an_export_is_soaked_as_it_was_measured(
    tmp_path: Path, machine, monkeypatch: pytest.MonkeyPatch, environment, knobs
):
    (tmp_path / "disk").mkdir()
    job = make(seed=7, nvme_path=str(tmp_path / "disk"))
    lora = Lora(rank=4, alpha=8.0, target_modules="all-linear", dropout=0.1)
    adapted = {**job.model.source, "lora": lora.as_source()}
    job = dataclasses.replace(
        job,
        model=dataclasses.replace(job.model, source=adapted),
        lengths=Lengths(kind="histogram", histogram=((16, 0.5), (64, 0.5)), pad_to_multiple=8),
    )
    values = canonical(
        {name.replace("__", "."): value for name, value in knobs.items()},
        Context.of(job, environment),
    )
    chosen = Candidate.of(values, world=job.world, global_batch=job.global_batch)
    for name, value in knobs.items():
        assert chosen.get(name.replace("__", ".")) == value, "it acts"
    engine = DeepSpeedEngine(job, environment)
    run = Run(candidate=chosen, role=Role.SEARCH)
    theirs = make_spec(run, study="any", number=0, job=job, engine=engine, environment=environment)
    export_handout(
        handout_of(chosen, engine=engine, job=job, environment=environment),
        tmp_path / "out",
        to="deepspeed",
    )

    fleet = machine()
    app.find_running_place("local", NO_OPTIONS).environment = environment
    ours = read_export(tmp_path / "out", environment, measure=MEASURE).spec
    check_same(theirs, ours)
    assert ours.workload.lengths == theirs.workload.lengths
    expected = {k: v for k, v in theirs.engine.expected.items() if k not in OF_THE_SHAPE}
    assert ours.engine.expected == expected
    app.run_soak(tmp_path / "out", minutes=2.0, note=lambda _: None)
    check_same(theirs, fleet.specs[0])
    assert ["nvme" in command for command in fleet.prepared] == ["nvme" in knobs.values()]


OF_THE_SHAPE = {"n_params", "n_params_frozen", "recomputed_layers"}


def check_same(theirs: TrialSpec, ours: TrialSpec) -> None:
    """A soak runs what the trial ran, with samples of its own lengths and for longer."""
    assert ours.layout == theirs.layout
    assert dataclasses.replace(ours.workload, lengths=theirs.workload.lengths) == theirs.workload
    assert ours.measure.memory_limit_bytes == theirs.measure.memory_limit_bytes
    assert ours.provenance == theirs.provenance
    assert ours.engine.environment == theirs.engine.environment
    # A CPU rank is bound to its core whatever the candidate says.
    is_cpu = theirs.layout.accelerator == "cpu"
    assert is_cpu or ours.engine.binds_cores == theirs.engine.binds_cores


def best_of(study: Study) -> int:
    return int(study.read_state()["answer"]["best"]["trial"])


def test_an_interrupted_soak_says_nothing(study: Study, machine, monkeypatch: pytest.MonkeyPatch):
    fleet = machine()
    fleet.n_polls = 10**6
    monkeypatch.setattr("autotune.search.interrupt.Interrupt.draining", True)
    assert app.run_soak(study, minutes=2.0, note=lambda _: None) is None
    assert not (study.folder / SOAK_FILE).exists()


def test_other_devices_than_the_searchs_are_refused(study, machine, monkeypatch):
    machine()
    state = study.read_state()
    state["environments"][0]["accelerator"] = "cuda"
    study.write_state(state)
    for path in study.trials_folder.glob("*/spec.json"):
        path.write_text(path.read_text().replace('"accelerator": "cpu"', '"accelerator": "cuda"'))
    with pytest.raises(StudyError, match="measured on cuda, what is here trains on cpu"):
        soak(study)


@pytest.mark.parametrize("fleet", ["simulate", "simulate:8xH100"])
def test_a_place_that_only_answers_is_refused_whatever_its_devices_are(study: Study, fleet: str):
    note: list[str] = []
    with pytest.raises(JobError, match="only answers for trials, and runs none"):
        app.run_soak(study, minutes=2.0, note=note.append, fleet=fleet)
    with pytest.raises(JobError, match="only answers for trials, and runs none"):
        run_ladder(study, note=note.append, fleet=fleet, settings=["zero.stage=3"])
    assert not note


def test_a_study_without_a_best_is_refused(tmp_path: Path, machine):
    study = exportable(tmp_path / "results")
    study.write_state({**study.read_state(), "answer": None})
    with pytest.raises(StudyError, match="has not found a best configuration"):
        soak(study)


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
def test_minutes_are_a_length_of_time(tmp_path: Path, minutes: float):
    with pytest.raises(JobError, match="no length of a soak"):
        app.run_soak(tmp_path, minutes=minutes, note=lambda _: None)


@pytest.mark.parametrize("name", ["nothing", "half"])
def test_a_folder_that_is_no_export_is_named(tmp_path: Path, machine, name: str):
    machine()
    if name == "half":
        (tmp_path / "ds_config.json").write_text("{}")
        (tmp_path / "settings.json").write_text('{"factory": "a:b"}')
    with pytest.raises(JobError, match="not an export of autotune"):
        app.run_soak(tmp_path, minutes=1, note=lambda _: None)


def exported_with(folder: Path, **changes: object) -> Path:
    """An export in whose settings somebody changed something."""
    job = make()
    export_handout(
        handout_of(
            candidate(job, zero__stage=1),
            engine=DeepSpeedEngine(job, ENVIRONMENT),
            job=job,
            environment=ENVIRONMENT,
        ),
        folder,
        to="deepspeed",
    )
    settings = folder / "settings.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **changes}))
    return folder


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *itertools.product(("tp",), (0, -1, 1.5, "2", True, None, [2], 1e400)),
        *itertools.product(("world", "pp", "seq_len"), (0,)),
    ],
)
def test_a_count_of_an_export_that_is_none_is_named(tmp_path: Path, name: str, value: object):
    out = exported_with(tmp_path / "out", **{name: value})
    with pytest.raises(JobError, match=f"{name}: .* is not a whole number from 1"):
        read_export(out, ENVIRONMENT, measure=MEASURE)


@pytest.mark.parametrize("name", ["recompute", "attention", "compile"])
def test_a_word_of_an_export_that_is_none_is_named(tmp_path: Path, name: str):
    """In a pipeline the live engine is asked for the interval that `recompute` says."""
    out = exported_with(tmp_path / "out", pp=2, world=4, **{name: 5})
    with pytest.raises(JobError, match=f"{name}: '5' is no text"):
        read_export(out, ENVIRONMENT, measure=MEASURE)
