"""DeepSpeed's compiled extensions: built once, before any trial, under a lock of ours.

DeepSpeed compiles an extension on first use, behind a lock *file* that a killed process leaves
for ever, and every later start waits on it. Here the build holds a kernel lock (flock), which
ends with its holder: whoever has it knows that a lock file that no process has open is stale.
"""

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from autotune.base.errors import FleetError
from autotune.base.guarded_process import GuardedProcess, temporary_root
from autotune.base.private import check_code_folder, open_lock, open_new, user_cache
from autotune.base.units import format_bytes, format_seconds
from autotune.contract import read_text
from autotune.trial.prebuilt import BUILT_FILE, COMPILER_PREFIX, NEEDED

_NVME = ("async_io", "pin_memory")
"""Extensions for swapping to a disk; releases before 0.19 pin memory within async_io."""
_LOCK_FILE = "autotune.lock"
ARCHITECTURES_ENV = "TORCH_CUDA_ARCH_LIST"
_SUFFIX = re.compile(r"(?<=\d)[af](?=\+|$)")
_ARCHITECTURE = re.compile(r"\d+\.\d+(\+PTX)?")
_LONGEST_BUILD_S = 3600.0
"""Time of one extension's build; minutes are usual."""
TOLD_EVERY_S = 15.0
"""Time after which a log is told again what compiles."""
_ROOM_BYTES = 32 * 2**20
"""Room that a build takes on a disk: 4 MiB on CPU, more with CUDA, and as much in TMPDIR."""
_LOOK_S = 1.0
"""Time between two looks at the compilers."""


def extensions_folder(accelerator: str, variables: Mapping[str, str] = os.environ) -> Path:
    """This environment's extensions, below `TORCH_EXTENSIONS_DIR` or the user's cache.

    It is keyed by everything that a build depends on: build.ninja holds paths of the environment,
    and the compiler is asked for this processor's instruction set. Two environments that shared
    one folder would rebuild it in the middle of each other's trials.
    """
    named = variables.get("TORCH_EXTENSIONS_DIR")
    root = Path(named) if named else user_cache(variables) / "extensions"
    key = [
        _location("torch"),
        _location("deepspeed"),
        sysconfig.get_path("include"),
        platform.python_version(),
        importlib.metadata.version("torch"),
        importlib.metadata.version("deepspeed"),
        _cpu_flags(),
        accelerator,
        variables.get(ARCHITECTURES_ENV, ""),
    ]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]
    return root if root.name == digest else root / digest  # the user names that one already


def needed(accelerator: str, *, nvme: bool = False) -> tuple[str, ...]:
    """Extensions that trials on this accelerator load.

    The one for disks needs libaio's headers, which many machines lack: it is asked for only where
    a trial swaps (`nvme`).
    """
    return (*NEEDED[accelerator], *(filter(_exists, _NVME) if nvme else ()))


def built(accelerator: str, *, nvme: bool = False) -> list[str]:
    """The needed extensions whose build in the folder has ended well."""
    missing = _missing(accelerator, nvme)
    return [name for name in needed(accelerator, nvme=nvme) if name not in missing]


def stale_locks(accelerator: str) -> list[Path]:
    """Lock files that nobody holds: every later start would wait on them for ever.

    While another process builds, its lock files are in use and none is called stale.
    """
    folder = extensions_folder(accelerator)
    if not _lock_files(folder):
        return []
    try:
        with _held(folder, blocking=False):
            return _lock_files(folder)
    except (BlockingIOError, FleetError):  # whoever builds next is told what is wrong there
        return []


