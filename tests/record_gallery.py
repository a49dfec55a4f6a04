"""The pictures that docs/gallery.md shows: `python -m tests.record_gallery`.

The site makes the pages: those of simulated searches anew, in a minute, the others from the
records in results/recorded/studies/. `--measure` runs those on this machine first, or some of
them, which takes minutes and two idle CPU cores (with `DS_ACCELERATOR=cpu` where there are GPUs),
and keeps their records. Pictures need chromium.
"""

import argparse
import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autotune.app.pages import write_page
from autotune.record.study import Study
from tests.captured import captured
from tests.command_line import autotune

REPOSITORY = Path(__file__).resolve().parents[1]
GALLERY = REPOSITORY / "docs" / "gallery"
RECORDED = REPOSITORY / "results" / "recorded" / "studies"
"""Studies that were run, a file each."""
WIDTH, HEIGHT = 1440, 900

_JOB = ("--seq-len", "4096", "--global-batch", "64")
SEARCHES: dict[str, Sequence[str]] = {
    "gain": ("--model", "qwen2.5-14b", *_JOB, "--fleet", "simulate:8xH100"),
    "front": (
        *("--model", "qwen2.5-14b", *_JOB, "--fleet", "simulate:8xH100"),
        *("--objective", "pareto", "--space", "zero_offload"),
    ),
    "nothing-fits": (
        *("--model", "llama-3-70b", *_JOB, "--fleet", "simulate:4xA100-40GB"),
        *("--trials", "6", "--force"),
    ),
    "other-devices": ("--model", "qwen2.5-14b", *_JOB, "--fleet", "simulate:8xA100-80GB"),
}
"""Study -> flags of its simulated search."""
SIMULATED = ("gain", "front", "nothing-fits", "compare")
"""Pages of simulated searches."""
MEASURED: dict[str, Sequence[str]] = {
    "demo": ("--trials", "12", "--budget", "150s"),
    "megatron": (
        *("--engine", "megatron", "--model", "tiny-gpt2", "--seq-len", "64", "--global-batch"),
        *("8", "--world", "2", "--trials", "6", "--budget", "150s"),
    ),
    "own-script": (
        *("--trials", "6", "--budget", "15m", "--", "torchrun", "--nproc-per-node", "2"),
        *("train.py", "--deepspeed", "ds_config.json", "--use_cpu", "--bf16"),
        *("--per_device_train_batch_size", "4", "--output_dir", "out"),
    ),
}
"""Study -> flags of its search on CPU ranks."""
SCRIPTS = {"own-script": REPOSITORY / "examples" / "trainer"}
"""Study -> folder of the user's script that it tunes: its search runs in a copy."""
_KEPT = ("study.json", "job.yaml", "trials/*/*.json", "trials/*/config/*", "trials/*/std*.log")
"""Files of a study that its page is made from."""
_FOLDERS = re.compile(r"/[^\s\"']*/site-packages/")
"""Where packages stand on the machine that ran it."""


def main() -> None:
    """Search, and write pages and pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--measure",
        nargs="*",
        choices=[*MEASURED],
        metavar="STUDY",
        help=f"run the real searches as well, or some of them: {', '.join(MEASURED)}",
    )
    parser.add_argument("--results", type=Path, help="keep real searches that ran there before")
    wish = parser.parse_args()
    GALLERY.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        write_simulated(Path(folder))
        _take_pictures(sorted(Path(folder).glob("*.html")), GALLERY)
    with tempfile.TemporaryDirectory() as folder:
        results = wish.results or Path(folder, "results")
        for study, flags in MEASURED.items():
            # `--measure` without a name is an empty list: all of them.
            if wish.measure is not None and (not wish.measure or study in wish.measure):
                if study in SCRIPTS:
                    shutil.copytree(SCRIPTS[study], folder, dirs_exist_ok=True)
                _check(_measure(folder, *_search(study, flags)))
            if (results / study).exists():
                keep(results / study, _search(study, flags))
        pages = []
        for record in sorted(RECORDED.glob("*.json")):
            pages.append(Path(folder, f"{record.stem}.html"))
            pages[-1].write_text(report_of(record), encoding="utf-8")
        _take_pictures(pages, GALLERY)


def write_simulated(pages: Path) -> None:
    """Run the simulated searches, and write their pages into a folder."""
    pages.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for study, flags in SEARCHES.items():
            _check(autotune(*_search(study, flags), folder=Path(folder)))
            if study in SIMULATED:
                page = Path(folder, "results", study, "report.html")
                shutil.copyfile(page, pages / f"{study}.html")
        compare = ("compare", "gain", "other-devices", "--html", "compare.html")
        _check(autotune(*compare, folder=Path(folder)))
        shutil.copyfile(Path(folder, "compare.html"), pages / "compare.html")


def report_of(recorded: Path) -> str:
    """The page of a recorded study."""
    files = json.loads(recorded.read_text(encoding="utf-8"))["files"]
    # The page names the study's folder: as a user would see it, not where this is built.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        study = Study(Path("results"), recorded.stem)
        for name, text in files.items():
            path = study.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return write_page(study, Path("page.html")).read_text(encoding="utf-8")


def keep(study: Path, command: Sequence[str]) -> None:
    """Write the record of a study as one file, without the folders of this machine."""
    paths = sorted(path for pattern in _KEPT for path in study.glob(pattern))
    # Where its search ran, which a script's paths begin with.
    here = str(study.parent.parent.resolve())
    files = {}
    for path in paths:
        text = _FOLDERS.sub("site-packages/", path.read_text(encoding="utf-8"))
        files[path.relative_to(study).as_posix()] = text.replace(f"{here}/", "").replace(here, ".")
    RECORDED.mkdir(exist_ok=True)
    record = {"command": shlex.join(["autotune", *command]), "files": files}
    text = json.dumps(record, indent=1) + "\n"
    (RECORDED / f"{study.name}.json").write_text(text, encoding="utf-8")


def _search(study: str, flags: Sequence[str]) -> list[str]:
    return ["search", "--yes", "--study", study, "--seed", "0", "--no-knowledge", *flags]


def _take_pictures(pages: Sequence[Path], folder: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("the pages are written; their pictures need chromium")
    for page in pages:
        picture = folder / f"{page.stem}.png"
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture}", page.as_uri()),
            ],
            check=True,
            capture_output=True,
        )


def _measure(folder: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return captured(
        [sys.executable, "-m", "autotune", *arguments], cwd=folder, stdin=subprocess.DEVNULL
    )


def _check(done: subprocess.CompletedProcess[str]) -> None:
    # 3: nothing fits, which one of the pages shows.
    if done.returncode not in (0, 3):
        sys.exit(done.stderr)


if __name__ == "__main__":
    main()
