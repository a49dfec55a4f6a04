"""Where the plan puts the public recipes for mixtures of experts, and what it forecasts of them.

`recipes.csv` names each recipe's job, fleet and layout, what was measured, and the source. For
each, every legal layout of the job is ranked as `plan --engine megatron` does. The recipe's row is
the fastest layout with its degrees and micro-batch; what a recipe leaves open may be anything.
"""

import argparse
import csv
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from autotune.app.planning import open_outlook
from autotune.base.errors import AutotuneError
from autotune.engines.megatron.layouts import Layouts
from autotune.planning.outlook import FleetWishes
from autotune.planning.ranking import rank_lattice

RECIPES = Path(__file__).resolve().parent / "recipes.csv"
_DEGREES = ("tp", "pp", "vp", "cp", "ep", "micro_batch")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A recipe in the plan of its job."""

    name: str
    published_s: float | None
    """Step time by the published tokens per second; None: none was published."""
    forecast_s: float | None = None
    """None: the lattice has no such layout."""
    place: int | None = None
    """Its place in the plan, from 1."""
    layouts: int = 0
    first_s: float | None = None
    """Forecast of the plan's first row."""
    first: str = ""
    """That row in words."""
    refused: str = ""
    """Why there is no plan."""


def places(path: Path) -> Iterator[Place]:
    """Each recipe in its plan."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield place_of(row)


def place_of(row: dict[str, str]) -> Place:
    """One recipe in its plan."""
    world, seq_len, batch = (int(row[key]) for key in ("world", "seq_len", "global_batch"))
    rate = row["tokens_per_s_per_gpu"]
    published_s = seq_len * batch / (world * float(rate)) if rate else None
    job = {
        "model": row["model"],
        "seq_len": seq_len,
        "global_batch": batch,
        "world": world,
        "precision": "bf16",
    }
    try:
        outlook = open_outlook(None, job, FleetWishes(gpu=row["gpu"]), engine="megatron")
    except AutotuneError as error:
        return Place(name=row["name"], published_s=published_s, refused=error.message)
    ranking = rank_lattice(outlook)
    layouts = outlook.lattice.candidates
    assert isinstance(layouts, Layouts)
    columns = layouts.columns
    wanted = {name: int(row[name]) for name in _DEGREES if row[name]}
    is_same = np.logical_and.reduce([columns[name] == value for name, value in wanted.items()])
    is_same &= (columns["fp8"] > 0) == (row["precision"] == "fp8")
    position = np.flatnonzero(is_same[ranking.order])
    times_s = ranking.prediction.step_time_s
    first = int(ranking.order[0])
    found = None if not len(position) else int(ranking.order[position[0]])
    return Place(
        name=row["name"],
        published_s=published_s,
        forecast_s=None if found is None else float(times_s[found]),
        place=None if found is None else int(position[0]) + 1,
        layouts=len(layouts),
        first_s=float(times_s[first]),
        first=outlook.engine.describe(layouts[first]),
    )


def in_words(found: Place) -> str:
    """A row of a table in Markdown."""
    if found.refused:
        return f"| {found.name} | no plan: {found.refused} |"
    cells = [
        found.name,
        "not published" if found.published_s is None else f"{found.published_s:.1f} s",
        "not in the lattice" if found.forecast_s is None else f"{found.forecast_s:.1f} s",
        f"{found.place} of {found.layouts}" if found.place else "",
        f"{found.first_s:.1f} s: {found.first}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=Path, default=RECIPES)
    parser.add_argument("--json", action="store_true", help="one JSON object per recipe")
    options = parser.parse_args()
    if not options.json:
        print("| recipe | published | forecast | place | first row |\n|---|---|---|---|---|")
    for found in places(options.recipes):
        print(json.dumps(asdict(found)) if options.json else in_words(found), flush=True)


if __name__ == "__main__":
    main()
