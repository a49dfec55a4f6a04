"""The examples of docs/check.md run, and print what is written there."""

import re
import shlex
from pathlib import Path

import pytest

from tests.command_line import autotune

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
FILES = re.findall(
    r"^`([\w.]+)`:\n\n```(?:json|yaml)\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL
)
EXAMPLES = re.findall(
    r"^```sh\nautotune (check .*?)\n```\n\n```\n(.*?)^```", DOCUMENT, re.M | re.S
)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == len(FILES) == DOCUMENT.count("```sh") == 2


@pytest.mark.parametrize(("command", "output"), EXAMPLES)
def test_an_example_prints_what_is_written(command: str, output: str, tmp_path: Path) -> None:
    for name, content in FILES:
        (tmp_path / name).write_text(content, encoding="utf-8")
    done = autotune(*shlex.split(command), folder=tmp_path)
    assert done.stdout == output
    assert done.returncode == 2
