"""Anybody's ds_config: what would raise, what is ignored, what runs otherwise, and the fix."""

from autotune import make_callable
from autotune.check.lint import CheckReport, Found, check
from autotune.engines.deepspeed.sources.kinds import NotADsConfigError
from autotune.engines.deepspeed.sources.source import Source, read_source, read_sources

make_callable(__name__)

__all__ = [
    "CheckReport",
    "Found",
    "NotADsConfigError",
    "Source",
    "check",
    "read_source",
    "read_sources",
]
