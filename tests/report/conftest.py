"""What the tests of the report share: a browser, and a study with everything in it."""

from collections.abc import Iterator

import pytest

from autotune.record.study import Study
from tests.report.browser import CHROMIUM, DRIVER, Browser
from tests.report.wide import wide_study


# Not of the whole session: an open page goes on drawing.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    pytest.importorskip("selenium")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs chromium and chromedriver")
    opened = Browser()
    yield opened
    opened.driver.quit()


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Read it; do not write to it."""
    return wide_study(tmp_path_factory.mktemp("wide"))
