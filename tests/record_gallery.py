"""The pages that docs/gallery.md shows, and their pictures: `python -m tests.record_gallery`.

Most are of simulated searches, which any machine makes anew in a minute. `--measured FOLDER` takes
the page of a study that was really run, such as that of `make demo`. Pictures need chromium.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
GALLERY = REPOSITORY / "docs" / "gallery"
WIDTH, HEIGHT = 1440, 900

_JOB = ("--seq-len", "4096", "--global-batch", "64")
SEARCHES: dict[str, Sequence[str]] = {
    "gain": ("--model", "llama-3-8b", *_JOB, "--fleet", "simulate:8xH100"),
    "front": (
        *("--model", "llama-3-8b", *_JOB, "--fleet", "simulate:8xH100"),
        *("--objective", "pareto", "--space", "zero_offload"),
    ),
    "nothing-fits": (
        *("--model", "llama-3-70b", *_JOB, "--fleet", "simulate:4xA100-40GB"),
        *("--trials", "6", "--force"),
    ),
    "other-devices": ("--model", "llama-3-8b", *_JOB, "--fleet", "simulate:8xA100-80GB"),
}
"""Study -> flags of its search."""


def main() -> None:
    """Search, and write pages and pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measured", type=Path, help="folder of a study that was run")
    wish = parser.parse_args()
    GALLERY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for study, flags in SEARCHES.items():
            fixed = ("--yes", "--study", study, "--seed", "0", "--no-knowledge")
            _autotune(folder, "search", *fixed, *flags)
            shutil.copyfile(Path(folder, "results", study, "report.html"), _page(study))
        compared = ("compare", "gain", "other-devices", "--html", "compare.html")
        _autotune(folder, *compared)
        shutil.copyfile(Path(folder, "compare.html"), _page("compare"))
    _page("other-devices").unlink()
    if wish.measured is not None:
        shutil.copyfile(wish.measured / "report.html", _page("measured"))
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("the pages are written; their pictures need chromium")
    for page in sorted(GALLERY.glob("*.html")):
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={page.with_suffix('.png')}"),
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


def _page(name: str) -> Path:
    return GALLERY / f"{name}.html"


def _autotune(folder: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    # 3: nothing fits, which one of the pages shows.
    if done.returncode not in (0, 3):
        sys.exit(done.stderr)


if __name__ == "__main__":
    main()
