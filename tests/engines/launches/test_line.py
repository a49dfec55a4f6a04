"""A launch line in short: what may be a secret is left out."""

import shlex

import pytest

from autotune.engines.launches.line import in_short, name_of


@pytest.mark.cases("line", "short")
def test_a_command_in_short_shows_no_values_but_numbers_and_files(tmp_path, line, short):
    (tmp_path / "ds.json").touch()
    assert in_short(shlex.split(line), tmp_path) == short


@pytest.mark.cases("command", "name")
def test_a_command_is_named_by_its_script(command: list[str], name: str) -> None:
    assert name_of(command) == name
