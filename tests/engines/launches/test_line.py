"""A launch line in short: what may be a secret is left out."""

import shlex

from autotune.engines.launches.line import in_short
from tests.cases import Cases

cases = Cases(__file__)


@cases("line", "short")
def test_a_command_in_short_shows_no_values_but_numbers_and_files(tmp_path, line, short):
    (tmp_path / "ds.json").touch()
    assert in_short(shlex.split(line), tmp_path) == short
