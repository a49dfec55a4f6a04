"""Readers of figures: lessons, accelerators, constants, and tables of runs."""

import csv
import functools
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml

from autotune.app.estimate import estimate_rows
from autotune.app.session import open_session
from autotune.cost.constants import SHIPPED as CONSTANTS
from autotune.cost.constants import load_constants
from autotune.cost.forecast import forecast
from autotune.cost.knowledge import (
    Lesson,
    Situation,
    columns_of,
    keep_lessons,
    read_lessons,
    recall_lessons,
    write_lessons,
)
from autotune.cost.residual import MEMORY_PRIOR, TIME_PRIOR, calibrate
from autotune.cost.table import rows_to_plans
from autotune.devices.accelerators import SHIPPED as ACCELERATORS
from autotune.devices.accelerators import shipped_accelerators
from tests.chaos.mutations import TEXTS, WEIRD, dump_yaml, of_bytes
from tests.chaos.reader import Reader, at, broken, json_reader
from tests.cost.rows import csv_text, row
from tests.replay.tables import sweep

_HERE = Situation(device="A100", engine="deepspeed 0.19.8", torch="2.13.0", family="llama")
_CELLS = (
    *map(str, WEIRD[:-7]),
    *("1e300", "1e-310", "-1", "1e12", "8.0", "1_000", "0x10", "50k", "\u0661", "OOM", "ok"),
)
"""Values that nobody expects in a cell."""


def make_table_readers(folder: Path) -> list[Reader]:
    """All of them, each in a folder of its own below `folder`."""
    runs = [row(), row(id="b", framework="deepspeed", zero_stage="3", tp="1", dp="32")]
    table = at(folder, "predicted", "runs.csv")
    table.write_text(csv_text(row(gpu_type="H100"), *runs), encoding="utf-8")
    out = table.with_name("out.csv")
    return [
        json_reader("knowledge", folder, _lessons(folder), _read_lessons, name="knowledge.json"),
        _yaml(
            "accelerators",
            folder,
            _two_accelerators(),
            lambda path: _estimate(table, out, accelerators=path),
        ),
        _yaml(
            "constants",
            folder,
            CONSTANTS.read_bytes(),
            functools.partial(_read_constants, table, out),
        ),
        _table("estimate --rows", folder, runs, lambda path: _estimate(path, out)),
        _table("replay", folder, sweep()[:8], functools.partial(_replay, folder / "results")),
    ]


def _two_accelerators() -> bytes:
    """Two of the shipped accelerators, since all of them take long to break."""
    shipped = yaml.safe_load(ACCELERATORS.read_bytes())["accelerators"]
    chosen = {name: shipped[name] for name in ("A100-80GB", "H100")}
    return dump_yaml({"accelerators": chosen}).encode()


def _lessons(folder: Path) -> object:
    path = at(folder, "lessons", "knowledge.json")
    read = rows_to_plans(
        [{k: str(v) for k, v in one.items()} for one in sweep()[:4]], shipped_accelerators()
    )
    assert read.plans is not None
    seconds = forecast(read.plans).seconds
    lessons = [
        Lesson(
            situation=_HERE,
            study="an older study" if number else "/home/somebody/results/mine",
            plan=columns_of(read.plans, number),
            seconds=float(seconds[number]) if number else None,
            peak_bytes=2e9 if number else None,
            is_out_of_memory=not number,
            limit_bytes=80e9,
        )
        for number in range(len(read.plans))
    ]
    write_lessons(path, lessons)
    return json.loads(path.read_text(encoding="utf-8"))


def _read_lessons(path: Path) -> None:
    """Recall as a search does: every figure has to be a number, since one other spoils all."""
    found = recall_lessons(
        read_lessons(path), situation=_HERE, study="now", constants=load_constants()
    )
    if found is not None:
        for seen, prior in ((found.times, TIME_PRIOR), (found.peaks, MEMORY_PRIOR)):
            believed = calibrate(seen.features, seen, prior)
            assert np.isfinite(believed.mean).all(), "what is believed is no number"
            assert np.isfinite(believed.deviation).all(), "what is believed is no number"
    keep_lessons(path, "now", [])


def _read_constants(table: Path, out: Path, path: Path) -> None:
    load_constants.cache_clear()  # one file, always another text
    _estimate(table, out, constants=path)


def _estimate(table: Path, out: Path, **files: Path) -> None:
    """As the command does; a row is predicted in numbers, or its reason says why not."""
    estimate_rows(table, out, **files)
    with out.open(encoding="utf-8", newline="") as file:
        for one in csv.DictReader(file):
            said = [cell for name, cell in one.items() if name.startswith("pred_") and cell]
            assert all(np.isfinite(float(cell)) for cell in said), "a prediction is no number"
            assert said or one["reason"], "no prediction, and no reason"


def _replay(results: Path, path: Path) -> None:
    """As a search sees the table before it begins."""
    session = open_session(None, {}, fleet=f"replay:{path}", results=results)
    assert session.place.forecaster is not None
    said = session.place.forecaster(session.lattice.candidates)
    assert np.isfinite(said.seconds).all(), "a prediction is no number"
    for candidate in session.lattice.candidates:
        session.engine.files(candidate)


def _yaml(reader: str, folder: Path, seed: bytes, read: Callable[[Path], object]) -> Reader:
    return broken(reader, at(folder, reader, "file.yaml"), seed, read, dump_yaml)


def _table(
    reader: str, folder: Path, rows: Sequence[Mapping[str, object]], read: Callable[[Path], object]
) -> Reader:
    seed = _as_csv(rows)
    return Reader(
        name=reader,
        path=at(folder, reader, "runs.csv"),
        seed=seed,
        read=read,
        mutate=functools.partial(_broken_table, rows, seed),
    )


def _broken_table(rows: Sequence[Mapping[str, object]], seed: bytes, draw: random.Random) -> bytes:
    kind = draw.random()
    if kind < 0.08:
        return draw.choice(TEXTS)
    if kind < 0.3:
        return of_bytes(seed, draw)
    broken = [dict(one) for one in rows]
    for _ in range(draw.choice((1, 1, 2, 4))):
        column = draw.choice(list(broken[0]))
        match draw.randrange(8):
            case 0:
                for one in broken:
                    one.pop(column, None)
            case 1:
                for one in broken:
                    one[draw.choice(("x", "", f" {column}"))] = one.pop(column, "")
            case 2:
                cell = draw.choice(_CELLS)
                for one in broken:
                    one[column] = cell
            case 3:
                broken += broken[: draw.choice((1, 50))]
            case _:
                draw.choice(broken)[column] = draw.choice(_CELLS)
    return _as_csv(broken)


def _as_csv(rows: Sequence[Mapping[str, object]]) -> bytes:
    text = io.StringIO()
    names = dict.fromkeys(name for one in rows for name in one)
    writer = csv.DictWriter(text, list(names))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")
