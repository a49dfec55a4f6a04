"""What a study's own files say of figures, edited by hand: nothing that cannot be is believed."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from autotune.contract import read_json, write_json
from autotune.record.facts import Facts
from autotune.record.soak import SOAK_FILE, read_soak
from autotune.record.study import Study
from tests.cases import data_beside
from tests.chaos.readers import SOAK
from tests.record.test_study import FILES, a_spec
from tests.search.scripted import ok

DATA = data_beside(__file__)


def edited(data: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with another value at `a/0/b`."""
    changed = copy.deepcopy(data)
    at: Any = changed
    *above, last = path.split("/")
    for key in above:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[last] = value
    return json.loads(json.dumps(changed))


SPEC_LIES = DATA["SPEC_LIES"]


@pytest.mark.parametrize(("path", "value"), SPEC_LIES, ids=[f"{p}-{v}" for p, v in SPEC_LIES])
def test_a_spec_that_cannot_be_is_damaged(tmp_path: Path, path: str, value: object) -> None:
    """Otherwise a figure would be taken for that of another candidate."""
    study = Study(tmp_path, "a")
    study.trials_folder.mkdir(parents=True)
    folder = study.write_spec(a_spec(5), FILES)
    study.write_result(folder, ok(a_spec(5), 100.0))
    assert study.trials()[0].result is not None
    spec = read_json(folder / "spec.json")
    write_json(folder / "spec.json", edited(spec, path, value))
    assert study.trials() == ()
    assert len(study.read().unreadable) == 1


@pytest.mark.parametrize("value", [math.nan, -1.0, 0.0, "much"])
def test_a_limit_that_cannot_be_is_none(value: object) -> None:
    assert Facts.of({"allowed_bytes": value}).allowed_bytes == math.inf


SOAK_LIES = DATA["SOAK_LIES"]


def test_a_soak_that_can_be_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / SOAK_FILE, SOAK)
    assert read_soak(tmp_path) is not None


@pytest.mark.parametrize(("path", "value"), SOAK_LIES, ids=[f"{p}-{v}" for p, v in SOAK_LIES])
def test_a_soak_that_cannot_be_is_none(tmp_path: Path, path: str, value: object) -> None:
    write_json(tmp_path / SOAK_FILE, edited(SOAK, path, value))
    assert read_soak(tmp_path) is None
