"""Faults of files: paths that others have prepared, odd names."""

import contextlib
import functools
import os
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from unittest import mock

from autotune.app.studies import state_of, studies
from autotune.base.errors import AutotuneError, StudyError
from autotune.base.files import write_text
from autotune.cost.knowledge import keep_lessons
from autotune.engines.deepspeed import extensions
from autotune.export.door import write_export
from autotune.record.study import Study
from autotune.record.table import load_table
from autotune.trial.prebuilt import BUILT_FILE
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, must
from tests.chaos.invariants import check_record, digests
from tests.chaos.mutations import NO_FILES
from tests.report.diagnosed import diagnosed
from tests.report.test_terminal import finished

OTHER = 12_345
"""A user who owns nothing here."""
_ANSWER_S = 60.0

ODD_NAMES = {
    "200 nines": "9" * 200,
    "ten digits": "1234567890",
    "a letter behind": "0007x",
    "a zero in front": "00007",
    "too few digits": "7",
    "a sign": "-007",
    "a line break": "0007\n",
    "Arabic digits": "\u0660\u0660\u0660\u0667",
    "digits above the line": "\u00b2" * 4,
    "an escape sequence": "\x1b[31m0007",
    "no text": "\udcff0007",
}
"""What it is -> name of a folder among the trials."""


def faults() -> Iterator[Fault]:
    """All of them."""
    for name, spelled in ODD_NAMES.items():
        yield Fault(
            name=f"odd name: {name}",
            inject=functools.partial(_odd_name, spelled),
            in_short=name == "200 nines",
        )
    for what, prepare in _PREPARED_LOCKS.items():
        for place, use in _LOCKS.items():
            yield Fault(
                name=f"prepared path: {place} is {what}",
                inject=functools.partial(_prepared_lock, prepare, use),
                in_short=(what, place) == ("a link to a file", "the lock of a study"),
            )
    for place, (path, use) in _FOLDERS.items():
        yield Fault(
            name=f"prepared path: another user's folder is {place}",
            inject=functools.partial(_folder_of_another, path, use),
            needs=_needs_root,
        )
    for what, prepare in _PREPARED_OUTPUTS.items():
        yield Fault(
            name=f"prepared path: a file to be written is {what}, which all may write",
            inject=functools.partial(_prepared_output, prepare),
            needs=_needs_root,
        )


_PREPARED_OUTPUTS: dict[str, Callable[[Path, Path], object]] = {
    "another user's file": lambda path, _: (path.touch(), os.chown(path, OTHER, OTHER)),
    "another user's link": lambda path, victim: (
        path.symlink_to(victim),
        os.chown(path, OTHER, OTHER, follow_symlinks=False),
    ),
    "a pipe": lambda path, _: os.mkfifo(path),
    "a device": lambda path, _: os.mknod(path, stat.S_IFCHR, os.makedev(1, 3)),
}


def _needs_root() -> str:
    return "" if os.getuid() == 0 else "only root makes files of others"


def _odd_name(name: str, ground: Ground) -> None:
    """A folder of another name is none of ours: all trials are read, and nothing is lost."""
    study = finished(ground.folder(), diagnosed)
    before, number = digests(study), study.next_number()
    (study.trials_folder / name).mkdir()
    (study.root / name).mkdir()
    with _in_time():
        check_record(study, before)
        must(study.next_number() == number, "it counts as a trial")
        must(len(load_table(study.folder)) == len(before), "the table has a row for it")
        must([each.name for each in studies(study.root)] == [study.name], "it is a study")
        state_of(study)


def _prepared_lock(
    prepare: Callable[[Path, Path], object],
    use: Callable[[Path], tuple[Path, Callable[[], None]]],
    ground: Ground,
) -> None:
    """What is no file of ours is refused with its path; what it leads to stays as it is."""
    folder = ground.folder()
    with _alone(folder):
        path, run = use(folder)
        victim = folder / "victim"
        victim.write_text("precious")
        prepare(path, victim)
        _must_be_refused(run, path)
        must(victim.read_text() == "precious", "it was written elsewhere")
        must(not (folder / "new").exists(), "a file was made elsewhere")
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()
        run()


def _prepared_output(prepare: Callable[[Path, Path], object], ground: Ground) -> None:
    """What is written is a new file of ours, which nobody else may write."""
    folder = ground.folder()
    path, victim = folder / "report.html", folder / "victim"
    victim.write_text("precious")
    victim.chmod(0o666)
    prepare(path, victim)
    if not path.is_symlink():
        path.chmod(0o666)
    with _in_time():
        write_text(path, "ours", error=StudyError, hint="name another")
    found = path.lstat()
    must(stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid(), "it is no file of ours")
    must(not found.st_mode & stat.S_IWOTH, "everybody may write in it")
    must((path.read_text(), victim.read_text()) == ("ours", "precious"), "written elsewhere")


