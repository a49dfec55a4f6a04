"""What bash makes of a launch script: the words and the environment of the training it starts."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_TELLS = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
program = os.path.basename(sys.argv[0])
if program == "scontrol":
    print("node1")
elif program == "srun":
    start = next(at for at, word in enumerate(words) if word in ("bash", "python", "torchrun"))
    os.execvp(words[start], words[start:])
elif any(word.endswith(".py") for word in words):
    script = next(at for at, word in enumerate(words) if word.endswith(".py"))
    with open(os.environ["TOLD"], "w") as file:
        json.dump({{"words": words[script + 1 :], "variables": dict(os.environ)}}, file)
"""
_PROGRAMS = ("torchrun", "python", "python3", "srun", "scontrol")


@dataclass(frozen=True, kw_only=True)
class Started:
    """The training that a script starts."""

    words: list[str]
    """Those behind the training script."""
    variables: dict[str, str]


def started_by(script: Path, folder: Path) -> Started:
    """Run a script with programs that only say what they were started with."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in _PROGRAMS:
        (programs / name).write_text(_TELLS)
        (programs / name).chmod(0o755)
    told = folder / "told.json"
    told.unlink(missing_ok=True)
    subprocess.run(
        ["bash", str(script.resolve())],
        env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "TOLD": str(told)},
        cwd=folder,
        capture_output=True,
        check=False,
    )
    data = json.loads(told.read_text())
    return Started(words=data["words"], variables=data["variables"])
