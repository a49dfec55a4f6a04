"""Anybody's ds_config: what would raise, what is ignored, what runs otherwise, and the fix."""

from autotune.check.lint import CheckReport, Found, check, judge
from autotune.engines.deepspeed.sources.kinds import NotADsConfigError
from autotune.engines.deepspeed.sources.source import Source, read_source, read_sources

__all__ = [
    "CheckReport",
    "Found",
    "NotADsConfigError",
    "Source",
    "check",
    "judge",
    "read_source",
    "read_sources",
]
