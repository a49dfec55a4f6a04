"""What a page says, read as text; how it looks is for test_pages_in_browser."""

import dataclasses
import html
import itertools
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from autotune.app.pages import PageWriter, write_page
from autotune.app.studies import state_of
from autotune.base.errors import NothingFeasibleError, StudyError
from autotune.base.templates import Templates
from autotune.base.units import format_rate
from autotune.contract import CONFIG_DIR, Outcome, Phase, Role, TrialResult, TrialSpec
from autotune.record.guard import Convergence, GuardVerdict
from autotune.record.study import Study
from autotune.record.table import load_table
from autotune.report.page import charts
from autotune.report.page import tables as page_tables
from autotune.report.page.page import render_page
from autotune.report.page.tables import trials
from autotune.report.story import read_story
from autotune.report.terminal.study import render_markdown
from autotune.report.verdict import details_of, verdict_of
from autotune.search.answer import failed_answer
from autotune.search.base import Stage
from tests.report import samples
from tests.report.test_terminal import finished
from tests.report.told import cells_of, facts_of
from tests.report.wide import EVIL
from tests.search.scripted import GIB, Behaviour, Notebook, fault, ok, realistic

REPOSITORY = Path(__file__).parents[2]


def rendered(study: Study, **options: Any) -> str:
    return render_page(read_story(study, **options), Templates())


def charts_in(page: str) -> set[str]:
    return set(re.findall(r'id="chart-(\w+)"', page))


def details_in(page: str) -> dict[str, Any]:
    """What the rows of the trials open."""
    found = re.search(r'<script type="application/json" id="details">(.*?)</script>', page, re.S)
    opened: dict[str, Any] = json.loads(found[1])
    return opened


def smaller_is_slower(spec: TrialSpec) -> TrialResult:
    size = spec.layout.micro_batch
    return ok(spec, {1: 50.0, 2: 60.0, 4: 87.0, 8: 100.0}[size], peak=(size + 4) * GIB)


def test_it_is_one_file_that_names_what_the_terminal_names(wide: Study) -> None:
    page = rendered(wide)
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", page.replace(EVIL, ""))
    for _, text in facts_of(read_story(wide)):
        assert text in html.unescape(page)
    assert "<body data-refresh-s" not in page


def test_nothing_is_left_unescaped(wide: Study) -> None:
    page = rendered(wide)
    assert EVIL not in page
    assert "&lt;/script&gt;&lt;script&gt;window.evil" in page


def test_secrets_of_a_configuration_are_not_shown(tmp_path: Path) -> None:
    study = finished(tmp_path)
    for trial in study.trials():
        config = {"comet": {"api_key": f"s3cret {trial.spec.identity.number}", "project": "mine"}}
        file = trial.folder / CONFIG_DIR / "ds_config.json"
        file.write_text(json.dumps(config), encoding="utf-8")
    page = rendered(study)
    assert "api_key" in page
    assert "s3cret" not in page


def test_nothing_goes_into_a_page_as_it_is() -> None:
    raw = [
        found
        for path in (REPOSITORY / "templates" / "report").glob("*.j2")
        for found in re.findall(r"{{([^}]*\|\s*text)\s*}}", path.read_text(encoding="utf-8"))
    ]
    assert raw == []


def test_the_charts_hold_the_figures_of_the_table(wide: Study) -> None:
    report, frame = read_story(wide), load_table(wide.folder)
    answer, page = report.answer, rendered(wide)
    bars = charts.comparison([("best", "best", answer.best)])
    assert bars.bars[0].standing == answer.best
    assert f'<div class="bar-value">{format_rate(answer.best.samples_per_s)} samples/s' in page
    drawn = charts.history(report)
    panel = drawn.panels[0]
    assert {mark.trial for mark in panel.marks} == set(frame["trial"])
    rates = frame.set_index("trial")["samples_per_s"]
    for mark in panel.marks:
        if mark.tone != "failed":
            assert mark.y == pytest.approx(rates[mark.trial])
    assert drawn.keys[-1].text == "best so far"
    baseline, tones = answer.baseline.candidate.hash, {m.trial: m.tone for m in panel.marks}
    compared = [t for t in report.history.trials if t.role is Role.CONFIRM]
    for trial in compared:
        assert (tones[trial.number] == "baseline") is (trial.candidate_hash == baseline)


