"""Wheels for a machine without a package index: `python -m tests.gpu.wheels FOLDER`.

The folder gets every wheel that such a machine lacks: Python 3.12 with the packages that
docs/gpu.md lists. Each is there once. DeepSpeed, which its index has as source only, is built
here, without compiled extensions. Then the folder is proved: a fresh environment that sees
stand-ins of the listed packages resolves this project from it, with no index.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from tests.captured import captured
from tests.gpu.stages import REPOSITORY

PAGE = REPOSITORY / "docs" / "gpu.md"
PYTHON = "3.12"
"""Release of Python on the machine that the page describes."""
MOST_BYTES = 60 * 2**20
"""What such a machine takes along."""
BESIDE = ("accelerate", "megatron-core", "peft")
"""Packages that stages use and that the project does not depend on."""
_LISTED = re.compile(r"^```text packages\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class WheelsError(Exception):
    """A folder of wheels that cannot be made, or does not do; says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill a folder, and prove it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument(
        "--python", type=Path, help=f"interpreter of the machine's release; else a {PYTHON}"
    )
    parser.add_argument(
        "--prove", action="store_true", help="change nothing: only prove the folder"
    )
    options = parser.parse_args(arguments)
    try:
        python = options.python or find_python(PYTHON)
        if not shutil.which(python):
            raise WheelsError(f"--python {python} is no program")
        listed = packages_of(PAGE)
        if not options.prove:
            fill(options.folder, python, listed)
        print(prove(options.folder, python, listed))
    except WheelsError as error:
        print(f"gpu-wheels: {error}", file=sys.stderr)
        return 1
    return 0


def packages_of(page: Path) -> dict[str, str]:
    """The packages of the machine that a page describes: name -> version.

    Raises:
        WheelsError: The page has no such list.
    """
    block = _LISTED.search(page.read_text(encoding="utf-8"))
    if block is None:
        raise WheelsError(f"{page}: no block '```text packages' that lists NAME==VERSION")
    pairs = (entry.split("==") for entry in block.group(1).split())
    return {canonicalize_name(name): version for name, version in pairs}


def find_python(release: str) -> Path:
    """An interpreter of a release, on the path or among pyenv's.

    Raises:
        WheelsError: There is none.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for candidate in (
        shutil.which(f"python{release}"),
        *sorted(pyenv.glob(f"{release}*/bin/python"), reverse=True),
    ):
        if candidate is None:
            continue
        ran = captured(
            [candidate, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        )
        if ran.stdout.strip() == release:
            return Path(candidate)
    raise WheelsError(
        f"no Python {release} is here, which the machine of {PAGE.name} has: install one, or name "
        "it by --python"
    )


def requirements() -> list[Requirement]:
    """What this project needs, and what the stages use beside it."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    return [Requirement(text) for text in (*project["project"]["dependencies"], *BESIDE)]


