"""The bundle holds what a node runs, and the same sources make the same bytes."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import autotune
from autotune.fleet.transports.remote import bundle


def test_the_same_sources_make_the_same_bytes() -> None:
    first = bundle()
    bundle.cache_clear()
    assert bundle() == first


def test_it_has_the_package_and_its_entry_points_and_no_bytecode() -> None:
    _, data = bundle()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
        points = archive.extractfile(f"autotune-{autotune.__version__}.dist-info/entry_points.txt")
        assert "autotune.drivers" in points.read().decode()
    assert "autotune/fleet/node/agent.py" in names
    assert "autotune/devices/accelerators.yaml" in names
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in names)


def test_an_interpreter_without_us_runs_the_agent_from_it(tmp_path: Path) -> None:
    """With the packages that training needs, and no package of the searching side."""
    _, data = bundle()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(tmp_path, filter="data")
    code = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('optuna', 'pandas', 'typer', 'rich', 'pyarrow'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import autotune.fleet.node.agent, autotune.fleet.node.inventory\n"
        "print(autotune.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == str(tmp_path / "autotune" / "__init__.py"), done.stderr
