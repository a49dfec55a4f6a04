"""Sessions at the command line: what is typed, what is answered, and what files hold then."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import autotune


@pytest.mark.cases("session")
def test_each_word_is_answered(session: dict[str, Any], tmp_path: Path) -> None:
    """`each` is true of every step; a step without `left` leaves the folder as it was."""
    for name, text in session.get("files", {}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for step in [{**session.get("each", {}), **step} for step in session["steps"]]:
        before, words = texts_in(tmp_path), f"{step.get('begin', '')} {step['run']}"
        done = autotune(*shlex.split(words), folder=tmp_path, **step.get("variables", {}))
        told = f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == step.get("code", 0), told
        out, err = (" ".join(text.split()) for text in (done.stdout, done.stderr))
        assert not [text for text in step.get("out", []) if text not in out], told
        assert not [text for text in step.get("err", []) if text not in err], told
        assert not re.search(step.get("never", "Traceback"), f"{out}\n{err}"), told
        assert not out or not step.get("is_silent"), told
        if "json" in step:
            answer = json.loads(done.stdout)
            assert {name: answer.get(name) for name in step["json"]} == step["json"]
        after = texts_in(tmp_path)
        assert after.items() >= step.get("left", before).items()
        assert "left" in step or after == before


def texts_in(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {f"{path.relative_to(folder)}": path.read_text("utf-8", "replace") for path in paths}
