"""What an expert would choose: where each public recipe stands in the plan of its job.

`recipes.csv` names each recipe's job, fleet and settings, and the source. For each, the plan of
the job is ranked as `autotune plan` does. The recipe's row is the fastest candidate with its
settings that rather fits than not, since somebody trained it; what a recipe leaves open may be
anything. It is compared with the first row that trains in the same precision: a recipe in fp8 with
those in fp8, another with the plan's first row. `reason` says why a recipe that is far behind may
be.
"""

import argparse
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.app.planning import open_outlook
from autotune.base.errors import AutotuneError
from autotune.planning.outlook import FleetWishes, Outlook
from autotune.planning.ranking import Ranking, rank_lattice
from autotune.space.candidate import Candidate

RECIPES = Path(__file__).resolve().parent / "recipes.csv"
MODELS = RECIPES.parent / "recipe_models"
_PROBABLE = 0.5
"""Probability to fit from which a recipe's row is taken."""
NEAR = 0.05
"""A recipe within this share of the first row is as good as it."""

_SHORT = {
    **{"zero.stage": "stage ", "tp": "tp", "pp": "pp", "vp": "vp", "cp": "cp", "sp": "sp"},
    **{"ep": "ep", "micro_batch": "mb"},
}
_NAMED = (*_SHORT, "recompute", "recompute_modules", "offload.optimizer", "offload.param")
"""Knobs by which a row is described."""

Columns = Mapping[str, NDArray[np.object_]]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A recipe in the plan of its job."""

    name: str
    engine: str
    published_s: float | None
    """Step time by the published tokens per second; None: none was published."""
    reason: str
    """Why the first row may be ahead, as the table says."""
    forecast_s: float | None = None
    """None: the plan has no such candidate."""
    row: str = ""
    """The recipe's row in words."""
    fit_probability: float | None = None
    place: int | None = None
    """Its place in the plan, from 1."""
    candidates: int = 0
    first_s: float | None = None
    """Forecast of the first row of its precision."""
    first: str = ""
    """That row in words."""
    step: str = ""
    """The one change of the recipe that gains most, in words."""
    refused: str = ""
    """Why there is no plan."""

    @property
    def behind(self) -> float | None:
        """How much longer a step takes than the first row's, as a share."""
        if self.forecast_s is None or self.first_s is None:
            return None
        return self.forecast_s / self.first_s - 1.0

    @property
    def verdict(self) -> str:
        """`near`, `explained` by a reason, or what is wrong.

        `ahead` is faster than the first row, which fits more surely.
        """
        if self.behind is not None and self.behind <= NEAR:
            return "near" if self.behind >= -NEAR else "ahead"
        if self.reason:
            return "explained"
        if self.behind is None:
            return "no plan" if self.refused else "not in the plan"
        return "far"


def places(path: Path, part: str = "") -> Iterator[Place]:
    """Each recipe in its plan; those alone whose name has `part`."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if part.lower() in row["name"].lower():
                yield place_of(row)


def place_of(row: Mapping[str, str]) -> Place:
    """One recipe in its plan."""
    world, seq_len, batch = (int(row[key]) for key in ("world", "seq_len", "global_batch"))
    rate = row["tokens_per_s_per_gpu"]
    published_s = seq_len * batch / (world * float(rate)) if rate else None
    own = MODELS / f"{row['model']}.json"
    is_fp8 = row["precision"] == "fp8"
    job = {
        "model": str(own) if own.exists() else row["model"],
        "seq_len": seq_len,
        "global_batch": batch,
        "world": world,
        "precision": "bf16" if is_fp8 else row["precision"],
    }
    about = {"name": row["name"], "engine": row["engine"], "reason": row["reason"]}
    try:
        outlook = open_outlook(None, {**job, "engine": row["engine"]}, FleetWishes(gpu=row["gpu"]))
    except AutotuneError as error:
        return Place(**about, published_s=published_s, refused=error.message)
    ranking = rank_lattice(outlook)
    outlook = ranking.outlook
    columns = _columns(outlook)
    wanted = dict(pair.split("=") for pair in row["recipe"].split())
    alike = _narrow(columns) == is_fp8
    order = [int(i) for i in ranking.order if alike[i]]
    first = order[0]
    has_it = np.logical_and.reduce([_is(columns, key, text) for key, text in wanted.items()])
    times_s, fits = ranking.prediction.step_time_s, ranking.prediction.fit_probability
    of_recipe = [i for i in order if has_it[i]]
    probable = [i for i in of_recipe if fits[i] >= _PROBABLE]
    found = min(probable or of_recipe, key=lambda i: float(times_s[i]), default=None)
    position = None if found is None else order.index(found)
    return Place(
        **about,
        published_s=published_s,
        forecast_s=None if found is None else float(times_s[found]),
        row="" if found is None else _described(outlook.lattice.candidates[found]),
        fit_probability=None if found is None else float(fits[found]),
        place=None if position is None else position + 1,
        candidates=len(order),
        first_s=float(times_s[first]),
        first=_described(outlook.lattice.candidates[first]),
        step="" if found is None else _best_step(ranking, columns, list(wanted), found, order),
    )


def _described(candidate: Candidate) -> str:
    """A candidate by the knobs that recipes name, where they do anything."""
    values = {knob: candidate.get(knob) for knob in _NAMED}
    return " ".join(
        f"{_SHORT.get(knob, knob)}{'' if knob in _SHORT else '='}{value}"
        for knob, value in values.items()
        if value not in (None, 1, 0, "none") or (knob == "zero.stage" and value is not None)
    )


def _columns(outlook: Outlook) -> Columns:
    """Knob -> its value in each candidate, as text; empty where it does not act."""
    candidates = outlook.lattice.candidates
    columns = getattr(candidates, "columns", None)
    if isinstance(columns, Mapping) and "tp" in columns:
        return {name: np.asarray(column) for name, column in columns.items()}
    every = [candidate.values for candidate in candidates]
    names = dict.fromkeys(name for values in every for name in values)
    return {
        name: np.array([str(values.get(name, "")) for values in every], dtype=object)
        for name in names
    }


def _narrow(columns: Columns) -> NDArray[np.bool_]:
    """Which candidates train in fp8."""
    if "fp8" not in columns:
        return np.zeros(len(next(iter(columns.values()))), bool)
    return np.asarray(columns["fp8"]) > 0


def _is(columns: Columns, knob: str, text: str) -> NDArray[np.bool_]:
    """Which candidates have a recipe's value of a knob; one that does not act has none but 1."""
    n_candidates = len(next(iter(columns.values())))
    column = columns.get(knob)
    if column is None:
        return np.full(n_candidates, text in ("1", "none"))
    if column.dtype == object:
        return np.array([value == text for value in column], bool)
    return np.asarray(column == int(text))