def test_losses_that_cannot_be_compared_are_not_drawn_and_the_page_says_why(tmp_path) -> None:
    page = rendered(finished(tmp_path))
    assert "losses" not in charts_in(page)
    assert "<h2>Does it still train?</h2>" in page
    assert "not comparable: the losses of 0 steps are known, 5 are needed" in page
    off = rendered(finished(tmp_path / "off", guard_steps=0))
    assert "Does it still train?" not in off


def test_the_large_print_claims_no_more_than_the_interval(wide: Study, tmp_path: Path) -> None:
    def headline(study: Study) -> str:
        found = re.search(r'<p class="headline [a-z]*">(.*?)</p>', rendered(study))
        return found[1]

    assert headline(wide).endswith("x the baseline")
    assert headline(finished(tmp_path / "same", lambda spec: ok(spec, 100.0))) in (
        "No proven gain",
        "Nothing beat the baseline",
    )


def test_where_only_the_baseline_ran_nothing_is_said_to_be_no_better(tmp_path: Path) -> None:
    study = finished(tmp_path, lambda spec: ok(spec, 12.5 * spec.layout.micro_batch), trials=1)
    baseline = study.trials()[0].spec.identity.candidate_hash
    for trial in study.trials():
        if trial.spec.identity.candidate_hash != baseline:
            shutil.rmtree(trial.folder)
    page = rendered(study)
    assert '<p class="headline ">Only the baseline ran within the limits</p>' in page
    words = "Trial 0: 100 samples/s. The search ended: the number of trials is reached."
    assert f'<p class="words">{words}</p>' in page
    assert "beat the baseline" not in page
    assert '<span class="tag t-best">baseline</span>' in page
    assert "1 candidate; nothing is faster" in page
    # Of an interrupted search whose only candidate was cancelled.
    for trial in study.trials():
        if trial.spec.identity.role is Role.SEARCH:
            study.write_result(trial.folder, fault(trial.spec, Outcome.CANCELLED, "Ctrl-C"))
    state = study.read_state()
    study.write_state({**state, "answer": {**state["answer"], "interrupted": True}})
    assert '<p class="headline ">No candidate was tried</p>' in rendered(study)


def test_where_memory_was_asked_for_the_large_print_says_memory(tmp_path: Path) -> None:
    study = finished(
        tmp_path, smaller_is_slower, objective="peak_memory", objective_floor=0.8, trials=40
    )
    page = rendered(study)
    assert '<p class="headline ">Peak 8 GiB, the baseline 12 GiB</p>' in page
    assert "</svg>fastest so far<" in page, "the smallest is the best"
    assert "best so far" not in page
    assert "is 0.87x the baseline (95% interval 0.87 to 0.87): slower." in page
    facts = dict(facts_of(read_story(study)))
    assert facts["verdict"].startswith("Peak 8 GiB, the baseline 12 GiB. ")
    assert "ties" not in facts, "candidates that are as fast need not be as small"


def test_cpu_ranks_and_simulated_devices_have_a_banner(wide: Study, tmp_path: Path) -> None:
    assert re.search(r'<p class="banner" role="note">CPU RANKS: ', rendered(wide))
    study = finished(tmp_path)
    study.write_state({**study.read_state(), "origin": "simulated"})
    page = rendered(study)
    assert re.search(r'<p class="banner" role="note">SIMULATED: ', page)
    assert re.search(r'<p class="headline[^>]*>Simulated: [\d.]+x the baseline', page)
    assert "autotune export" not in page, "what nobody measured is not handed out"


def lucky(spec: TrialSpec) -> TrialResult:
    """Single runs are faster than what the comparison finds."""
    result = realistic(spec)
    if spec.identity.role is not Role.CONFIRM or result.samples_per_s is None:
        return result
    return ok(spec, 0.6 * result.samples_per_s, peak=result.peak_memory_bytes or 0)


