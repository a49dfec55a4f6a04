"""Which processes below a user's command are ranks: real processes, without torch."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.contract import (
    CONFIG_DIR,
    PARENT_ENV,
    RANKS_DIR,
    SPEC_FILE,
    read_json,
    to_dict,
    write_json,
)
from autotune.trial import prebuilt
from autotune.trial.guest.begin import GUEST_ENV, OWNER_FILE, owner_of, owner_text, take_rank
from autotune.trial.guest.edits import EDITS_FILE
from autotune.trial.guest.launcher import SITE, guest_environment
from autotune.trial.variables import BUILT_ENV, SUBMITTED_ENV
from tests.trials import spec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trial's."""
    (tmp_path / RANKS_DIR).mkdir()
    return tmp_path


def python(
    code: str, *, folder: Path | None = None, path: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that finds our `sitecustomize`, as below a user's command."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), path]))
    if folder is not None:
        environment[GUEST_ENV] = str(folder)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **variables},
        cwd="/",  # what lies in the working folder would be found first
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_first_is_the_rank_and_stays_it_in_another_program(folder: Path) -> None:
    assert take_rank(folder, 3)
    assert take_rank(folder, 3), "exec keeps the process"
    assert owner_of(folder / RANKS_DIR / OWNER_FILE.format(rank=3)) == os.getpid()


def test_a_living_rank_s_workers_are_none(folder: Path) -> None:
    path = folder / RANKS_DIR / OWNER_FILE.format(rank=0)
    path.write_text(owner_text(os.getppid()))
    assert not take_rank(folder, 0)


def test_another_machine_s_rank_is_not_looked_for(folder: Path) -> None:
    path = folder / RANKS_DIR / OWNER_FILE.format(rank=0)
    path.write_text("1 elsewhere")
    assert owner_of(path) is None
    assert not take_rank(folder, 0)


def test_a_rank_that_has_ended_is_not_started_again(folder: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                           capture_output=True, text=True, check=True)  # fmt: skip
    path = folder / RANKS_DIR / OWNER_FILE.format(rank=0)
    path.write_text(owner_text(int(ended.stdout)))
    again = python("print('trains')", folder=folder, RANK="0", LOCAL_RANK="0")
    assert again.returncode == 1
    assert "rank 0 has ended" in again.stderr
    assert "trains" not in again.stdout


def test_our_sitecustomize_does_nothing_outside_of_a_trial() -> None:
    code = "import sys; print([m for m in sys.modules if m.startswith(('autotune', '_autotune'))])"
    assert python(code).stdout.strip() == "[]"


def test_a_waiting_process_has_the_standard_library_alone(folder: Path) -> None:
    code = (
        "import sys, os\n"
        "top = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(top - set(sys.stdlib_module_names) - {'sitecustomize', '__main__'}))\n"
    )
    without, waiting = python(code), python(code, folder=folder)
    added = set(waiting.stdout.split()) - set(without.stdout.split())
    assert added == {"_autotune_in_rank"}, waiting.stderr


def test_the_user_s_own_sitecustomize_runs_first(folder: Path, tmp_path: Path) -> None:
    user_folder = tmp_path / "theirs"
    user_folder.mkdir()
    (user_folder / "sitecustomize.py").write_text(
        "import sys; sys.flag = '_autotune_in_rank' in sys.modules\n"
    )
    code = (
        "import sys, sitecustomize\n"
        "print(sys.flag, '_autotune_in_rank' in sys.modules, sitecustomize.__file__)\n"
    )
    words = python(code, folder=folder, path=str(user_folder)).stdout.split()
    assert words == ["False", "True", str(user_folder / "sitecustomize.py")]


