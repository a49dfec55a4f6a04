"""An environment without a package index: `python -m tests.gpu.offline ENVIRONMENT WHEELS`.

It holds the wheels of a folder and this project, and sees the packages of the Python that runs
this, which may itself be of an environment. Standard library only.
"""

import sys
import sysconfig
import venv
from pathlib import Path

from tests.captured import captured

REPOSITORY = Path(__file__).resolve().parents[2]
_SEEN = "packages_beside.pth"


def main(arguments: list[str]) -> int:
    """Make the environment, or complete it."""
    environment, wheels = Path(arguments[0]), Path(arguments[1])
    make(environment, wheels, Path(sysconfig.get_path("purelib")))
    return 0


def make(environment: Path, wheels: Path, beside: Path) -> Path:
    """Make an environment of wheels that sees the packages of a folder; returns its interpreter.

    Raises:
        SystemExit: pip cannot install them; with what it said.
    """
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=False, symlinks=True)
    own = next(environment.glob("lib/python*/site-packages"))
    # Its own come first on the path, so a wheel may be newer than the package beside it.
    (own / _SEEN).write_text(f"import site; site.addsitedir({str(beside)!r})\n", encoding="utf-8")
    files = sorted(map(str, wheels.glob("*.whl")))
    install = (str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps")
    if files:
        _run([*install, "--ignore-installed", *files])
    _run([*install, "--no-build-isolation", "--editable", str(REPOSITORY)])
    return python


def _run(command: list[str]) -> None:
    ran = captured(command)
    if ran.returncode:
        sys.exit(f"{' '.join(command)}\n{ran.stdout}{ran.stderr}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