def fill(folder: Path, python: Path, listed: Mapping[str, str]) -> None:
    """Download or build what is missing, and remove what is not wanted.

    Raises:
        WheelsError: A package has no wheel, or all together are too large.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        pip = environment_with(listed, python, Path(scratch, "environment"))
        constraints = Path(scratch, "constraints.txt")
        constraints.write_text("\n".join(_pins(listed)), encoding="utf-8")
        _build("deepspeed", folder, constraints)
        command = (*pip, "install", "--dry-run", "--quiet", "--only-binary", ":all:")
        where = ("--find-links", str(folder), "--constraint", str(constraints), "--report", "-")
        wanted = json.loads(_run([*command, *where, *map(str, requirements())]))["install"]
        names = [
            f"{entry['metadata']['name']}=={entry['metadata']['version']}" for entry in wanted
        ]
        download = ("download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest")
        _run([*pip, *download, str(folder), "--find-links", str(folder), *names])
    kept = {canonicalize_name(entry["metadata"]["name"]): entry["metadata"] for entry in wanted}
    for wheel in folder.glob("*.whl"):
        name, version, *_ = parse_wheel_filename(wheel.name)
        if name not in kept or kept[name]["version"] != str(version):
            wheel.unlink()
    _check_size(folder)


def environment_with(listed: Mapping[str, str], python: Path, folder: Path) -> tuple[str, ...]:
    """Make an environment that holds nothing but stand-ins of packages: their names and versions.

    Returns:
        The command of its pip. That is this environment's own, which is newer than the bundled
        one, and can do more.
    """
    _run([str(python), "-m", "venv", "--without-pip", str(folder)])
    packages = next(folder.glob("lib/python*/site-packages"))
    for name, version in listed.items():
        info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(about, encoding="utf-8")
        (info / "INSTALLER").write_text("stand-in\n", encoding="utf-8")
        # pip removes these where it brings a newer one.
        files = ("METADATA", "INSTALLER", "RECORD")
        record = "".join(f"{info.name}/{file},,\n" for file in files)
        (info / "RECORD").write_text(record, encoding="utf-8")
    return (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"))


def prove(folder: Path, python: Path, listed: Mapping[str, str]) -> str:
    """Install this project from a folder of wheels, with no index, beside stand-ins.

    Returns:
        What was proved, in a line.

    Raises:
        WheelsError: Something is missing, or does not fit.
    """
    _check_size(folder)
    wheels = [parse_wheel_filename(wheel.name)[0] for wheel in folder.glob("*.whl")]
    if not wheels:
        raise WheelsError(f"{folder} holds no wheel: make gpu-wheels WHEELS={folder}")
    if twice := {name for name in wheels if wheels.count(name) > 1}:
        raise WheelsError(
            f"{folder} holds {', '.join(sorted(twice))} more than once: remove the old one"
        )
    with tempfile.TemporaryDirectory() as scratch:
        project = _build(str(REPOSITORY), Path(scratch), None)
        pip = environment_with(listed, python, Path(scratch, "environment"))
        found = ("install", "--quiet", "--no-index", "--find-links", str(folder))
        try:
            _run([*pip, *found, str(project), *BESIDE])
            _run([*pip, "check"])
        except WheelsError as error:
            raise WheelsError(
                f"{folder} lacks something that this project needs: make gpu-wheels "
                f"WHEELS={folder} adds it\n{error}"
            ) from error
    mib = _size(folder.glob("*.whl")) / 2**20
    return f"{folder}: {len(wheels)} wheels, {mib:.1f} MiB; all that this project needs is there"


def _pins(listed: Mapping[str, str]) -> list[str]:
    """The versions that this release was tested with, of packages that the machine lacks."""
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return [str(pin) for pin in pins if canonicalize_name(pin.name) not in listed]


def _build(source: str, folder: Path, constraints: Path | None) -> Path:
    """Build a wheel by this environment's own packages; returns the file."""
    pinned = () if constraints is None else ("--constraint", str(constraints))
    with tempfile.TemporaryDirectory() as made:
        pip = (
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
        )
        variables = {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
        _run([*pip, "--wheel-dir", made, *pinned, source], variables)
        (wheel,) = Path(made).glob("*.whl")
        return Path(shutil.move(wheel, folder / wheel.name))


def _check_size(folder: Path) -> None:
    wheels = sorted(folder.glob("*.whl"), key=lambda wheel: -wheel.stat().st_size)
    if (total := _size(wheels)) > MOST_BYTES:
        largest = ", ".join(f"{w.name} {w.stat().st_size / 2**20:.1f} MiB" for w in wheels[:3])
        raise WheelsError(
            f"{folder} holds {total / 2**20:.1f} MiB, and {MOST_BYTES / 2**20:.0f} are the most "
            f"that travel; the largest are {largest}"
        )


def _size(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _short(command: Sequence[str]) -> str:
    """A command of pip by its name: `pip install`."""
    words = [word for word in command if word in ("install", "download", "wheel", "check")]
    return f"pip {words[0]}" if words else " ".join(command[:3])


def _run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    ran = captured(
        command,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **(variables or {})},
        cwd=tempfile.gettempdir(),
    )
    if ran.returncode:
        wrong = [line for line in ran.stderr.splitlines() if line.strip()]
        wrong = wrong or [line for line in ran.stdout.splitlines() if line.strip()]
        raise WheelsError("\n".join([f"{_short(command)} failed:", *(wrong or [ran.stderr])]))
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
