"""One job on two kinds of accelerator: which is best."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.app.pages import compare_studies, write_comparison
from autotune.base.errors import JobError
from autotune.base.templates import tell
from autotune.job.price import price_for
from autotune.record.study import Study
from autotune.record.table import write_table
from autotune.report.compare.comparison import KindFigures, best_kinds, leads_of
from autotune.report.terminal.tables import print_parts
from tests.report.test_compare import JOB, slower
from tests.report.test_terminal import finished
from tests.report.told import printed
from tests.report.wide import varied
from tests.search.scripted import ENVIRONMENT


def kind(run: str, rate: float, *, world: int = 8, **more: object) -> KindFigures:
    """An accelerator of which a study measured so many samples/s, 5% to either side."""
    values: dict[str, object] = {"device_name": f"device {run}", "price_per_hour": None, **more}
    return KindFigures(
        run=run,
        world=world,
        samples_per_s=rate,
        samples_per_s_low=0.95 * rate,
        samples_per_s_high=1.05 * rate,
        **values,  # type: ignore[arg-type]  # each has its field's type
    )


def described(kinds: list[KindFigures]) -> dict[str, str]:
    """What is told of some kinds."""
    comparison = SimpleNamespace(kinds=kinds)
    return dict(tell("kinds", {"comparison": comparison, "leads": leads_of(kinds)}))


@pytest.mark.cases("kinds", "best", "told")
def test_the_best_kind_is_named_by_speed_and_by_money(kinds, best, told) -> None:
    found = [kind(**one) for one in kinds]
    assert best_kinds(found) == dict(zip(("speed", "money"), best, strict=True))
    said = described(found)
    assert {name: said.get(name) for name in told} == told


def study_on(folder: Path, device_name: str, price: float) -> Study:
    study = finished(folder, slower if "A100" in device_name else varied, trials=12)
    environment = dataclasses.asdict(dataclasses.replace(ENVIRONMENT, device_name=device_name))
    facts = {"environment": environment, "environments": [{**environment, "since_trial": 0}]}
    study.write_state({**study.read_state(), **facts})
    write_table(study)
    study.job_file.write_text(f"{JOB}price: {price}\n", encoding="utf-8")
    return study


def test_studies_of_two_kinds_are_compared_by_accelerator_and_by_money(tmp_path: Path) -> None:
    studies = [study_on(tmp_path / "a", "H100", 2.5), study_on(tmp_path / "b", "A100", 0.5)]
    comparison = compare_studies([str(study.folder) for study in studies], tmp_path)
    best = [story.best for story in comparison.stories.values()]
    data = json.loads(json.dumps(comparison.as_dict(), allow_nan=False))
    assert [each["device_name"] for each in data["kinds"]] == ["H100", "A100"]
    for each, figure, price in zip(data["kinds"], best, (2.5, 0.5), strict=True):
        per_accelerator = figure.samples_per_s / 2
        assert each["samples_per_s_per_accelerator"] == pytest.approx(per_accelerator)
        assert each["samples_per_money"] == pytest.approx(3600 * per_accelerator / price)
    said = " ".join(printed(print_parts, comparison.parts()).split())
    assert "b/scripted (A100) does most for the same money" in said
    page = write_comparison(comparison, tmp_path / "c.html").read_text(encoding="utf-8")
    assert "does most for the same money" in page


@pytest.mark.cases("text", "name", "price")
def test_a_price_is_one_for_all_or_by_kind(text: str, name: str, price: float | None) -> None:
    assert price_for(text, name, where="--price") == price


@pytest.mark.parametrize("text", ["", "cheap", "H100=", "=2", "H100=2,A100"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(JobError, match="is no price"):
        price_for(text, "H100", where="--price")
