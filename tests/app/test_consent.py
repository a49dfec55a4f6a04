"""A job from elsewhere runs and reads nothing before somebody has agreed to it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.app import consent
from autotune.app.consent import agree_to_job, refuse_if_of_another_user
from autotune.app.session import read_job
from autotune.base.errors import ExitCode, JobError
from autotune.job.origin import code_of
from tests.command_line import autotune
from tests.jobs import CPU

JOB = "model: evil:build\nseq_len: 8\nglobal_batch: 2\nworld: 2\nprecision: fp32\nspace: smoke\n"
EVIL = "import pathlib\npathlib.Path('{mark}').touch()\ndef build(): raise SystemExit\n"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of somebody else's, beside a module that shows when it is imported."""
    here, folder = tmp_path / "here", tmp_path / "theirs"
    here.mkdir()
    folder.mkdir()
    monkeypatch.chdir(here)
    for place in (here, folder):
        (place / "evil.py").write_text(EVIL.format(mark=place / "imported"))
    (folder / "job.yaml").write_text(JOB)
    return folder / "job.yaml"


def agree(job: Path | None, *answers: bool, **changes: Any) -> tuple[Any, list[str], list[str]]:
    """What came of it, what was said, and what was asked; no answers: nobody is there."""
    said: list[str] = []
    asked: list[str] = []
    left = list(answers)

    def ask(question: str) -> bool:
        asked.append(question)
        return left.pop(0)

    about: dict[str, Any] = {"is_trusted": False, "flags": {}, **changes}
    flags = about.pop("flags")
    found = agree_to_job(job, flags, say=said.append, ask=ask if answers else None, **about)
    return found, said, asked


def test_without_anybody_to_ask_it_is_refused_and_the_flag_named(theirs: Path) -> None:
    with pytest.raises(JobError) as refused:
        agree(theirs)
    assert "model: imports evil from" in refused.value.message
    assert "--trust-job" in refused.value.hint
    assert agree(theirs, is_trusted=True)[0].keys["model"] == "evil:build"


def test_somebody_is_asked_and_shown_what_for(theirs: Path) -> None:
    data, said, asked = agree(theirs, True)
    assert data.keys["model"] == "evil:build"
    assert asked == ["Trust it?"]
    assert f"--job {theirs}" in said[0]
    assert "imports evil from" in said[0]
    with pytest.raises(JobError, match="not trusted"):
        agree(theirs, False)


def test_what_it_does_not_name_or_a_flag_replaces_is_not_asked(theirs: Path) -> None:
    assert agree(theirs, flags={"model": "gpt2"})[1:] == ([], [])
    theirs.write_text(JOB.replace("evil:build", "gpt2"))
    assert agree(theirs)[1:] == ([], [])


def test_one_s_own_is_said_and_not_asked(theirs: Path) -> None:
    own = Path("job.yaml")
    own.write_text(JOB)
    for job, flags in ((own, {}), (None, {"model": "evil:build"}), (theirs, {"model": "evil:x"})):
        _, said, asked = agree(job, flags=flags)
        assert asked == []
        (line,) = said
        assert line.startswith(f"model: imports evil from {Path('evil.py').resolve()} and calls")
    assert agree(None, flags={"model": "gpt2"})[1] == []


def test_what_was_agreed_to_is_what_is_read(theirs: Path) -> None:
    """Its owner may put another file there while the question stands."""
    theirs.write_text(JOB.replace("evil:build", "gpt2"))
    data, *_ = agree(theirs)
    theirs.write_text(JOB)
    job, _ = read_job(data, {}, CPU)
    assert job.model.name == "gpt2"


@pytest.mark.parametrize(
    "command",
    [
        ("search", "--dry-run"),
        ("search", "--yes"),
        ("search", "--dry-run", "--fleet", "simulate:2xH100"),
        ("render", "--out", "out"),
        ("plan",),
        ("explain",),
        ("estimate",),
    ],
    ids=" ".join,
)
def test_every_command_that_takes_a_job_refuses_it(theirs: Path, command: Any) -> None:
    done = autotune(*command, "--job", str(theirs), folder=Path.cwd())
    assert done.returncode == ExitCode.INVALID_INPUT
    assert "--trust-job" in done.stderr
    assert not [*Path.cwd().glob("imported"), *theirs.parent.glob("imported")]


def test_a_link_in_the_folder_is_no_way_in(theirs: Path) -> None:
    Path("job.yaml").symlink_to(theirs)
    with pytest.raises(JobError, match="imports evil"):
        agree(Path("job.yaml"))


def test_a_dry_run_says_what_it_imports_first_and_where_from(theirs: Path) -> None:
    """And a trusted job's module is never looked for beside the job."""
    Path("evil.py").unlink()
    done = autotune("search", "--dry-run", "--trust-job", "--job", str(theirs), folder=Path.cwd())
    assert done.returncode == ExitCode.INVALID_INPUT
    first, *others = done.stderr.splitlines()
    assert "imports evil from where it is found and calls build" in first
    assert "importing evil raised ModuleNotFoundError" in "".join(others)
    assert not (theirs.parent / "imported").exists()


def test_the_record_of_somebody_else_s_study_imports_nothing(theirs, monkeypatch):
    refuse_if_of_another_user(theirs, code_of("evil:build"))  # it is one's own, wherever it lies
    monkeypatch.setattr(consent, "is_ours", lambda _: False)
    with pytest.raises(JobError, match="belongs to another user, and imports evil"):
        refuse_if_of_another_user(theirs, code_of("evil:build"))
    refuse_if_of_another_user(theirs, code_of("gpt2"))
    assert "evil" not in sys.modules
    assert not (theirs.parent / "imported").exists()
