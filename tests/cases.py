"""Cases of tests that are data: `test_x.yaml` beside `test_x.py`, by the test's name."""

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml


@functools.cache
def data_beside(file: str) -> dict[str, Any]:
    """The tables beside a file of tests, and what several of its tests share: `DATA`."""
    data: dict[str, Any] = yaml.safe_load(Path(file).with_suffix(".yaml").read_text("utf-8"))
    return data


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Run a test with each row of its table, whose rows may have ids.

    `@pytest.mark.cases("name", ...)` says what a row holds.
    """
    for marker in metafunc.definition.iter_markers("cases"):
        rows = data_beside(metafunc.module.__file__)[metafunc.function.__name__]
        is_named = isinstance(rows, dict)
        values = list(rows.values() if is_named else rows)
        names = marker.args if len(marker.args) > 1 else marker.args[0]
        metafunc.parametrize(names, values, ids=list(rows) if is_named else None)
