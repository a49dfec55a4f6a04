"""The report of scripted searches: what it says, and that it fits."""

import dataclasses
import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from autotune.app.session import plan_search
from autotune.app.studies import State, state_of
from autotune.base.units import format_interval, parse_seconds
from autotune.contract import Origin, Outcome, Role, TrialResult, TrialSpec
from autotune.engines.base import Engine
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.job.job import Job
from autotune.record.study import Study
from autotune.record.table import load_table
from autotune.report.page.tables import trials as trials_of
from autotune.report.story import Story, read_story
from autotune.report.terminal.study import print_plan, print_report, render_markdown
from autotune.report.terminal.tables import print_told
from autotune.report.verdict import verdict_of
from autotune.search.history import History
from autotune.search.objective import Objective
from autotune.search.plan import Plan, make_plan
from autotune.search.session import RecordedPlace, Session
from autotune.space.knob import Context
from tests.observed import job_of, observed
from tests.report.told import cells_of, facts_of, printed
from tests.search.scripted import (
    ENVIRONMENT,
    GIB,
    JOB,
    Behaviour,
    ScriptedEngine,
    fault,
    lattice_of,
    make,
    ok,
    realistic,
    search,
    session_of,
)
from tests.search.test_repeats import LOAD, disturbing
from tests.trials import CPU


def finished(
    folder: Path,
    behave: Behaviour = realistic,
    *,
    engine: Callable[[Job], Engine] = ScriptedEngine,
    **job_changes: object,
) -> Study:
    """A study whose search has ended, with the facts that the application adds.

    The plain one is searched once and copied: a study may lie anywhere.
    """
    study = Study(folder, "scripted")
    is_plain = behave is realistic and engine in (ScriptedEngine, deepspeed_engine)
    if is_plain and not job_changes and not study.folder.exists():
        shutil.copytree(_plain(engine), study.folder)
        return study
    return _searched(study, behave, engine, job_changes)


@functools.cache
def _plain(engine: Callable[[Job], Engine]) -> Path:
    _PLAIN.append(folder := tempfile.TemporaryDirectory(prefix="autotune-plain-"))
    return _searched(Study(Path(folder.name), "scripted"), realistic, engine, {}).folder


_PLAIN: list[tempfile.TemporaryDirectory[str]] = []
"""Removed with this process."""


def _searched(
    study: Study,
    behave: Behaviour,
    engine: Callable[[Job], Engine],
    job_changes: dict[str, object],
) -> Study:
    study.trials_folder.mkdir(parents=True, exist_ok=True)
    job = make(**job_changes)
    objective = Objective.of(job, ENVIRONMENT)
    facts = {
        "objective": dataclasses.asdict(objective.wish),
        "allowed_bytes": objective.allowed_bytes,
        "context": dataclasses.asdict(Context.of(job, ENVIRONMENT)),
    }
    study.write_state(facts)
    result = search(study, job, behave, engine=engine(job))
    study.write_state({**study.read_state(), "answer": result.to_dict()})
    return study


def deepspeed_engine(job: Job) -> Engine:
    return DeepSpeedEngine(job, ENVIRONMENT)


def exportable(folder: Path, behave: Behaviour = realistic, **job_changes: object) -> Study:
    """Such a study, whose candidates can be handed out: of DeepSpeed's engine, with its job."""
    study = finished(folder, behave, engine=deepspeed_engine, **job_changes)
    study.job_file.write_text(yaml.safe_dump(JOB), encoding="utf-8")
    return study


def shown(report: Story, width: int = 80, *, details: bool = False) -> str:
    return printed(print_report, report, width=width, details=details)


@pytest.mark.parametrize("release", ["", "0.16.1"])
def test_a_release_that_nobody_knows_leaves_no_gap(tmp_path: Path, release: str) -> None:
    study = finished(tmp_path, trials=1)
    facts = study.read_state()
    context = {**facts["context"], "engine": "megatron"}
    environment = {**facts["environment"], "megatron_core": release}
    ran = {"environments": [{"since_trial": 0, **environment}], "environment": environment}
    study.write_state({**facts, **ran, "context": context, "answer": None})
    place = verdict_of(read_story(study)).title
    assert ("Megatron Core 0.16.1, torch " in place) if release else ("Megatron" not in place)


