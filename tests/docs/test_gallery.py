"""What the gallery records of a real search."""

import json

from tests import record_gallery
from tests.record_gallery import MEASURED, SCRIPTS, keep


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
