"""Start a user's own command on this node, tied to its parent, and with a way to its ranks.

`python -m autotune.trial.guest.launcher FOLDER PORT N_RANKS`. The command, its folder and its
arguments are the trial's; its interpreter and packages are the user's. What it starts finds
`begin.py` through the environment, however many launchers stand in between.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from autotune.base.keeper import below, end_with_parent, keeping
from autotune.contract import (
    PARENT_ENV,
    RANKS_DIR,
    SPEC_FILE,
    STDERR_FILE,
    TRIAL_ENV,
    ContractError,
    Phase,
    TrialSpec,
    read_json,
    read_tail,
    signal_of,
    write_json,
)
from autotune.trial.guest.begin import GUEST_ENV, OWNER_FILE, REACHED_FILE, owner_of
from autotune.trial.guest.quiet import VARIABLES
from autotune.trial.launcher import EXIT_FILE
from autotune.trial.rendezvous import LOOPBACK

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
_ROOT_CAUSE = re.compile(
    r"^Root Cause \(first observed failure\):\n(?:.*\n){1,4}? *rank +: (?P<rank>\d+) .*\n"
    r" *exitcode +: -(?P<signal>\d+) ",
    re.MULTILINE,
)
"""Last words of torchrun and what starts it: torch/distributed/elastic/multiprocessing/errors."""
_DIED_WITH = re.compile(
    r"^subprocess\.CalledProcessError: .* died with <Signals\.\w+: (?P<signal>\d+)>", re.MULTILINE
)
"""Last words of `accelerate launch` with one process."""
_TAIL_BYTES = 64 * 1024
_EXIT_CODE = 48
"""Place of `exit_code` among the fields of /proc/PID/stat that follow the state: see proc(5)."""
_PORTS = ("PET_MASTER_PORT", "MASTER_PORT", "MAIN_PROCESS_PORT")
"""Variables by which torchrun, bare scripts and others learn the port to meet at."""


def main() -> None:
    """Run the command until it has ended, and end what it leaves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides what Ctrl-C means
    folder, port, n_ranks = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    workload = TrialSpec.from_dict(read_json(folder / SPEC_FILE)).workload
    with keeping(int(os.environ[PARENT_ENV])):
        try:
            process = subprocess.Popen(
                workload.command,
                cwd=workload.folder or None,
                env=guest_environment(os.environ, folder, port),
                stdin=subprocess.DEVNULL,
                preexec_fn=_ends_with_us,
            )
        except OSError as error:
            print(f"launcher: {workload.command[0]}: {error.strerror or error}", file=sys.stderr)
            sys.exit(2)
        code = wait(process, folder, n_ranks)
    sys.exit(code if code >= 0 else 128 - code)


def wait(process: "subprocess.Popen[bytes]", folder: Path, n_ranks: int) -> int:
    """Wait until a command has ended, and not for what it does after its trial; its exit code.

    A trial is over with its first rank: others end as well, or hang for want of it. Once each of
    the `n_ranks` of this node has reported all its steps, nothing that the command still does
    matters. Where one has not, the command has a while to say why. A rank that is not reached
    would train to its end: it is not waited for at all.
    """
    with contextlib.ExitStack() as closing:
        watch = _RanksWatch(process, folder / RANKS_DIR, closing)
        code = _wait(process, folder, n_ranks, watch)
        signalled = watch.signalled or _signals_in_log(folder, code, n_ranks)
    if signalled:
        codes = {str(rank): -number for rank, number in signalled.items()}
        write_json(folder / RANKS_DIR / EXIT_FILE.format(node=0), codes)
    return code


def _wait(
    process: "subprocess.Popen[bytes]", folder: Path, n_ranks: int, watch: "_RanksWatch"
) -> int:
    while not watch.ended:
        if watch.command_ends_within(LOOK_S):
            code = process.wait()
            return _say(_no_rank(folder)) if not code and not watch.n_ranks else code
        if watch.n_ranks < n_ranks and (rank := _unreached_rank(folder)) is not None:
            return _say(f"rank {rank} {_UNREACHED}")
    until_s = time.monotonic() + LINGER_S
    while (left_s := until_s - time.monotonic()) > 0:
        if len(watch.ended) == n_ranks and all(map(_has_reported_all, watch.ended)):
            return 0
        if watch.command_ends_within(left_s):
            return process.wait()
    print(f"launcher: the command was ended {LINGER_S:.0f} s after its ranks", file=sys.stderr)
    return 1


def _signals_in_log(folder: Path, code: int, n_ranks: int) -> dict[int, int]:
    """The rank that a signal ended, and the signal, as the command's own launcher tells it.

    The last words of torchrun name both. With one rank the signal is enough: it is in the last
    words of `accelerate launch`, or in the exit code of the command or of its shell.
    """
    text = ""
    with contextlib.suppress(OSError):
        text = read_tail(folder / STDERR_FILE, _TAIL_BYTES)
    if match := _ROOT_CAUSE.search(text):
        return {int(match["rank"]): int(match["signal"])}
    if n_ranks > 1:
        return {}
    if match := _DIED_WITH.search(text):
        return {0: int(match["signal"])}
    return {0: number} if (number := signal_of(code)) else {}


class _RanksWatch:
    def __init__(
        self, process: "subprocess.Popen[bytes]", folder: Path, closing: contextlib.ExitStack
    ) -> None:
        self._folder = folder
        self._closing = closing
        self._command = self._opened(process.pid)
        self._running: dict[int, Path] = {}
        """Descriptor of a rank's process -> its owner's file."""
        self.ended: set[Path] = set()
        """Owners' files of the ranks that have ended."""
        self.signalled: dict[int, int] = {}
        """Signals that ended the first ranks, by rank: those that end later may have got theirs
        from a launcher that ends all."""

    @property
    def n_ranks(self) -> int:
        return len(self._running) + len(self.ended)

    def command_ends_within(self, most_s: float) -> bool:
        """Wait until the command or a rank ends; True if the command has."""
        ready = select.select([self._command, *self._running], [], [], most_s)[0]
        ended = {self._running.pop(process) for process in ready if process in self._running}
        if not self.ended:
            found = {int(path.stem): _signal_that_ended(path) for path in ended}
            self.signalled = {rank: number for rank, number in found.items() if number}
        self.ended |= ended
        known = {*self._running.values(), *self.ended}
        for path in set(self._folder.glob(OWNER_FILES)) - known:
            if (pid := owner_of(path)) is None:
                continue
            try:
                self._running[self._opened(pid)] = path
            except OSError:
                self.ended.add(path)
        return self._command in ready

    def _opened(self, pid: int) -> int:
        """Descriptor that becomes readable at the end of a process."""
        descriptor = os.pidfd_open(pid)
        self._closing.callback(os.close, descriptor)
        return descriptor


def _signal_that_ended(owner: Path) -> int:
    """The signal that ended the rank of an owner's file; 0: none, or that is not known.

    The kernel tells it as long as the rank's parent has not asked for it.
    """
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{owner_of(owner)}/stat").read_text(encoding="utf-8", errors="replace")
        # A command's name may hold anything: the fields come after the last parenthesis.
        state, *fields = stat.rpartition(")")[2].split()
        return os.WTERMSIG(int(fields[_EXIT_CODE])) if state == "Z" else 0
    return 0


def _has_reported_all(owner: Path) -> bool:
    with contextlib.suppress(ContractError):
        report = read_json(owner.with_suffix(".json"))
        return report.get("phase") == Phase.TEARDOWN and not report.get("outcome")
    return False


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
