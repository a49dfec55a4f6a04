"""Makes a node run this release of autotune: the first program of a transport on another machine.

Its text travels on a command line (`python3 -c`), so it is short, and uses the standard library
only. A header comes in, a line of JSON, and a bundle, which is kept in the user's cache. Then a
keeper starts the module that is wanted, with the same input and output.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

OLDEST = 0x030B0000
"""Oldest Python, in the spelling of `sys.hexversion`."""
UNUSED_S = 30 * 86400.0
"""Time without a start after which a bundle is removed."""


def _line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)  # unbuffered: what follows is for another program
        if not byte:
            sys.exit(0)
        line += byte
    return line


def _bytes(size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = os.read(0, min(size - len(data), 1 << 20))
        if not chunk:
            sys.exit(0)
        data += chunk
    return data


def _refuse(why: str) -> None:
    os.write(1, f"{why}\n".encode())
    sys.exit(3)


def _unpacked(cache: str, digest: str, size: int) -> str:
    """The folder of the bundle; it is made where it is not there."""
    folder, data = os.path.join(cache, digest), _bytes(size)
    if os.path.isdir(folder):
        os.utime(folder)
        return folder
    os.makedirs(cache, mode=0o700, exist_ok=True)
    _remove_unused(cache)
    aside = tempfile.mkdtemp(dir=cache)
    with tarfile.open(fileobj=io.BytesIO(data)) as bundle:
        # Python 3.11.4 and newer refuse names that lead elsewhere.
        if hasattr(tarfile, "data_filter"):
            bundle.extraction_filter = staticmethod(tarfile.data_filter)
        bundle.extractall(aside)
    # Bytecode is made once, before several programs of a node would make it side by side.
    subprocess.call([sys.executable, "-m", "compileall", "-q", aside], stdout=2)
    try:
        os.rename(aside, folder)
    except OSError:  # another one was faster
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def _remove_unused(cache: str) -> None:
    """Remove bundles of other releases that nothing was started from for long."""
    with os.scandir(cache) as entries:
        for entry in entries:
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > UNUSED_S:
                shutil.rmtree(entry.path, ignore_errors=True)


def _main() -> None:
    if sys.hexversion < OLDEST:
        _refuse(
            f"{sys.executable} is Python {sys.version.split()[0]}, and 3.11 is the oldest; "
            "name another one: --fleet-option python=PATH"
        )
    request = json.loads(_line())
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    try:
        folder = _unpacked(
            os.path.join(base, "autotune", "nodes"), request["digest"], request["size"]
        )
    except OSError as error:
        _refuse(f"autotune cannot be unpacked there: {error}")
    os.environ.update(request["variables"])
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *([path] if path else [])])
    sys.path.insert(0, folder)
    from autotune.base.guarded_process import temporary_root

    keeper = os.path.join(folder, "autotune", "base", "keeper.py")
    keeping = {**request["keeping"], "parent": os.getppid(), "root": temporary_root()}
    command = [sys.executable, "-P", "-m", request["module"], *request["arguments"]]
    os.execv(sys.executable, [sys.executable, "-I", "-S", keeper, json.dumps(keeping), *command])


if __name__ == "__main__":
    _main()