def stale_locks_of_others() -> list[Path]:
    """Lock files that nobody holds in torch's own folder, where runs without autotune compile."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [path for folder in cache.glob("torch_extensions/*") for path in _lock_files(folder)]


def build(
    accelerator: str,
    on_line: Callable[[str], None],
    *,
    nvme: bool = False,
    on_progress: Callable[[str], None] | None = None,
    has_to_end: Callable[[], bool] = lambda: False,
) -> None:
    """Build what is missing, and remove stale locks; returns at once if all is built.

    It returns at once even while another process builds extensions that are not asked for here.

    The compilers run in sessions of their own, and the first interrupt waits for them. The second
    one ends them, and leaves none of torch's lock files. If this process is killed they end with
    it, and hold the lock until all of them have: the next build finds torch's lock files stale,
    and begins those extensions anew.

    Args:
        accelerator: `cpu` or `cuda`.
        on_line: Takes a line of what happens; of a compiler at work every `TOLD_EVERY_S`.
        nvme: Whether trials swap to a disk.
        on_progress: Takes the latter instead, every second: whoever redraws a line of a terminal.
        has_to_end: Whether to end at once, as by the second interrupt; asked every second.

    Raises:
        FleetError: A build failed; the message names its log, and the hint is for the cause. Or
            the disk is full, or the folder is another user's.
        KeyboardInterrupt: It was interrupted.
    """
    folder = extensions_folder(accelerator)
    _check_own(folder)
    if not _missing(accelerator, nvme):
        _remove_stale_locks(accelerator, on_line)
        return
    with _prepared(folder) as lock:
        _remove(_lock_files(folder), on_line)
        missing = _missing(accelerator, nvme)
        if not missing:
            return
        _check_room(folder)
        on_line(f"building DeepSpeed extensions once: {', '.join(missing)} (some minutes)")
        builders: dict[str, GuardedProcess] = {}
        try:
            for name in missing:
                builders[name] = _start_build(name, accelerator, folder, lock)
            _wait_for(builders, folder, on_line, on_progress, has_to_end)
        finally:
            for builder in builders.values():
                builder.kill()
            for builder in builders.values():
                builder.end()
            _remove(_lock_files(folder), lambda _: None)
            _remove_compilers(folder)


def _check_room(folder: Path) -> None:
    """See that the disks that a build writes to are not full.

    It is asked again after a failure: on a full disk even the log is empty.
    """
    for place, variable in ((folder, "TORCH_EXTENSIONS_DIR"), (Path(temporary_root()), "TMPDIR")):
        free_bytes = shutil.disk_usage(place).free
        if free_bytes < _ROOM_BYTES:
            free, most = map(format_bytes, (free_bytes, _ROOM_BYTES))
            named = {"place": place, "free": free, "most": most, "variable": variable}
            raise FleetError.of("engines.deepspeed.full_disk", **named)


def _check_own(folder: Path) -> None:
    """See that what is loaded is this user's own code, or root's."""
    try:
        check_code_folder(folder)
    except OSError as error:
        raise _refused(folder, error) from error


def _refused(folder: Path, error: OSError) -> FleetError:
    why = error.strerror or error
    return FleetError.of("engines.deepspeed.folder_of_extensions", folder=folder, why=why)


def build_command(accelerator: str, *, nvme: bool = False) -> tuple[str, ...]:
    """The command that calls `build` on the machine that runs it: a module and its arguments."""
    return ("autotune.engines.deepspeed.extensions", accelerator, *(["nvme"] if nvme else []))


def main() -> None:
    """Build what the arguments name, and say what happens, or what went wrong, a line each.

    Whoever started it ends it by a word on its standard input. With `folder` nothing is built: it
    says where the extensions are, if all of them are.
    """
    try:
        if "folder" in sys.argv[2:]:
            folder = extensions_folder(sys.argv[1])
            _check_own(folder)
            if not _missing(sys.argv[1], nvme="nvme" in sys.argv[2:]):
                _remove_stale_locks(sys.argv[1], lambda _: None)
                print(folder)
            return
        build(
            sys.argv[1],
            lambda line: print(line, flush=True),
            nvme="nvme" in sys.argv[2:],
            has_to_end=lambda: bool(select.select([0], [], [], 0)[0] and os.read(0, 1)),
        )
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except FleetError as error:
        print(f"{error.message}; {error.hint}", flush=True)
        sys.exit(1)


def _remove_stale_locks(accelerator: str, on_line: Callable[[str], None]) -> None:
    folder = extensions_folder(accelerator)
    if not _lock_files(folder):
        return
    with suppress(BlockingIOError), _held(folder, blocking=False):
        _remove(_lock_files(folder), on_line)


def _remove(locks: Iterable[Path], on_line: Callable[[str], None]) -> None:
    for path in locks:
        path.unlink(missing_ok=True)
        on_line(f"removed the stale lock {path}")


def environment(accelerator: str, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables that make a process load the extensions built here.

    This interpreter's folder of commands leads `PATH`, as in an activated environment: the ninja
    of one version does not read the log of another and compiles all again, in the middle of a
    trial. `variables` is what the process would have without them.
    """
    commands = sysconfig.get_path("scripts")
    made = {
        "TORCH_EXTENSIONS_DIR": str(extensions_folder(accelerator, variables)),
        "DS_ACCELERATOR": accelerator,
        "PATH": os.pathsep.join([commands, variables.get("PATH", os.defpath)]),
    }
    if listed := variables.get(ARCHITECTURES_ENV):
        made[ARCHITECTURES_ENV] = readable_architectures(listed)
    return made


def readable_architectures(listed: str) -> str:
    """The list of GPU architectures as DeepSpeed reads it: 9.0 for 9.0a.

    Empty, which stands for those of the devices, where an entry is a name such as Hopper.
    DeepSpeed takes numbers alone (op_builder/builder.py), torch takes all of these.
    """
    entries = [_SUFFIX.sub("", entry) for entry in _entries(listed)]
    return ";".join(entries) if all(map(_ARCHITECTURE.fullmatch, entries)) else ""


def _entries(listed: str) -> list[str]:
    return [entry for entry in re.split(r"[;\s]+", listed) if entry]


