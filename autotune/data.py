"""Where the shipped data lies: templates and search spaces, in a checkout and in a wheel alike."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_folder(name: str) -> Path:
    """Folder of shipped data.

    Args:
        name: `search_spaces` or `templates`.

    Raises:
        FileNotFoundError: The installation lacks it.
    """
    # A wheel carries the data inside the package; a checkout keeps it beside the package.
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"{name}: neither inside {_PACKAGE} nor beside it")
