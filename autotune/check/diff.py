"""What changes in a text, for people, with secrets masked."""

import difflib
from collections.abc import Sequence

from autotune.base.secrecy import scrubbed_text

_AROUND = 200
"""Lines around a change that are scrubbed with it: more than any key or certificate has."""


def text_diff(name: str, before: str, after: str, known: Sequence[str]) -> str:
    """Two texts as a unified diff; empty where they are the same.

    Args:
        name: The file's.
        before: Its text.
        after: What it becomes.
        known: Secrets in it.
    """
    old, new = _scrubbed_lines(before, after, known)
    lines = difflib.unified_diff(old, new, fromfile=name, tofile=name)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in lines
    )


def _scrubbed_lines(before: str, after: str, known: Sequence[str]) -> list[list[str]]:
    """The lines of two texts, scrubbed where they differ and far around it.

    A diff shows nothing else, and a text of megabytes takes seconds.
    """
    texts = [text.splitlines(keepends=True) for text in (before, after)]
    shortest = min(map(len, texts))
    same = (a == b for a, b in zip(*texts, strict=False))
    head = max(0, next((n for n, is_same in enumerate(same) if not is_same), shortest) - _AROUND)
    same = (a == b for a, b in zip(*map(reversed, texts), strict=False))
    tail = next((n for n, is_same in enumerate(same) if not is_same), shortest)
    tail = max(0, min(tail, shortest - head) - _AROUND)
    scrubbed: list[list[str]] = []
    for lines in texts:
        end = len(lines) - tail
        shown = scrubbed_text("".join(lines[head:end]), known).splitlines(keepends=True)
        scrubbed.append([*lines[:head], *shown, *lines[end:]])
    return scrubbed
