"""What changes in a text, for people, with secrets masked."""

import difflib

from autotune.base.secrecy import scrubbed_text


def text_diff(name: str, before: str, after: str) -> str:
    """Two texts as a unified diff; empty where they are the same.

    Args:
        name: The file's.
        before: Its text.
        after: What it becomes.
    """
    old, new = (scrubbed_text(one).splitlines(keepends=True) for one in (before, after))
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, fromfile=name, tofile=name)
    )