def misread(
    accelerator: str, variables: Mapping[str, str] = os.environ
) -> tuple[tuple[str, str], ...]:
    """What DeepSpeed's compiler would not read outside of a trial, with the fix."""
    listed = variables.get(ARCHITECTURES_ENV, "")
    read = readable_architectures(listed)
    if accelerator != "cuda" or read == ";".join(_entries(listed)):
        return ()
    what = (
        f"{ARCHITECTURES_ENV}={listed}: DeepSpeed reads numbers alone, as 9.0, and ends where "
        "it has to compile; trials get what it reads"
    )
    fix = f"export {ARCHITECTURES_ENV}='{read}'" if read else f"unset {ARCHITECTURES_ENV}"
    return ((what, fix),)


def _start_build(name: str, accelerator: str, folder: Path, lock: int) -> GuardedProcess:
    with open(open_new(folder / f"{name}.log"), "wb") as log:
        return GuardedProcess(
            [sys.executable, "-P", "-m", "autotune.trial.prebuilt", name, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment(accelerator)},
            # Its keeper ends last: the lock is free once nothing of the build is left.
            pass_fds=(lock,),
            wall_s=_LONGEST_BUILD_S,
        )


def _wait_for(
    builders: Mapping[str, GuardedProcess],
    folder: Path,
    on_line: Callable[[str], None],
    on_progress: Callable[[str], None] | None,
    has_to_end: Callable[[], bool],
) -> None:
    """Wait for the compilers, which work side by side, and say from time to time which do."""
    is_interrupted, started_s = False, time.monotonic()
    tell, period_s = on_progress or on_line, TOLD_EVERY_S if on_progress is None else _LOOK_S
    told_s = started_s
    while at_work := [name for name, builder in builders.items() if builder.poll() is None]:
        if any(builder.poll() for builder in builders.values()):
            break  # one has failed, and the others end with it
        now_s = time.monotonic()
        if now_s - told_s >= period_s:
            told_s, n = now_s, len(builders)
            so_far = f"{format_seconds(now_s - started_s)}, {n - len(at_work)} of {n} done"
            tell(f"compiling for {so_far}: {', '.join(at_work)}")
        try:
            with suppress(subprocess.TimeoutExpired):
                builders[at_work[0]].wait(_LOOK_S)
        except KeyboardInterrupt:
            if is_interrupted:
                raise
            is_interrupted = True
            on_line("ending once the compilers are done; Ctrl-C again ends them at once")
        if has_to_end():
            raise KeyboardInterrupt
    for name, builder in builders.items():
        if code := builder.poll():
            _refuse(name, code, folder)
    if is_interrupted:
        raise KeyboardInterrupt


def _refuse(name: str, code: int, folder: Path) -> NoReturn:
    """The error of a build that failed, in the log's words."""
    log = folder / f"{name}.log"
    lines = read_text(log).strip().splitlines()
    _check_room(folder)
    causes = (line.strip() for line in reversed(lines) if any(word in line for word in _CAUSES))
    line = next(causes, lines[-1] if lines else f"exit code {code}")
    row = "extension_of_disks" if name in _NVME else "extension_failed"
    raise FleetError.of(f"engines.deepspeed.{row}", name=name, line=line, log=log)


_CAUSES = ("Errno", "No space left", "quota exceeded", "Killed signal")
"""Words of log lines that tell more than the last line, which is ninja's."""


@contextmanager
def _prepared(folder: Path) -> Iterator[int]:
    """The folder, made and held, without what killed builds left."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(folder, error) from error
    _check_own(folder)
    with _held(folder, blocking=True) as lock:
        _remove_compilers(folder)
        yield lock


def _remove_compilers(folder: Path) -> None:
    for left in folder.glob(f"{COMPILER_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


def _missing(accelerator: str, nvme: bool) -> list[str]:
    folder, names = extensions_folder(accelerator), needed(accelerator, nvme=nvme)
    return [name for name in names if not (folder / name / BUILT_FILE).exists()]


def _lock_files(folder: Path) -> list[Path]:
    """The lock files that no process holds open.

    A rank compiles an extension that is not among ours, such as cpu_lion, without our lock. Torch
    keeps the lock file open while it compiles, and fails if the file is gone when it is done.
    """
    if not (found := sorted(folder.glob("*/lock"))):
        return []
    opened = _open_files()
    return [path for path in found if os.path.realpath(path) not in opened]


def _open_files() -> set[str]:
    opened: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended, or it is another user's
            for name in os.listdir(folder / "fd"):
                with suppress(OSError):  # it was closed meanwhile
                    opened.add(os.readlink(folder / "fd" / name))
    return opened


@contextmanager
def _held(folder: Path, *, blocking: bool) -> Iterator[int]:
    try:
        lock = open_lock(folder / _LOCK_FILE)
    except OSError as error:
        raise _refused(folder, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        yield lock
    finally:
        os.close(lock)


def _exists(name: str) -> bool:
    builders = Path(_location("deepspeed") or "").parent / "ops" / "op_builder"
    return (builders / f"{name}.py").exists()


def _location(package: str) -> str | None:
    """Where a package is installed; finding it does not import it."""
    spec = importlib.util.find_spec(package)
    return None if spec is None else spec.origin


def _cpu_flags() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    except OSError:
        pass
    return platform.processor()


if __name__ == "__main__":
    main()
