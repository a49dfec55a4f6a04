"""Folders of the shipped data: templates, spaces, records; in a checkout and in a wheel alike."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_IN_CHECKOUT = {"recorded": "results/recorded"}
"""Folders of a checkout that do not lie at its top."""


def data_folder(name: str) -> Path:
    """Folder of shipped data: `search_spaces`, `templates` or `recorded`.

    Raises:
        FileNotFoundError: The installation lacks it.
    """
    # A wheel carries the data inside the package; a checkout keeps it beside the package.
    beside = _PACKAGE.parent / _IN_CHECKOUT.get(name, name)
    for folder in (_PACKAGE / "_data" / name, beside):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"{name}: neither inside {_PACKAGE} nor beside it")


def shipped_spaces() -> list[str]:
    """Names of the spaces that come with the package.

    Raises:
        FileNotFoundError: The installation lacks them.
    """
    return sorted(path.stem for path in data_folder("search_spaces").glob("*.yaml"))