def test_the_order_of_the_trials_is_the_answer_s(tmp_path: Path) -> None:
    """The best leads although single runs of others were faster; runs of one stand together."""
    report = read_story(finished(tmp_path, lucky, trials=20))
    answer = report.answer
    rows = trials(report)
    assert {row["number"] for row in rows} == {
        t.spec.identity.number for t in report.history.trials
    }
    assert rows[0]["number"] == answer.best.trial
    rests_on = cells_of(report, "rests")
    assert rests_on[answer.best.trial] == f"{answer.best.n_runs} runs compared"
    assert rows[0]["figure"].samples_per_s == answer.best.samples_per_s
    heads = [row for row in rows if not row["is_again"]]
    assert len(heads) == len(report.rows)
    ranked = [row["row"] for row in heads]
    assert max(row.rate for row in ranked) > ranked[0].rate
    compared = [row.compared is not None for row in ranked]
    assert compared == sorted(compared, reverse=True)
    for is_compared in (True, False):
        figures = [row.rate for row in ranked[1:] if (row.compared is not None) is is_compared]
        assert figures == sorted(figures, reverse=True)
    assert {rests_on[row.trial] for row in ranked if not row.compared} == {
        *("1 run, not compared", "")
    }
    groups = [key for key, _ in itertools.groupby(rows, key=lambda row: row["settings"])]
    assert len(groups) == len(set(groups))
    assert not any(row["figure"] for row in rows if row["is_again"])
    assert "this run" in rendered(finished(tmp_path / "again", lucky, trials=20))


def test_the_first_screen_says_what_was_disturbed_what_ties_and_what_the_guard_says(tmp_path):
    def noisy(spec: TrialSpec) -> TrialResult:
        result = realistic(spec)
        if result.samples_per_s is None:
            return result
        jitter = 1 + (spec.identity.number * 37 % 21 - 10) / 100
        return dataclasses.replace(
            ok(spec, jitter * result.samples_per_s, peak=result.peak_memory_bytes or 0),
            disturbed="other processes took 40% of core 0",
            losses=[7.0 - 0.02 * step for step in range(20)],
        )

    report = read_story(finished(tmp_path, noisy, trials=20))
    answer = report.answer
    assert answer.ties
    said = dict(verdict_of(report).doubts)
    n = sum(bool(t.result and t.result.disturbed) for t in report.history.trials)
    assert said["disturbed"].startswith(f"{n} of {n} trials, and ")
    assert "runs of the best and the baseline" in said["disturbed"]
    careful = dict(verdict_of(report).facts)["careful"]
    assert re.match(r"other work disturbed (\d+) of the \1 runs of the best and the bas", careful)
    assert "Measure again when that is quiet" in careful
    assert f"{answer.ties[0].trial}" in said["ties"]
    assert "no proven difference from the best" in said["ties"]
    assert said["guard"].startswith("pass: losses are within ")
    assert all(len(text) < 120 and "(" not in text for text in said.values())
    page = html.unescape(render_page(report, Templates()))
    for name in ("disturbed", "ties", "guard"):
        assert f"<div><dt>{name}</dt> <dd>{said[name]}</dd></div>" in page


def test_a_row_opens_what_is_known_of_its_trial_and_quotes_no_log(tmp_path: Path) -> None:
    study = finished(tmp_path)
    trial = study.trials()[0]
    (trial.folder / "stderr.log").write_text("the end of the log", encoding="utf-8")
    page = rendered(study)
    one = details_in(page)[str(trial.spec.identity.number)]
    assert one["folder"] == str(trial.folder)
    assert "the end of the log" not in page


