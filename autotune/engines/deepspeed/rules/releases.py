"""Releases of DeepSpeed: which the rules know, and which of two is later."""

import math
from functools import lru_cache

from packaging.version import InvalidVersion, Version

READ = (
    *("0.16.0", "0.16.9", "0.17.6", "0.18.6", "0.18.9", "0.19.0", "0.19.6", "0.19.7", "0.19.8"),
)
"""Releases whose source the rules were read off, oldest first."""

TRIED = ("0.16.9", "0.18.6", "0.19.8")
"""Releases among them that parsed candidates and trained with them (docs/versions.md)."""

OLDEST_READ, NEWEST_READ = READ[0], READ[-1]


@lru_cache(maxsize=64)
def release_of(version: str) -> tuple[float, ...]:
    """The release numbers of a version: `0.19.8+cpu` -> (0, 19, 8); unreadable: the newest."""
    try:
        return Version(version).release
    except InvalidVersion:
        return (math.inf,)


def is_read(version: str) -> bool:
    """True if the rules were read off a release, or off one before it and one after it."""
    return release_of(OLDEST_READ) <= release_of(version) <= release_of(NEWEST_READ)


def is_at_least(version: str, release: str) -> bool:
    """Whether a version is of the release named, or of a later one."""
    return release_of(version) >= release_of(release)
