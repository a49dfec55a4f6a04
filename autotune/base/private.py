"""Paths that others can prepare: folders of code, locks that follow no link.

Whoever may write in a folder can put a file, a link or a pipe where one of ours is expected. What
a user names may lie anywhere, but not in what another user made in a folder that is open to
everybody.
"""

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path


class PreparedError(PermissionError):
    """Another user made what stands at a path, or may replace it; `strerror` says what and who."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(errno.EPERM, f"{path} {problem}", str(path))


KNOWLEDGE_ENV = "AUTOTUNE_KNOWLEDGE"
"""Environment variable that names the file of what studies taught."""


def user_cache(variables: Mapping[str, str] = os.environ) -> Path:
    """Autotune's folder in the user's cache.

    Source: XDG Base Directory Specification, `XDG_CACHE_HOME`.
    """
    base = variables.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "autotune"


def check_code_folder(folder: Path) -> None:
    """See that nobody but this user and root decides what a folder holds: code is loaded from it.

    Others of the user's group may: many systems give every user a group. It need not be there.

    Raises:
        PreparedError: Another user owns it or the folder around it, or everybody may write in it
            or replace it.
        OSError: It cannot be looked at.
    """
    folder = Path(os.path.realpath(folder))
    if not folder.exists():  # it will be made in the first that is there
        _check_owner(next(above for above in folder.parents if above.exists()))
        return
    _check_owner(folder)
    _check_owner(folder.parent)
    if os.stat(folder).st_mode & stat.S_IWOTH:
        raise PreparedError(folder, "is open to everybody's writing: `chmod o-w` closes it")
    _check_movable(folder)


def _check_owner(folder: Path) -> None:
    found = os.stat(folder)
    if found.st_uid not in (os.getuid(), 0):
        raise PreparedError(folder, f"belongs to {_owner(found)}, whose code would run as you")


def refuse_prepared(path: Path) -> None:
    """Refuse what another user has put where everybody may write, such as into /tmp.

    Where only some may write, who may is the business of those who share the folder. What is not
    there is well.

    Raises:
        PreparedError: Another user made it, a folder that it lies in, or a link that leads there.
        OSError: It cannot be looked at.
    """
    ways = (Path(os.path.abspath(path)), Path(os.path.realpath(path)))
    for place in dict.fromkeys(step for way in ways for step in (*reversed(way.parents), way)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found, around = os.lstat(place), os.stat(place.parent)
            if around.st_mode & stat.S_IWOTH and found.st_uid not in (os.getuid(), 0):
                kind = "is a link of" if stat.S_ISLNK(found.st_mode) else "belongs to"
                problem = f"{kind} {_owner(found)}, in a folder where everybody may write"
                raise PreparedError(place, problem)


def _check_movable(folder: Path) -> None:
    """See that nobody can put another folder in the place of this one."""
    around = os.stat(folder.parent)
    if around.st_uid not in (os.getuid(), 0):
        who = _owner(around)
        raise PreparedError(folder, f"can be replaced by {who}, who owns {folder.parent}")
    if around.st_mode & stat.S_IWOTH and not around.st_mode & stat.S_ISVTX:
        raise PreparedError(
            folder, f"can be replaced by anybody: everybody may write in {folder.parent}"
        )


def open_lock(path: Path, mode: int = 0o600) -> int:
    """A descriptor to lock a file by, and to read and write it; it is made where it is missing.

    No link is followed, nothing is truncated and nobody is waited for. Whoever may read it may
    hold it, which is why others may not (`mode`) where they need not.

    Raises:
        PreparedError: It is a link, has a second name, or is no file.
        OSError: It cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
            raise _no_lock(path, os.lstat(path)) from error
        raise
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(handle)
        raise _no_lock(path, found)
    return handle


def open_new(path: Path) -> int:
    """A descriptor to write a file that is new, in place of what was there.

    What stood there is neither written to nor waited for: a link, a second name, a pipe.

    Raises:
        OSError: It cannot be made, or a folder stands there.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o666)


def _no_lock(path: Path, found: os.stat_result) -> PreparedError:
    problem = "is no file" if not stat.S_ISREG(found.st_mode) else "has a second name"
    if stat.S_ISLNK(found.st_mode):
        problem = "is a link"
    return PreparedError(path, f"{problem}, where a lock belongs, of {_owner(found)}: remove it")


def _owner(found: os.stat_result) -> str:
    """Name and number of a user, such as `mallory (user 1001)`."""
    with contextlib.suppress(KeyError):
        return f"{pwd.getpwuid(found.st_uid).pw_name} (user {found.st_uid})"
    return f"user {found.st_uid}"
