"""Releases of DeepSpeed that the rules know."""

from autotune.engines.releases import release_of

READ = (
    *("0.16.0", "0.16.9", "0.17.6", "0.18.6", "0.18.9", "0.19.0", "0.19.6", "0.19.7", "0.19.8"),
)
"""Releases whose source the rules were read off, oldest first."""

TRIED = ("0.16.9", "0.18.6", "0.19.8")
"""Releases among them that parsed candidates and trained with them (docs/versions.md)."""

OLDEST_READ, NEWEST_READ = READ[0], READ[-1]


def is_read(version: str) -> bool:
    """True if the rules were read off a release, or off one before it and one after it."""
    return release_of(OLDEST_READ) <= release_of(version) <= release_of(NEWEST_READ)