def test_a_candidate_above_the_limit_is_not_called_ok(tmp_path: Path) -> None:
    def greedy(spec: TrialSpec) -> TrialResult:
        return ok(spec, 50.0 * spec.layout.micro_batch, peak=spec.layout.micro_batch * 6 * GIB)

    text = shown(read_story(finished(tmp_path, greedy, memory_limit="24GiB")))
    assert "over limit" in text


def test_a_failure_in_the_comparison_comes_before_the_measurement(tmp_path: Path) -> None:
    def flaky(spec: TrialSpec) -> TrialResult:
        if spec.identity.role is Role.CONFIRM and spec.layout.micro_batch == 4:
            return fault(spec, Outcome.OOM, "late")
        return ok(spec, 50.0 * spec.layout.micro_batch if spec.layout.micro_batch < 8 else 1.0)

    rows = read_story(finished(tmp_path, flaky)).rows
    assert [row.outcome for row in rows if row.evidence == "late [script]"]


def test_what_an_earlier_job_ran_is_left_out_and_counted(tmp_path: Path) -> None:
    # The earlier configuration was faster: its figures would stand first.
    before = finished(
        tmp_path, lambda s: ok(s, 500.0 + s.layout.micro_batch), engine=tagged("before")
    )
    n_before = len(before.trials())
    after = finished(tmp_path, engine=tagged("after"))
    ours = {t.spec.identity.number for t in after.trials() if t.spec.identity.number >= n_before}

    report = read_story(after)
    assert {trial.spec.identity.number for trial in report.history.trials} == ours
    best = report.best_trial
    assert best is not None
    assert report.rows[0].trial == best
    assert sum(report.history.counts.values()) == len(ours)
    verdict = dict(facts_of(report))
    assert verdict["left out"] == f"{n_before} trials of another job or configuration"
    assert verdict["change"] != "-"
    assert max(row.figure.samples_per_s for row in report.rows if row.figure) < 500
    assert "left out" in render_markdown(report)
    state = state_of(after)
    assert (state.n_trials, state.n_left_out) == (len(ours), n_before)
    assert set(report.frame["trial"]) == ours

    # What ran before counts again once its configuration is back.
    again = finished(tmp_path, engine=tagged("before"))
    assert sum(read_story(again).history.counts.values()) == n_before


def tagged(tag: str) -> Callable[[Job], Engine]:
    return lambda job: ScriptedEngine(job, tag=tag)


def test_the_plan_counts_what_answers_for_the_job(tmp_path: Path) -> None:
    study = finished(tmp_path)
    for changes, n_recorded in (({}, len(study.trials())), ({"seq_len": 128}, 0)):
        job = make(**changes)
        session = session_of(study, job)
        assert plan_search(session, fresh=False).n_recorded == n_recorded


def test_the_plan_says_what_the_engine_lacks(tmp_path: Path) -> None:
    class Lacking(ScriptedEngine):
        def lacks(self) -> str:
            return "a kernel is not installed"

    job = make()
    for engine, said in ((Lacking(job), "a kernel is not installed"), (ScriptedEngine(job), "")):
        session = session_of(Study(tmp_path, "planned"), job, engine=engine)
        plan = plan_search(session, fresh=True)
        assert plan.lacks == said
        text = printed(print_plan, plan, width=200, reasons=False)
        assert ("missing" in text) == bool(said)