def _folder_of_another(
    where: str, use: Callable[[Path], Callable[[], None]], ground: Ground
) -> None:
    """A folder that another user has put where everybody may write is refused with its owner."""
    around = ground.folder() / "open"
    folder = around / where
    folder.mkdir(parents=True)
    folder.parent.chmod(0o1777)
    os.chown(folder, OTHER, OTHER)
    with _alone(around.parent):
        run = use(around)
        before = sorted(folder.rglob("*"))
        _must_be_refused(run, folder, f"user {OTHER}")
        must(sorted(folder.rglob("*")) == before, "something was written there")


def _must_be_refused(run: Callable[[], None], path: Path, *said: str) -> None:
    try:
        with _in_time():
            run()
    except AutotuneError as error:
        for word in (str(path), *said):
            must(word in error.message, f"{word!r} is not said: {error.message}")
        must(error.hint, "no fix is said")
    else:
        must(False, "it was used")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Temporary files, the user's cache and extensions of their own, below a folder."""
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    told = {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
    }
    with (
        mock.patch.dict(os.environ, told),
        mock.patch.object(tempfile, "tempdir", str(folder / "tmp")),
    ):
        yield


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def end(_signal: int, _frame: FrameType | None) -> None:
        must(False, f"no answer after {_ANSWER_S:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, _ANSWER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _study_lock(folder: Path) -> tuple[Path, Callable[[], None]]:
    study = Study(folder / "results", "mine")
    study.trials_folder.mkdir(parents=True)
    return study.folder / "lock", functools.partial(_lock_once, study)


def _lock_once(study: Study) -> None:
    study.lock()
    study.unlock()


def _lock_of_lessons(folder: Path) -> tuple[Path, Callable[[], None]]:
    path = folder / "knowledge.json"
    return folder / "knowledge.json.lock", functools.partial(keep_lessons, path, "mine", [])


def _lock_of_extensions(_: Path) -> tuple[Path, Callable[[], None]]:
    folder = extensions.extensions_folder("cpu")
    for name in extensions.needed("cpu"):
        (folder / name).mkdir(parents=True)
        (folder / name / BUILT_FILE).touch()
    stale = folder / "fused_adam" / "lock"

    def run() -> None:
        stale.touch()
        extensions.build("cpu", lambda _: None)

    return folder / extensions._LOCK_FILE, run


def _of_extensions(around: Path) -> Callable[[], None]:
    os.environ["TORCH_EXTENSIONS_DIR"] = str(around / "extensions")
    return functools.partial(extensions.build, "cpu", lambda _: None)


_LOCKS = {
    "the lock of a study": _study_lock,
    "the lock of the lessons": _lock_of_lessons,
    "the lock of the extensions": _lock_of_extensions,
}
_PREPARED_LOCKS: dict[str, Callable[[Path, Path], object]] = {
    "a link to a file": lambda path, victim: path.symlink_to(victim),
    "a link to nothing": lambda path, victim: path.symlink_to(victim.with_name("new")),
    "a link to itself": lambda path, victim: path.symlink_to(path),
    "another file's second name": lambda path, victim: path.hardlink_to(victim),
    "a pipe": lambda path, victim: os.mkfifo(path),
    "a socket": lambda path, victim: NO_FILES["a socket"](path),
    "a folder": lambda path, victim: path.mkdir(),
}
_FOLDERS: dict[str, tuple[str, Callable[[Path], Callable[[], None]]]] = {
    "that of all studies": (
        "results",
        lambda around: functools.partial(_lock_once, Study(around / "results", "mine")),
    ),
    "that of a study": (
        "results/mine",
        lambda around: functools.partial(_lock_once, Study(around / "results", "mine")),
    ),
    "that of the trials": (
        "results/mine/trials",
        lambda around: functools.partial(_lock_once, Study(around / "results", "mine")),
    ),
    "that of an export": (
        "export",
        lambda around: lambda: write_export(around / "export", {"run.sh": ""}, marker={}) and None,
    ),
    "that of the lessons": (
        "cache",
        lambda around: functools.partial(keep_lessons, around / "cache" / "k.json", "mine", []),
    ),
    "that of the extensions": ("extensions", _of_extensions),
}
