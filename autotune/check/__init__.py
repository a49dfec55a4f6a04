"""Anybody's ds_config: what would raise, what is ignored, what runs otherwise, and the fix."""

from autotune.check.kinds import NotADsConfigError
from autotune.check.lint import CheckReport, Found, check
from autotune.check.source import Source, read_source, read_sources

__all__ = [
    "CheckReport",
    "Found",
    "NotADsConfigError",
    "Source",
    "check",
    "read_source",
    "read_sources",
]
