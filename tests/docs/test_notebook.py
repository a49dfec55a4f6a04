"""The notebook of the docs runs from its first cell to its last."""

import json
from pathlib import Path

import pytest

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