def test_a_study_that_was_moved_names_its_own_files(tmp_path: Path) -> None:
    study = finished(tmp_path / "results", objective="pareto")
    (tmp_path / "results").rename(tmp_path / "moved")
    moved = Study(tmp_path / "moved", study.name)
    facts = dict(facts_of(read_story(moved)))
    assert (facts["table"], facts["files"]) == (str(moved.table_file), str(moved.best_folder))
    answer = read_story(moved).answer
    assert str(study.folder) not in json.dumps(answer.to_dict())
    assert answer.best is not None
    assert answer.config_of(answer.best).is_file()

    aside = moved.set_aside()
    answer = read_story(Study(aside.parent, aside.name)).answer
    assert answer.export == aside / "best"


def test_a_search_that_was_cut_short_still_owes_baseline_trials(tmp_path: Path) -> None:
    job = make()
    study = finished(tmp_path)

    def owed(n_trials: int) -> int:
        history = History(study.trials()[:n_trials])
        return make_plan(session_of(study, job), history).baseline_trials

    roles = [trial.spec.identity.role for trial in study.trials()]
    assert [owed(0), owed(1), owed(roles.index(Role.SEARCH) + 1)] == [2, 1, 0]


def test_the_first_run_of_a_command_says_what_a_trial_takes(tmp_path: Path) -> None:
    script = observed()
    job = job_of(script, tmp_path)
    session = Session(
        job=job,
        engine=ScriptEngine(job, CPU),
        place=RecordedPlace(CPU, {}),
        study=Study(tmp_path, "s"),
    )
    plan = make_plan(session, History())
    assert plan.is_measured
    assert plan.trial_s == plan.confirm_s == script.measured.wall_s


def test_the_plan_says_where_ranks_lie_unless_that_is_one_place(tmp_path, monkeypatch) -> None:
    job = make(world=4, global_batch=16)
    lattice = lattice_of(job)
    vars(lattice)["values"] = {"tp": (1, 2, 4), "pp": (1, 2)}
    session = session_of(Study(tmp_path, "s"), job, lattice=lattice)
    monkeypatch.setattr(session.place, "rank_places", lambda _: ("n0", "n0", "n1", "n1"))
    plan = make_plan(session, History())
    text = printed(print_plan, plan, reasons=False)
    for line in (
        "ranks       ranks 0 to 1 on n0; 2 to 3 on n1",
        "groups of tp=2: each in one place",
        "groups of tp=4: over 2 places",
        "groups of pp=2: over 2 places",
    ):
        assert line in text
    monkeypatch.setattr(session.place, "rank_places", lambda _: ("n0",) * 4)
    assert make_plan(session, History()).ranks == ()


def test_a_ratio_that_may_be_noise_is_marked_where_studies_are_listed() -> None:
    def listed(*, is_proven: bool) -> str:
        state = State(
            **{"study": "s", "folder": "results/s", "is_running": False, "n_trials": 3},
            **{"n_reduced": 0, "n_left_out": 0, "counts": {"ok": 3}, "best_samples_per_s": 2.0},
            **{"speedup": 1.98, "is_proven": is_proven, "stop_reason": "time"},
        )
        return printed(print_told, "states", {"states": [state]}, width=100)

    assert "1.98x, not proven" in listed(is_proven=False)
    assert "not proven" not in listed(is_proven=True)


def test_the_budget_caps_the_price(tmp_path: Path) -> None:
    job = make(budget="30s")
    plan = make_plan(session_of(Study(tmp_path, "s"), job), History())
    assert plan.total_s == 30
    text = printed(print_plan, plan, reasons=True)
    assert "30.0 s for all of it; a trial and" in text
    assert f"--budget {plan.enough} has room for them" in " ".join(text.split())
    enough_s = parse_seconds(plan.enough, where="--budget")
    assert plan.least_s <= enough_s < 2 * plan.least_s + 60


