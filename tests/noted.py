"""Answers of real ranks that are noted: runs ask again once what asks them, or a release, changes.

`tests/golden/NAME.json` has each case that did what it says, with a digest of all that this
follows from. With AUTOTUNE_WRITE_GOLDEN=1 those that pass are noted.
"""

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path

from autotune.devices.hardware import version_of
from tests import snapshots

_SCRIPTS = Path(__file__).parents[1] / "autotune" / "trial"


def texts(*files: Path | str) -> list[str]:
    """Texts of files that ask: paths, or names below `autotune/trial`."""
    return [(_SCRIPTS / file).read_text(encoding="utf-8") for file in files]


class Notes:
    """The cases of a test that are noted."""

    def __init__(self, name: str, *packages: str) -> None:
        """Read them: `packages` are those whose releases decide the answers."""
        self._file = snapshots.GOLDEN / name
        self._releases = [str(version_of(package)) for package in packages]
        self._digests: dict[str, str] = json.loads(self._file.read_text(encoding="utf-8"))

    def has(self, case: str, *asked: str) -> bool:
        """Whether a case did what it says when all of this asked it."""
        return self._digests.get(case) == self._digest(*asked)

    def add(self, case: str, *asked: str) -> None:
        """Note a case that has done what it says."""
        self._digests[case] = self._digest(*asked)

    def write(self, cases: Collection[str]) -> None:
        """Write the file anew, without what is none of these cases, where it is asked for."""
        if os.environ.get("AUTOTUNE_WRITE_GOLDEN"):
            kept = {case: digest for case, digest in self._digests.items() if case in cases}
            text = json.dumps(kept, indent=0, sort_keys=True) + "\n"
            self._file.write_text(text, encoding="utf-8")

    def _digest(self, *asked: str) -> str:
        return hashlib.sha256("\n".join([*self._releases, *asked]).encode()).hexdigest()[:16]
