"""Draws the page of a running search in a process of its own, whose time is not the search's.

`python -m autotune.app.page_process RESULTS STUDY`, with the snapshot of the search that starts it
on its standard input, as `told` has it.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.app.pages import line_of, write_page
from autotune.record.answer import Speedup, Standing
from autotune.record.study import Study
from autotune.search.base import RaceState, Snapshot, Stage
from autotune.space.candidate import Candidate

_NICE = 19
"""Ranks and the search come first."""


def heard(told: Mapping[str, Any]) -> Snapshot:
    """A snapshot from what `PageWriter` tells of it; its trials are in the record."""
    ends = {name: _standing(told[name]) for name in ("best", "baseline")}
    kept = {**told, **ends, "stage": Stage(told["stage"]), "race": _race(told["race"])}
    return Snapshot(**kept, counts={}, trials=(), running=())


def _race(told: Mapping[str, Any] | None) -> RaceState | None:
    if told is None:
        return None
    ends = {name: _standing(told[name]) for name in ("leader", "baseline")}
    others = tuple(filter(None, map(_standing, told["others"])))
    gain = None if told["gain"] is None else Speedup(**told["gain"])
    return RaceState(n_rounds=told["n_rounds"], others=others, gain=gain, **ends)


def _standing(told: Mapping[str, Any] | None) -> Standing | None:
    if told is None:
        return None
    candidate = told["candidate"]
    knobs = tuple((name, value) for name, value in candidate["knobs"])
    made = Candidate(**{**candidate, "knobs": knobs})
    known = {each.name for each in dataclasses.fields(Standing)}
    figures = {name: value for name, value in told.items() if name in known}
    return Standing(**{**figures, "candidate": made, "config": Path(told["config"])})


def main(results: str, name: str) -> int:
    """Draw it; what fails is said in the last line of stderr."""
    os.nice(_NICE)
    study = Study(Path(results), name)
    try:
        write_page(study, study.page_file, snapshot=heard(json.load(sys.stdin)))
    except Exception as error:
        print(line_of(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