def test_a_plan_says_how_many_trials_the_time_has_room_for(tmp_path: Path) -> None:
    plan = make_plan(session_of(Study(tmp_path, "s"), make(budget="150s")), History())
    text = printed(print_plan, plan, width=400, reasons=True)
    assert "for all of it; it has room for about 3 of the 8 trials beside the final" in text
    assert f"comparison; --budget {plan.enough} has room for all" in text
    plan = make_plan(session_of(Study(tmp_path, "s"), make(budget=plan.enough)), History())
    assert "room for" not in printed(print_plan, plan, reasons=True)
    for budget, n_left in ((138, None), (137, 99)):  # minutes, as each trial takes one
        session = session_of(Study(tmp_path, "s"), make(budget=f"{budget}m"))
        figures = {"baseline_trials": 1, "search_trials": 100, "confirm_trials": 37}
        seconds = {"trial_s": 60.0, "confirm_s": 60.0, "used_s": 0.0, "at_once": 1}
        plan = dataclasses.replace(plan, session=session, **figures, **seconds)
        assert (plan.trials_in_time, plan.enough) == (n_left, "138m")


@pytest.mark.parametrize(("limit", "is_near"), [("20.5GiB", True), ("24GiB", False)])
def test_a_best_near_the_limit_says_how_near(tmp_path: Path, limit: str, is_near: bool) -> None:
    study = finished(tmp_path, lambda spec: ok(spec, 50.0, peak=20 * GIB), memory_limit=limit)
    text = dict(facts_of(read_story(study))).get("head room", "")
    assert text.startswith("512 MiB of the 20.5 GiB that are allowed stay free (2.4%)") is is_near
    assert ("--head-room 0.03" in text) is is_near


def test_a_search_without_the_time_for_a_candidate_says_why_and_what_to_do(tmp_path) -> None:
    study = finished(
        tmp_path, lambda spec: dataclasses.replace(ok(spec, 50.0), disturbed="load"), budget="15s"
    )
    verdict = verdict_of(read_story(study))
    assert verdict.headline == "No candidate was tried"
    assert "1 run for the baseline took 10.0 s of the budget of 15.0 s" in verdict.words
    assert "The same command with --budget" in verdict.words
    assert not verdict.next_step, "there is nothing to export"


@pytest.mark.parametrize(
    ("baseline", "said"), [(None, "about 2 for the baseline"), ("mine.json", "1 for the baseline")]
)
def test_the_price_is_about_where_the_baseline_is_looked_for(tmp_path, baseline, said) -> None:
    job = make() if baseline is None else make(baseline=baseline)
    plan = make_plan(session_of(Study(tmp_path, "s"), job), History())
    text = printed(print_plan, plan, width=400, reasons=False)
    assert "at most 8 for the search (--trials), and on top of these" in text
    assert f"{said}, {plan.confirm_trials} for the final comparison" in text
    assert f"{plan.trials}: at most" in text
    assert ("price       about" in text) is (baseline is None)


@pytest.mark.parametrize(
    ("origin", "said"),
    [(Origin.REPLAYED, "a table answers"), (Origin.SIMULATED, "the cost model answers")],
)
def test_where_nothing_runs_nothing_is_charged(tmp_path: Path, origin: Origin, said: str) -> None:
    job = dataclasses.replace(make(), price_per_hour=2.0)
    study = Study(tmp_path, "s")
    session = session_of(study, job)
    session.place.origin = origin
    plan = make_plan(session, History())
    assert (plan.total_s, plan.accelerator_hours, plan.price) == (0, 0, 0)
    text = printed(print_plan, plan, width=400, reasons=False)
    assert f"none: nothing runs, {said}\ntrials      about " in text
    assert "accelerator-hours" not in text
    assert ("final comparison" in text) is (origin is Origin.SIMULATED)


def test_an_exhausted_lattice_is_not_charged_for(tmp_path: Path) -> None:
    job = make(trials=1000)
    plan = make_plan(session_of(Study(tmp_path, "s"), job), History())
    assert plan.search_trials == len(plan.session.lattice.candidates)


