"""The error about a file that holds no DeepSpeed configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError, RenderError
from autotune.base.nested import key_in_words
from autotune.engines.deepspeed.sources.accelerate import KINDS

_MOST_NAMED = 4
"""Keys that are named of a mapping of no known kind."""

_UNKNOWN = "no key that only DeepSpeed has"


class NotADsConfigError(JobError):
    """A file was read, and neither is nor holds nor names a DeepSpeed configuration.

    Args:
        path: The file.
        kind: What it is, in words.
        message: What is said instead, where more is known of it; empty: this.
        hint: What to do instead.
    """

    def __init__(self, path: Path, kind: str, *, message: str = "", hint: str = "") -> None:
        super().__init__(
            message or f"{path}: is no DeepSpeed configuration and holds none: {kind}",
            hint or "name a ds_config.json, or a file with a DeepSpeed section",
        )
        self.path, self.kind = path, kind

    @property
    def is_known(self) -> bool:
        """Whether it is a file of some known kind, and not just a mapping of unknown keys."""
        return not self.kind.startswith(_UNKNOWN)


class NotFollowedError(NotADsConfigError):
    """A file starts a training, in a way that is not followed."""


class UnknownNameError(RenderError):
    """A launch names its configuration by what only the shell knows."""


def kind_of(data: Mapping[Any, Any]) -> str:
    """What a mapping that is no DeepSpeed configuration holds, in words."""
    if not data:
        return "an empty object"
    if (kind := data.get("distributed_type")) in KINDS:
        return f"with distributed_type={kind} accelerate starts {kind}, which check does not judge"
    shown = ", ".join(key_in_words(name) for name in list(data)[:_MOST_NAMED])
    more = ", ..." if len(data) > _MOST_NAMED else ""
    return f"{_UNKNOWN}, among {shown}{more}"
