"""Anybody's ds_config: what would raise, what is ignored, what runs otherwise, and the fix."""

from autotune.check.lint import Found, Report, check
from autotune.check.source import Source, read_source

__all__ = ["Found", "Report", "Source", "check", "read_source"]