def test_how_much_runs_deviate_is_said_once_something_ran_again(tmp_path: Path) -> None:
    def behave(spec: TrialSpec) -> TrialResult:
        result = realistic(spec)
        if spec.identity.role is not Role.CONFIRM or not result.samples_per_s:
            return result
        factor = 1.3 if (spec.identity.confirm_round or 0) % 2 else 1.0
        return ok(spec, result.samples_per_s * factor, peak=result.peak_memory_bytes or 1)

    def of_one_run(spec: TrialSpec) -> TrialResult:
        return fault(spec, Outcome.OOM) if spec.identity.role is Role.CONFIRM else realistic(spec)

    calm = dict(facts_of(read_story(finished(tmp_path / "calm"))))["noise"]
    loud = dict(facts_of(read_story(finished(tmp_path / "loud", behave))))["noise"]
    assert [float(text.partition("%")[0].split()[-1]) > 5 for text in (calm, loud)] == [
        False,
        True,
    ]
    alone = read_story(finished(tmp_path / "alone", of_one_run))
    assert "noise" not in dict(facts_of(alone))


def test_a_disturbed_trial_is_marked_with_its_evidence_and_its_repeat(tmp_path: Path) -> None:
    hit: list[int] = []

    def is_hit(spec: TrialSpec) -> bool:
        runs = realistic(spec).samples_per_s is not None
        if spec.identity.role is Role.SEARCH and runs and len(hit) < 2:
            hit.append(spec.identity.number)
        return spec.identity.number in hit

    report = read_story(finished(tmp_path, disturbing(is_hit)))
    said = [text for name, text in facts_of(report) if name == "disturbed"]
    assert said == [
        f"trial {hit[0]}: {LOAD}; trial {hit[1]} repeats it and counts instead",
        f"trial {hit[1]}: {LOAD}",
    ]
    assert LOAD in shown(report).replace("\n", " ").replace("            ", "")
    frame = load_table(report.folder).set_index("trial")
    assert frame.loc[hit, "disturbed"].tolist() == [LOAD, LOAD]
    assert frame.loc[hit[1], "repeat_of"] == hit[0]
    assert [t["evidence"] for t in trials_of(report) if t["number"] == hit[1]] == [
        f"disturbed: {LOAD}"
    ]


def test_a_figure_says_how_many_of_its_runs_were_disturbed(tmp_path: Path) -> None:
    in_round_1 = disturbing(lambda spec: spec.identity.confirm_round == 1, slower=1.0)
    report = read_story(finished(tmp_path, in_round_1))
    assert report.answer.best.n_disturbed == 1
    facts = dict(facts_of(report))
    assert "3 runs, 1 disturbed" in facts["best"]
    assert "careful" not in facts, "most runs were not disturbed"


def test_what_was_repeated_stays_in_its_own_report(tmp_path: Path) -> None:
    """The answer and the rows name one trial of a candidate: the one that counts."""
    at_first = disturbing(
        lambda s: s.provenance.repeat_of is None and s.identity.role is not Role.CONFIRM
    )
    report = read_story(finished(tmp_path, at_first))
    facts = dict(facts_of(report))
    assert facts["change"] != "-"
    assert "damaged" not in facts
    assert report.answer is not None
    named = (("best", report.best_row), ("baseline", report.baseline_row))
    for (name, row), number in zip(named, (report.best_trial, report.baseline_trial), strict=True):
        assert row.trial == number
        assert report.outcome_of(row) in ("best", name)
    # An answer that was written before names the first one: it is found all the same.
    first = {
        t.spec.identity.candidate_hash: t.spec.identity.number
        for t in reversed(report.history.explored.trials)
    }
    for _, row in named:
        assert row.trial != first[row.candidate.hash]
        assert report.row_of(first[row.candidate.hash]) == row


