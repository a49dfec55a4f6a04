"""Start a user's own command on this node, tied to its parent, and with a way to its ranks.

`python -m autotune.trial.guest.launcher FOLDER PORT`. The command, its folder and its arguments
are the trial's; its interpreter and packages are the user's. What it starts finds `begin.py`
through the environment, however many launchers stand in between.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from autotune.contract import PARENT_ENV, RANKS_DIR, SPEC_FILE, TRIAL_ENV, TrialSpec, read_json
from autotune.trial.descent import adopt_orphans, below, end_all_below, has_ended
from autotune.trial.guest.begin import GUEST_ENV, OWNER_FILE, REACHED_FILE, owner_of
from autotune.trial.guest.quiet import VARIABLES
from autotune.trial.launcher import LOOPBACK, end_with_parent

SITE = Path(__file__).resolve().parent / "site"
"""Folder of the `sitecustomize` that reaches the ranks."""
OWNER_FILES = "*.owner"
"""Pattern of `begin.OWNER_FILE`."""
LOOK_S = 0.5
"""Time between two looks for ranks that have begun."""
LINGER_S = 10.0
"""Time that a command has to end in after the first of its ranks has."""
_TORCH = b"libtorch_python"
"""Library that a process has mapped once it has imported torch."""
_UNREACHED = "was not reached through PYTHONPATH"
_PORTS = ("PET_MASTER_PORT", "MASTER_PORT", "MAIN_PROCESS_PORT")
"""Variables by which torchrun, bare scripts and others learn the port to meet at."""


def main() -> None:
    """Run the command until it has ended, and end what it leaves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what Ctrl-C means
    end_with_parent(int(os.environ[PARENT_ENV]))
    adopt_orphans()
    folder, port = Path(sys.argv[1]), sys.argv[2]
    workload = TrialSpec.from_dict(read_json(folder / SPEC_FILE)).workload
    try:
        process = subprocess.Popen(
            with_port(workload.command, port),
            cwd=workload.folder or None,
            env=guest_environment(os.environ, folder, port),
            stdin=subprocess.DEVNULL,
            preexec_fn=_ends_with_us,
        )
    except OSError as error:
        print(f"launcher: {workload.command[0]}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    try:
        code = wait(process, folder)
    finally:
        end_all_below()
    sys.exit(code if code >= 0 else 128 - code)


def with_port(command: list[str], port: str) -> list[str]:
    """A command with the port to meet at, which DeepSpeed's launcher takes from a flag alone."""
    is_deepspeeds = os.path.basename(command[0]) == "deepspeed"
    if not is_deepspeeds or any(word.startswith("--master_port") for word in command):
        return command
    return [command[0], "--master_port", port, *command[1:]]


def wait(process: "subprocess.Popen[bytes]", folder: Path) -> int:
    """Wait until a command has ended, and not for what it does after its trial; its exit code.

    A trial is over with its first rank: others have ended as well, or hang for want of it. A
    command may go on to evaluate, or may start its ranks again. A rank that is not reached would
    train to its end: it is not waited for at all.
    """
    ended = os.pidfd_open(process.pid)
    try:
        while not _is_over(folder):
            if select.select([ended], [], [], LOOK_S)[0]:
                code = process.wait()
                if not code and not any((folder / RANKS_DIR).glob(OWNER_FILES)):
                    return _say(_no_rank(folder))
                return code
            if (rank := _unreached_rank(folder)) is not None:
                return _say(f"rank {rank} {_UNREACHED}")
        if select.select([ended], [], [], LINGER_S)[0]:
            return process.wait()
    finally:
        os.close(ended)
    print(f"launcher: the command was ended {LINGER_S:.0f} s after its ranks", file=sys.stderr)
    return 1


def _is_over(folder: Path) -> bool:
    """Whether a rank on this machine has ended."""
    owners = map(owner_of, (folder / RANKS_DIR).glob(OWNER_FILES))
    return any(pid is not None and has_ended(pid) for pid in owners)


def _unreached_rank(folder: Path) -> str | None:
    """Number of a rank that has imported torch and never said that it is one; None: there is none.

    One that is reached says so before anything of the user's runs.
    """
    for pid in below(os.getpid()):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            given = dict(line.split(b"=", 1) for line in lines if b"=" in line)
            number = given.get(b"RANK", b"").decode(errors="replace")
            if not number.isdecimal() or b"LOCAL_RANK" not in given:
                continue
            owner = folder / RANKS_DIR / OWNER_FILE.format(rank=int(number))
            if not owner.exists() and _TORCH in Path(f"/proc/{pid}/maps").read_bytes():
                return number
    return None


def _no_rank(folder: Path) -> str:
    """Why a command ended well and no rank was seen."""
    if (folder / RANKS_DIR / REACHED_FILE).exists():
        return "the command ended, and it never called deepspeed.initialize"
    return f"what it started {_UNREACHED}"


def _say(problem: str) -> int:
    print(f"GuestError: {problem}", file=sys.stderr)
    return 1


def guest_environment(given: Mapping[str, str], folder: Path, port: str) -> dict[str, str]:
    """The user's environment, with the way to their ranks in it, and trackers switched off."""
    path = os.pathsep.join(filter(None, [str(SITE), given.get("PYTHONPATH", "")]))
    return {
        **given,
        **VARIABLES,
        **dict.fromkeys(_PORTS, port),
        "MASTER_ADDR": given.get("MASTER_ADDR", LOOPBACK),
        "PYTHONPATH": path,
        GUEST_ENV: given.get(TRIAL_ENV, str(folder)),
    }


def _ends_with_us() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent(os.getppid())


if __name__ == "__main__":
    main()
