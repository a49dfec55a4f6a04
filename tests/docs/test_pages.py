"""What pages say is so: commands, the guide, the gallery, the notebook and the glossary."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from autotune.cli import cli
from autotune.contract import Outcome
from tests import record_gallery
from tests.command_line import autotune
from tests.docs.test_skill import files
from tests.record_gallery import MEASURED, SCRIPTS, keep

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [page for of in ("*", "docs/**/*", "skills/**/*") for page in REPOSITORY.glob(f"{of}.md")]


def _commands_of(page: Path) -> list[str]:
    """What follows `autotune` in the blocks of a page and within its lines."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
    of_blocks = re.findall(r"^autotune +([^-\n].*)$", blocks, re.MULTILINE)
    return of_blocks + re.findall(r"`autotune +([^-`][^`]*)`", text)


def test_every_command_parses() -> None:
    commands = {(page.name, line) for page in PAGES for line in _commands_of(page)}
    assert {page for page, _ in commands} >= {"README.md", "report.md", "search.md", "check.md"}
    group = typer.main.get_group(cli)
    wrong = []
    for page, line in sorted(commands):
        name, *rest = shlex.split(re.sub(r"[\[\]|]", " ", line), comments=True)
        command = group.commands[name]
        _, left, _ = command.make_parser(typer.Context(command)).parse_args(rest)
        wrong += [f"{page}: `{name}` does not take {left}"] if left else []
    assert not wrong


HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
FILES = re.compile(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = [
    (page.name, line)
    for page in sorted(HOW_TO.glob("*.md"))
    for line in re.findall(r"^autotune ([^>\n]+)", page.read_text("utf-8"), re.MULTILINE)
    if "--against" not in line  # `test_skill.py` runs the gate, on what a search found
]


def test_there_are_commands() -> None:
    assert {page for page, _ in COMMANDS} >= {"no-gpu.md", "rent.md", "ci.md", "fine-tune.md"}


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_answers(page: str, line: str, tmp_path: Path) -> None:
    # With a finding, which every form of output shows.
    (tmp_path / "ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 2, "zero": 1}\n')
    (tmp_path / "job.yaml").write_text(files()["job.yaml"])
    for name, content in FILES.findall((HOW_TO / page).read_text("utf-8")):
        (tmp_path / name).write_text(content)
    # What is searched in full is searched by other tests.
    flags = ("--dry-run",) if line.startswith("search ") else ()
    done = autotune(*shlex.split(line), *flags, folder=tmp_path)
    assert done.returncode == 0, f"{page}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.stdout


def test_a_record_names_no_folder_of_the_machine(tmp_path, monkeypatch):
    """A study of a user's own script names the folder that its command ran in."""
    monkeypatch.setattr(record_gallery, "RECORDED", tmp_path / "recorded")
    home = tmp_path / "home"
    trial = home / "results" / "own-script" / "trials" / "0000"
    trial.mkdir(parents=True)
    packages = "/opt/env/lib/python3.12/site-packages/torch"
    spec = {"cwd": str(home), "script": f"{home}/train.py", "torch": packages}
    (trial / "spec.json").write_text(json.dumps(spec))
    keep(home / "results" / "own-script", ["search"])
    record = json.loads((tmp_path / "recorded" / "own-script.json").read_text())
    kept = json.loads(record["files"]["trials/0000/spec.json"])
    assert kept == {"cwd": ".", "script": "train.py", "torch": "site-packages/torch"}


def test_a_script_of_the_gallery_is_an_example_with_the_files_that_its_command_names() -> None:
    for study, folder in SCRIPTS.items():
        command = MEASURED[study][MEASURED[study].index("--") + 1 :]
        files = [word for word in command if word.endswith((".py", ".json"))]
        assert files
        assert all((folder / name).is_file() for name in files)


NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "api.ipynb"


def test_every_cell_runs_and_shows_something(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="the extra `dev` has nbclient")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    shown = json.dumps(notebook.cells)
    for word in ("change of the baseline", "SIMULATED", "did you mean", "zero.stage=3"):
        assert word in shown
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert sum("text/html" in output.get("data", {}) for output in outputs) == 7


DOCS = Path(__file__).resolve().parents[2] / "docs"


def row_of(page: str, name: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    return next(line for line in text.splitlines() if line.startswith(f"| {name} |"))


def test_the_glossary_explains_every_outcome() -> None:
    named = re.findall(r"`(\w+)`", row_of("glossary.md", "outcome"))
    assert named == [outcome.value for outcome in Outcome]


def test_the_first_steps_name_outcomes_as_the_table_shows_them() -> None:
    named = set(re.findall(r"`([^`]+)`", row_of("start.md", "`outcome`")))
    assert named - {"outcome", "best", "baseline"} <= {outcome.value for outcome in Outcome}