def test_a_sitecustomize_of_theirs_that_fails_does_not_take_ours_with_it(folder, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    code = "import sys; print('_autotune_in_rank' in sys.modules)"
    ran = python(code, folder=folder, path=str(tmp_path))
    assert ran.stdout.strip() == "True"
    assert "ValueError: theirs" in ran.stderr


@pytest.mark.parametrize("name", ["autotune", "contract", "trial"])
def test_a_package_of_theirs_is_called_as_they_like(folder, tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("MINE = 'theirs'\n")
    code = f"import {name}; print({name}.MINE)"
    ran = python(code, folder=folder, path=str(tmp_path))
    assert ran.stdout.strip() == "theirs", ran.stderr


def owners(folder: Path) -> list[str]:
    """Files of the processes that have said that they are a rank."""
    return [path.name for path in (folder / RANKS_DIR).glob("*.owner")]


@pytest.mark.parametrize(
    "given", [{"RANK": "0"}, {"LOCAL_RANK": "0"}, {"RANK": "", "LOCAL_RANK": "0"}, {}], ids=str
)
def test_launchers_are_no_ranks(folder: Path, given: Mapping[str, str]) -> None:
    python("import json, subprocess", folder=folder, **given)
    assert owners(folder) == []


def test_a_process_without_a_number_is_a_rank_once_it_trains(folder: Path, tmp_path: Path) -> None:
    """Not when it imports DeepSpeed, which launchers do: when it makes an engine.

    Ranks may meet before, by an extension: that is loaded as it was built. The environment, which
    a launcher's children inherit, stays as it is.
    """
    (tmp_path / "deepspeed.py").write_text("def initialize(): return 'made'\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "utils.py").write_text("class cpp_extension:\n  load = lambda: None\n")
    built = {"prefix": sys.prefix, "variables": {"TORCH_EXTENSIONS_DIR": "/built"}}
    code = (
        "import os, sys, deepspeed\n"
        "from torch.utils import cpp_extension\n"
        "print(os.environ.get('TORCH_EXTENSIONS_DIR'), cpp_extension.load.__module__)\n"
        f"print(sorted(os.listdir({str(folder / RANKS_DIR)!r})))\n"
        "begin = sys.modules['_autotune_in_rank.trial.guest.begin']\n"
        "begin._be_rank = lambda folder, rank: print('rank', rank)\n"
        "os.environ['RANK'] = '5'\n"
        "print(deepspeed.initialize(), deepspeed.initialize())\n"
    )
    ran = python(code, folder=folder, path=str(tmp_path), **{BUILT_ENV: json.dumps(built)})
    loads, *rest = ran.stdout.splitlines()
    assert loads == "None _autotune_in_rank.trial.prebuilt", ran.stderr
    assert rest == ["['reached']", "rank 5", "made made"], ran.stderr
    assert owners(folder) == ["05.owner"]


def test_the_environment_keeps_what_is_the_user_s() -> None:
    given = {"PYTHONPATH": "/theirs", "MINE": "1", "MASTER_ADDR": "10.0.0.1", PARENT_ENV: "1"}
    made = guest_environment(given, Path("/trial"), "29555")
    assert made["PYTHONPATH"].split(os.pathsep) == [str(SITE), "/theirs"]
    assert made["MASTER_ADDR"] == "10.0.0.1"
    assert made["MASTER_PORT"] == "29555"
    assert made[GUEST_ENV] == "/trial"
    assert made["MINE"] == "1"


def test_deepspeed_s_launcher_meets_at_the_trial_s_port_by_default(folder, tmp_path):
    """Whatever starts it, such as `env` or a shell script: it reads no variable."""
    package = tmp_path / "deepspeed"
    package.mkdir()
    (package / "constants.py").write_text("TORCH_DISTRIBUTED_DEFAULT_PORT = 29500\n")
    (package / "__init__.py").write_text("from .constants import *\n")
    code = "import deepspeed; print(deepspeed.TORCH_DISTRIBUTED_DEFAULT_PORT)"
    ran = python(code, folder=folder, path=str(tmp_path), MASTER_PORT="29555")
    assert ran.stdout == "29555\n", ran.stderr


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_is_built_serves_the_python_that_it_was_built_for(monkeypatch, is_ours):
    prefix = sys.prefix if is_ours else "/another"
    built = {"prefix": prefix, "variables": {"TORCH_EXTENSIONS_DIR": "/built"}}
    monkeypatch.setenv(BUILT_ENV, json.dumps(built))
    found: list[Path | None] = []
    monkeypatch.setattr(prebuilt, "load_as_built", lambda: found.append(prebuilt._folder()))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/own")
    prebuilt.use_built()
    assert found == ([Path("/built")] if is_ours else [])
    assert os.environ["TORCH_EXTENSIONS_DIR"] == "/own"


def begun(folder: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a rank that begins with a number."""
    (folder / CONFIG_DIR).mkdir()
    write_json(folder / SPEC_FILE, to_dict(spec()))
    write_json(folder / CONFIG_DIR / EDITS_FILE, {"observes": True})
    number = {"RANK": "0", "LOCAL_RANK": "0", SUBMITTED_ENV: "0"}
    return python(code, folder=folder, **number, **variables)


def test_a_rank_has_the_variables_before_deepspeed_chooses_by_them(folder: Path) -> None:
    built = {"prefix": sys.prefix, "variables": {"DS_ACCELERATOR": "cpu"}}
    code = "import os; print(os.environ.get('DS_ACCELERATOR'))"
    ran = begun(folder, code, **{BUILT_ENV: json.dumps(built)})
    assert ran.stdout == "cpu\n", ran.stderr


@pytest.mark.cases("code", "says")
def test_a_rank_that_leaves_by_itself_says_how(folder: Path, code: str, says: str) -> None:
    """`os._exit` passes everything by that the interpreter does at its end."""
    ran = begun(folder, code)
    report = read_json(folder / RANKS_DIR / "00.json")
    assert says in report["evidence"], ran.stderr
