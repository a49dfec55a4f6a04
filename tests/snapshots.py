"""Words and files that tests freeze: `make bless` writes them anew, and the diff is read."""

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def check(name: str, text: str) -> None:
    """Compare a text with the file of a name below `tests/golden/`, or write that file."""
    file = GOLDEN / name
    if os.environ.get("AUTOTUNE_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
