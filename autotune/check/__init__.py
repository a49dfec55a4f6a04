"""Anybody's ds_config: `read` it, `edit` its text; `check` judges it and does both."""

from autotune.check.edit import edit
from autotune.check.lint import CheckReport, Found, check
from autotune.engines.deepspeed.sources.kinds import NotADsConfigError
from autotune.engines.deepspeed.sources.reading import Source
from autotune.engines.deepspeed.sources.source import read, read_all

__all__ = [
    "CheckReport",
    "Found",
    "NotADsConfigError",
    "Source",
    "check",
    "edit",
    "read",
    "read_all",
]
