"""This release of autotune as one file, for nodes that do not have it."""

import gzip
import hashlib
import io
import tarfile
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import autotune

_SUFFIXES = (".py", ".yaml", ".json", ".typed")
"""Kinds of files of the package that a node may read."""


@cache
def bundle() -> tuple[str, bytes]:
    """Digest of the bundle, and a compressed tar file of it.

    It holds the package, and the entry points by which its plug-ins are found. The same sources
    make the same bytes.
    """
    root = Path(autotune.__file__).parent
    files = {
        str(Path("autotune", path.relative_to(root))): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.suffix in _SUFFIXES and path.is_file()
    }
    info = f"autotune-{autotune.__version__}.dist-info"
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: autotune\nVersion: {autotune.__version__}\n".encode()
    )
    files[f"{info}/entry_points.txt"] = _entry_points().encode()
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    data = gzip.compress(plain.getvalue(), compresslevel=6, mtime=0)
    return hashlib.sha256(data).hexdigest()[:24], data


def _entry_points() -> str:
    try:
        return distribution("autotune").read_text("entry_points.txt") or ""
    except PackageNotFoundError:
        return ""