def test_a_repeat_that_measured_nothing_does_not_count(tmp_path: Path) -> None:
    hit: list[int] = []

    def behave(spec: TrialSpec) -> TrialResult:
        result = realistic(spec)
        if spec.provenance.repeat_of is not None:
            return fault(spec, Outcome.COMM)
        if spec.identity.role is Role.SEARCH and result.samples_per_s and not hit:
            hit.append(spec.identity.number)
            return dataclasses.replace(result, disturbed="load")
        return result

    report = read_story(finished(tmp_path, behave))
    assert any(t.spec.provenance.repeat_of == hit[0] for t in report.history.trials)
    said = [text for name, text in facts_of(report) if name == "disturbed"]
    assert said[0] == f"trial {hit[0]}: load; it was not repeated"
    # What the platform ended has no row of its own: its candidate's has the other run.
    ended = next(t for t in report.history.trials if t.spec.provenance.repeat_of == hit[0])
    number = ended.spec.identity.number
    why = "the platform ended it: comm: said so"
    assert said[1] == f"trial {number}: {why}; trial {number + 1} repeats it"


def test_every_form_names_the_same_interval(tmp_path: Path) -> None:
    """That of a re-run, from one place; the table keeps the interval of the steps beside it."""
    report = read_story(finished(tmp_path))
    frame = load_table(report.folder).set_index("trial")
    page = cells_of(report, "interval")
    alone = [row for row in report.rows if row.figure is not None and row.figure.n_runs == 1]
    assert alone
    for row in alone:
        cells = frame.loc[row.trial]
        assert cells["samples_per_s_low"] == pytest.approx(row.figure.samples_per_s_low)
        assert cells["samples_per_s_high"] == pytest.approx(row.figure.samples_per_s_high)
        assert page[row.trial] == format_interval(
            row.figure.samples_per_s_low, row.figure.samples_per_s_high
        )
        assert cells["step_time_high_s"] < cells["global_batch"] / cells["samples_per_s_low"]


def test_the_plan_says_what_the_guard_costs(tmp_path: Path) -> None:
    job = make()
    study = finished(tmp_path)
    trials = study.trials()

    def priced(n_trials: int, **changes: object) -> Plan:
        changed, history = make(**changes), History(trials[:n_trials])
        return make_plan(session_of(study, changed, lattice=lattice_of(job)), history)

    def guard_line(plan: Plan) -> str:
        text = printed(print_plan, plan, width=600, reasons=False)
        return " ".join(line for line in text.splitlines() if line.startswith("guard"))

    new = priced(0)
    assert new.guard_s == 3 * 16.0, "8 of the 20 steps that take 40 s, in 3 runs"
    assert "up to 48.0 s more in the final comparison" in guard_line(new)

    measured = [t.result.step_time_s for t in trials if t.result and t.result.step_time_s]
    n_first = next(n for n, t in enumerate(trials, 1) if t.result and t.result.step_time_s)
    begun, step_s = priced(n_first), measured[0]
    assert begun.guard_s == pytest.approx(3 * 8 * step_s)
    longer_s = begun.confirm_s - priced(n_first, guard_steps=0).confirm_s
    assert longer_s * begun.confirm_trials == pytest.approx(2 * 8 * step_s)

    assert guard_line(priced(0, guard_steps=0)) == ""
    assert guard_line(priced(0, guard_steps=12)).endswith("the first 12 losses are compared")
    assert guard_line(priced(len(trials))) == "", "no comparison is left to run"


def test_after_an_upgrade_the_releases_are_those_of_the_figures(tmp_path: Path) -> None:
    study = finished(tmp_path)
    state = study.read_state()
    newer = {**state["environment"], "torch_version": "9.9.9"}
    last = study.trials()[-1].spec.identity.number
    (older,) = state["environments"]
    more = [older, {"since_trial": last + 1, **newer}]
    study.write_state({**state, "environment": newer, "environments": more})
    said = shown(read_story(study))
    assert f"torch {older['torch_version']}" in said
    assert "9.9.9" not in said
    more[1]["since_trial"] = last
    study.write_state({**study.read_state(), "environments": more})
    facts = dict(facts_of(read_story(study)))
    before = older["torch_version"]
    assert facts["upgraded"] == f"from trial {last} on: torch 9.9.9 (before: {before})"
