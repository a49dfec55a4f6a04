"""Cases of tests that are data: `test_x.yaml` beside `test_x.py`, by the test's name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml


class Cases:
    """The tables beside a file of tests: `cases = Cases(__file__)`."""

    def __init__(self, file: str) -> None:
        """Read them; `data` also has texts and values that several tests share."""
        text = Path(file).with_suffix(".yaml").read_text(encoding="utf-8")
        self.data: dict[str, Any] = yaml.safe_load(text)

    def __call__(self, *names: str) -> Callable[[Any], Any]:
        """Run a test with each row of its table, whose rows may have ids."""

        def decorate(test: Any) -> Any:
            rows = self.data[test.__name__]
            is_named = isinstance(rows, dict)
            values = list(rows.values() if is_named else rows)
            return pytest.mark.parametrize(
                names if len(names) > 1 else names[0], values, ids=list(rows) if is_named else None
            )(test)

        return decorate
