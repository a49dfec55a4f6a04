"""Releases of packages, and which of two is later."""

import math
from functools import lru_cache

from packaging.version import InvalidVersion, Version


@lru_cache(maxsize=64)
def release_of(version: str) -> tuple[float, ...]:
    """The release numbers of a version: `0.19.8+cpu` -> (0, 19, 8); unreadable: the newest."""
    try:
        return Version(version).release
    except InvalidVersion:
        return (math.inf,)


def is_at_least(version: str, release: str) -> bool:
    """Whether a version is of the release named, or of a later one, as an unknown one is."""
    return release_of(version) >= release_of(release)
