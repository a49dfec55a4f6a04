"""What is said when a study's best is handed out."""

from pathlib import Path

import pytest

from autotune.app.exports import export_study, find_chosen
from autotune.export.readme import with_claim
from autotune.record.study import Study
from tests.report.test_terminal import exportable


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return exportable(tmp_path / "results")


def unproven(study: Study, *, ratio: float | None) -> tuple[int, int]:
    """An answer whose gain is not proven, such as one cut short; trials of best and baseline."""
    state = study.read_state()
    state["answer"]["speedup"] = ratio and dict(ratio=ratio, low=ratio * 0.9, high=ratio * 1.1)
    study.write_state(state)
    return state["answer"]["best"]["trial"], state["answer"]["baseline"]["trial"]


def title(folder: Path) -> str:
    return (folder / "README.md").read_text().partition("\n")[0]


@pytest.mark.parametrize("ratio", [None, 0.77, 1.05], ids=["never compared", "slower", "close"])
def test_without_a_proven_gain_the_baseline_is_handed_out(study, tmp_path, ratio):
    said: list[str] = []
    export_study(study, tmp_path / "proven", note=said.append)
    assert said.pop().startswith("The best, ")
    assert "not proven" not in title(tmp_path / "proven")
    best, baseline = unproven(study, ratio=ratio)
    chosen = find_chosen(study, trial=None, note=said.append)
    assert chosen.trial.spec.identity.number == baseline
    assert "no gain is proven" in said[0]
    assert f"--trial {best}" in said[0]
    export_study(study, tmp_path / "unproven")
    assert title(tmp_path / "unproven").startswith("# The baseline, since no gain is proven: ")


def test_whoever_names_a_trial_gets_it_with_the_word_that_it_is_not_proven(study, tmp_path):
    best, _ = unproven(study, ratio=1.05)
    said: list[str] = []
    export_study(study, tmp_path / "named", trial=best, note=said.append)
    assert said == [f"Trial {best}, not proven to be better than the baseline"]
    assert title(tmp_path / "named").startswith(f"# {said[0]}: ")


def test_a_title_that_a_template_of_the_user_s_writes_otherwise_gets_one() -> None:
    assert with_claim("notes\n", "The baseline") == "# The baseline\n\nnotes\n"
