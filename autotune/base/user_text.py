"""The text of a file that a user names, read within bounds."""

import errno
import sys
from pathlib import Path

from autotune.base.errors import RenderError
from autotune.contract import NotAFileError, read_bounded

STANDARD_INPUT = Path("-")
"""The name that stands for what is piped in."""

MAX_BYTES = 4 * 2**20
"""A thousand times the largest configuration that anybody ships."""


def unread(error: Exception) -> str:
    """Why a file could not be read, in words after its name."""
    if isinstance(error, UnicodeDecodeError):
        return f"is no text: byte {error.start + 1} is not UTF-8"
    if isinstance(error, NotAFileError):
        return str(error.strerror)
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def read_text(path: Path) -> str:
    """The text of a user's file, its line ends and a byte order mark as they are.

    Raises:
        RenderError: It cannot be read, is no file (a folder, a device, a named pipe: nothing waits
            for one), or is larger than `MAX_BYTES`.
    """
    try:
        # Of standard input one byte more than is allowed.
        is_piped = path == STANDARD_INPUT
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if is_piped else read_bounded(path, MAX_BYTES)
        if len(data) > MAX_BYTES:
            raise _too_large(path)
        return data.decode("utf-8")
    except (UnicodeDecodeError, NotAFileError) as error:
        hint = "name a configuration or a launch script"
        raise RenderError(f"{path}: {unread(error)}", hint) from error
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _too_large(path) from error
        raise RenderError(f"{path}: {unread(error)}", "name a file that is there") from error


def _too_large(path: Path) -> RenderError:
    return RenderError.of("base.too_large", path=path, most_mib=MAX_BYTES // 2**20)