def _best_step(
    ranking: Ranking, columns: Columns, wanted: Sequence[str], found: int, order: Sequence[int]
) -> str:
    """The fastest candidate before the recipe's row with one of its settings changed."""
    before = order[: order.index(found)]
    if not before:
        return ""
    rows = np.array(before)
    differs = np.stack(
        [np.asarray(columns[k][rows] != columns[k][found]) for k in wanted if k in columns]
    )
    one = np.flatnonzero(differs.sum(axis=0) == 1)
    if not len(one):
        return "several together"
    best = int(rows[one[0]])
    names = [k for k in wanted if k in columns]
    knob = names[int(np.flatnonzero(differs[:, one[0]])[0])]
    times_s = ranking.prediction.step_time_s
    gain = float(times_s[found] / times_s[best] - 1.0)
    return f"{knob} {columns[knob][found]} -> {columns[knob][best]}: {gain:.0%}"


def in_words(found: Place) -> str:
    """A row of a table in Markdown."""
    cells = [
        found.name,
        "" if found.published_s is None else f"{found.published_s:.1f} s",
        (
            ""
            if found.forecast_s is None
            else f"{found.forecast_s:.3g} s, fits {found.fit_probability:.0%}"
        ),
        f"{found.place} of {found.candidates}" if found.place else found.refused or "none",
        "" if found.behind is None else f"{found.behind:+.0%}",
        "" if found.first_s is None else f"{found.first_s:.3g} s: {found.first}",
        found.step if found.verdict in ("far", "explained") else "",
        found.reason if found.verdict == "explained" else found.verdict,
    ]
    return f"| {' | '.join(cells)} |"


_HEAD = (
    "| Recipe | Published | Forecast | Place | Behind | First row | One change | Why |\n"
    "|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=Path, default=RECIPES)
    parser.add_argument("--only", default="", help="recipes whose name has this")
    parser.add_argument("--json", action="store_true", help="one JSON object per recipe")
    options = parser.parse_args()
    if not options.json:
        print(_HEAD)
    verdicts: dict[str, int] = {}
    ratios = []
    for found in places(options.recipes, options.only):
        verdicts[found.verdict] = verdicts.get(found.verdict, 0) + 1
        if found.published_s is not None and found.forecast_s is not None:
            ratios.append(found.forecast_s / found.published_s)
        more = {"behind": found.behind, "verdict": found.verdict}
        print(
            json.dumps({**asdict(found), **more}) if options.json else in_words(found), flush=True
        )
    if not options.json:
        print(f"\n{', '.join(f'{count} {verdict}' for verdict, count in verdicts.items())}")
        print(compared(ratios))


def compared(ratios: Sequence[float]) -> str:
    """How far forecasts are from published step times, in words."""
    if not ratios:
        return "no step time is published"
    off = float(np.median(np.abs(np.array(ratios) - 1.0)))
    return (
        f"forecast over published: {min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} "
        f"recipes, {np.median(ratios):.2f} in the median; {off:.0%} off in the median"
    )


if __name__ == "__main__":
    main()