def test_a_long_study_s_page_stays_small(wide: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    page = rendered(wide)
    assert len(page) <= 400_000
    assert "the table of the study has all" not in page
    n_trials, n_marks = len(wide.trials()), page.count('class="mark ')
    monkeypatch.setattr("autotune.report.page.tables.MOST_ROWS", 4)
    monkeypatch.setattr("autotune.report.page.shapes.MOST_MARKS", 6)
    page = rendered(wide)
    assert f"4 of {n_trials} trials; the table of the study has all" in page
    assert len(details_in(page)) == 4
    assert page.count('class="mark ') < n_marks
    monkeypatch.undo()
    monkeypatch.setattr("autotune.report.page.tables._MOST_DETAILS", 5_000)
    opened = details_in(rendered(wide))
    assert 0 < sum(bool(one["config"]) for one in opened.values()) < len(opened)


def without_anything(folder: Path, behave: Behaviour) -> Study:
    """A study whose search found nothing that runs within the limits."""
    with pytest.raises(NothingFeasibleError) as found:
        finished(folder, behave)
    study = Study(folder, "scripted")
    study.update_state(answer=failed_answer(found.value, study).to_dict())
    return study


def test_where_nothing_fits_the_page_says_how_far_it_is_off(tmp_path: Path) -> None:
    page = rendered(without_anything(tmp_path, lambda spec: ok(spec, 10.0, peak=90 * GIB)))
    headline = re.search(r'<p class="headline bad">(.*?)</p>', page)
    assert headline[1] == "Nothing fits: the smallest candidate needs 90 GiB of 24 GiB"
    assert "<li>optimizer offload to the host (--space zero_offload)</li>" in page


def test_where_every_trial_runs_out_of_memory_no_chart_is_empty(tmp_path: Path) -> None:
    def too_large(spec: TrialSpec) -> TrialResult:
        said = f"out of memory, {spec.layout.micro_batch}e+9 B"
        return fault(spec, Outcome.OOM, said)

    study = without_anything(tmp_path, too_large)
    groups = page_tables.evidence(read_story(study))
    assert len(groups) == 1, "lines that differ in figures alone are one group"
    assert groups[0]["n"] == str(len(study.trials()))
    drawn = charts_in(rendered(study))
    assert drawn.isdisjoint({"history", "memory", "comparison"})


def test_a_front_has_picks_and_its_best_is_called_the_knee(tmp_path: Path) -> None:
    study = finished(tmp_path, smaller_is_slower, objective="pareto", trials=40)
    page = rendered(study)
    answer = read_story(study).answer
    assert answer.front is not None
    assert '<p class="headline ">Knee: ' in page
    assert page.count('href="#trial=') == len(answer.front) > 1
    assert ">knee</span>" in page
    assert ">best</span>" not in page


def test_a_running_search_loads_its_page_again(wide: Study) -> None:
    running = samples.snapshot()
    page = rendered(wide, running=running)
    assert '<body data-refresh-s="10">' in page
    assert "running: search, 7 of 20 trials" in page
    assert "60.0 samples/s" in page
    race = dataclasses.replace(running, stage=Stage.CONFIRM, comparison=samples.comparison())
    page = rendered(wide, running=race)
    assert "55.0 samples/s so far" in page
    assert "Final comparison: 2 rounds, trial 5 leads: 1.10x the baseline (1.02 to 1.19)." in page
    assert "Others: trial 7: 54.0 samples/s (2 runs)." in page
    assert "60.0 samples/s" not in page, "the search's own trial of the best"
    done = dataclasses.replace(running, stage=Stage.DONE)
    assert "<body data-refresh-s" not in rendered(wide, running=done)


def test_damaged_trials_and_a_study_without_any_still_make_a_page(tmp_path: Path) -> None:
    study = finished(tmp_path)
    recorded = study.trials()
    (recorded[0].folder / "spec.json").write_text("{", encoding="utf-8")
    (recorded[1].folder / "result.json").write_text("{", encoding="utf-8")
    assert "Trials that cannot be read" in rendered(study)
    for trial in recorded:
        (trial.folder / "spec.json").unlink()
    study.write_state({**study.read_state(), "answer": None})
    empty = rendered(study)
    assert "The search was cut short before a trial had a figure." in empty
    assert "resumes it" in empty
    assert "No trial is recorded." in empty
    assert 'id="trials"' not in empty


def test_of_a_killed_search_no_drifting_candidate_is_praised(tmp_path: Path) -> None:
    study = finished(tmp_path)
    report = dataclasses.replace(read_story(study), answer=None)
    fastest, second = [row for row in report.rows if row.figure and report.fits(row)][:2]
    drifts = GuardVerdict(verdict=Convergence.FAIL, why="step 3")
    guarded = dataclasses.replace(report, guards={fastest.candidate.hash: drifts})
    said = verdict_of(guarded)
    assert f"{format_rate(second.rate)} samples/s so far" in said.headline
    n_sound = len(report.rows) - 1
    words = f"Trial {second.trial} is the fastest of those whose losses do not drift, {n_sound} so"
    assert said.words.startswith(words)
    alone = verdict_of(dataclasses.replace(report, rows=[fastest]))
    assert alone.words.startswith(f"Trial {fastest.trial} ran the only candidate so far.")


def test_a_search_that_was_interrupted_says_so(tmp_path: Path) -> None:
    study = finished(tmp_path)
    answer = read_story(study).answer
    assert answer is not None
    cut = dataclasses.replace(answer, speedup=None, interrupted=True)
    study.write_state({**study.read_state(), "answer": cut.to_dict()})
    assert "no gain is claimed. The search was interrupted; the same" in rendered(study)
    told = dict(facts_of(read_story(study)))
    assert told["stopped"].endswith(": the same command again goes on")
    over = dataclasses.replace(cut, interrupted=False, stop_reason="time is up")
    study.write_state({**study.read_state(), "answer": over.to_dict()})
    assert "no gain is claimed. The search ended: time is up." in rendered(study)
    study.write_state({**study.read_state(), "no_comparison": "answers <repeat> themselves"})
    said = "There was no final comparison: answers &lt;repeat&gt; themselves."
    assert f"no gain is claimed. {said}" in rendered(study)
    both = dataclasses.replace(over, best=over.baseline)
    study.write_state({**study.read_state(), "answer": both.to_dict()})
    assert said in rendered(study)


def test_the_page_of_a_user_s_command_names_it(tmp_path: Path) -> None:
    study = finished(tmp_path)
    for trial in study.trials():
        file = trial.folder / "spec.json"
        spec = json.loads(file.read_text(encoding="utf-8"))
        spec["workload"]["command"] = ["torchrun", "a b.py", "--api_key=sk-abcdefgh12345678ijkl"]
        file.write_text(json.dumps(spec), encoding="utf-8")
    page = html.unescape(rendered(study))
    assert "<code>torchrun ... --api_key</code>" in page
    assert "sk-abcdefgh" not in page


def test_the_writer_keeps_the_page_up_and_hands_everything_on(tmp_path: Path) -> None:
    study = finished(tmp_path)
    notebook = Notebook()
    writer = PageWriter(study, notebook)
    snapshot = samples.snapshot()
    page = study.page_file
    writer.on_snapshot(snapshot)
    assert "<body data-refresh-s" in page.read_text(encoding="utf-8")
    writer.on_snapshot(snapshot)
    writer.on_note("a note")
    told = f"{page} shows this search and reloads itself"
    assert (len(notebook.snapshots), notebook.notes) == (2, [told, "a note"])
    writer.close()
    assert "<body data-refresh-s" not in page.read_text(encoding="utf-8")
    assert not list(study.folder.glob(f".{page.name}*"))


def test_what_runs_now_is_put_into_the_page_that_is_there(tmp_path, monkeypatch) -> None:
    study, snapshot = finished(tmp_path), samples.snapshot()
    writer = PageWriter(study, Notebook())
    writer.on_snapshot(dataclasses.replace(snapshot, running=()))
    before = study.page_file.read_text(encoding="utf-8")
    monkeypatch.setattr("autotune.app.pages.write_page", None)  # it is not drawn again
    writer.on_snapshot(snapshot)
    after = study.page_file.read_text(encoding="utf-8")
    first, _, rest = after.partition("<!-- now -->")
    now, _, last = rest.partition("<!-- end of now -->")
    assert (before.startswith(first), before.endswith(last)) == (True, True)
    assert 'trial 9: <span class="clock">measured 4.1 s, about 6.4 s left</span>' in now
    assert re.search(r'data-since="\d+\.\d" data-usual="10.5"', now)
    assert re.search(r"about 2 min 10 s left, until \d\d:\d\d UTC", now)
    assert "<!-- now -->" not in before.partition("<!-- end of now -->")[2]


def test_a_page_that_cannot_be_written_is_said_once_and_ends_nothing(tmp_path: Path) -> None:
    study = finished(tmp_path)
    study.page_file.mkdir()
    notebook = Notebook()
    writer = PageWriter(study, notebook)
    writer.on_snapshot(samples.snapshot())
    writer.close()
    assert len(notebook.notes) == 1
    assert "report.html is not kept up" in notebook.notes[0]


def test_a_study_that_was_moved_away_does_not_begin_again_in_its_old_place(tmp_path: Path) -> None:
    study, notebook = finished(tmp_path), Notebook()
    writer = PageWriter(study, notebook)
    study.folder.rename(tmp_path / "moved")
    writer.on_snapshot(samples.snapshot())
    assert not study.folder.exists()
    assert "report.html is not kept up" in notebook.notes[0]


def test_a_search_that_was_interrupted_before_it_began_has_no_page(tmp_path: Path) -> None:
    study, notebook = Study(tmp_path, "early"), Notebook()
    study.lock()
    PageWriter(study, notebook).close()
    assert (notebook.notes, study.page_file.exists()) == ([], False)


def test_a_user_s_template_comes_first(tmp_path: Path) -> None:
    study = finished(tmp_path / "results")
    own = tmp_path / "own" / "report"
    own.mkdir(parents=True)
    (own / "study.html.j2").write_text("<p>{{ title | html }}</p>", encoding="utf-8")
    study.job_file.write_text(f"templates: {own.parent}\n", encoding="utf-8")
    out = write_page(study, tmp_path / "mine.html")
    assert out.read_text(encoding="utf-8").splitlines()[1:] == ["<p>scripted</p>"]
    assert write_page(study, out) == out, "its own page it replaces"


def test_a_file_that_is_no_page_of_ours_is_kept(tmp_path: Path) -> None:
    study, out, pipe = finished(tmp_path / "results"), tmp_path / "mine.html", tmp_path / "pipe"
    os.mkfifo(pipe)
    for theirs in ("notes of mine", "<!doctype html><p>a page of mine</p>"):
        out.write_text(theirs)
        for path in (out, pipe):
            with pytest.raises(StudyError, match=f"{path.name}: is there and was not written"):
                write_page(study, path)
        assert out.read_text() == theirs
    assert pipe.is_fifo()


def test_a_substitute_baseline_is_said_wherever_its_gain_is(tmp_path: Path) -> None:
    """The page's large print, the facts of terminal and Markdown, and the list of studies."""

    def behave(spec: TrialSpec) -> TrialResult:
        wanted = spec.identity.knobs["zero.stage"] == 0 and spec.layout.micro_batch == 8
        return fault(spec, Outcome.CRASH, "a cable") if wanted else realistic(spec)

    study = finished(tmp_path, behave, memory_limit="60GiB")
    report = read_story(study)
    facts = dict(facts_of(report))
    (asked_for,) = (text for name, text in facts_of(report) if name == "passed over")
    assert "a cable" in asked_for
    assert "micro_batch=8" in asked_for
    assert "a substitute baseline" in facts["verdict"]
    assert "substitute" in facts
    page = rendered(study)
    assert re.search(r'class="headline[^>]*>[^<]*substitute baseline', page)
    assert "a cable" in page
    markdown = render_markdown(report)
    assert "substitute baseline" in markdown
    state = state_of(study)
    assert state.substitute_baseline
    assert state.speedup is not None


def test_they_say_what_the_page_shows(wide: Study) -> None:
    report = read_story(wide)
    facts = details_of(report)
    by_knob = [text for name, text in facts if name == "by knob"]
    assert [text.split(":")[0] for text in by_knob] == ["zero.stage 0 -> 1", "micro_batch 2 -> 4"]
    assert "memory -6 GiB" in by_knob[0]
    said = dict(facts)
    assert all(str(row.trial) in said["front"] for row in report.front)
    assert all(phase.value in said["time"] for phase in Phase)


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    # No phases in this record.
    report = read_story(finished(tmp_path))
    assert {name for name, _ in details_of(report)} <= {"by knob", "front"}
