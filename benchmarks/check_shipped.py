"""What `check` says of configurations that others ship, as Markdown tables.

    python benchmarks/check_shipped.py FOLDER

FOLDER holds owner/repository/commit/path, as the files lie in the repository; others' files are
not ours to ship. Words that their scripts replace (`"stage": ZERO_STAGE`) get a value first.
"""

import argparse
import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autotune.app.check import CheckFlags, check_file
from autotune.base.errors import AutotuneError
from autotune.check import CheckReport, NotADsConfigError
from autotune.engines.deepspeed.rules.releases import NEWEST_READ

SUFFIXES = (".json", ".template", ".yaml", ".yml")
_PLACEHOLDER = re.compile(r"(?<=[:\[,])(\s*)([A-Z]\w+|\$\{\w+\})(?=\s*[,\]}\n])")
_MOST_PATHS = 3


@dataclass(kw_only=True)
class Repository:
    """What was found in one."""

    name: str
    commit: str
    counts: Counter[str] = field(default_factory=Counter)
    found: dict[tuple[str, str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    """(consequence, rule, message) -> paths of the files that hold it."""


def examine(root: Path, version: str) -> Repository:
    """Check every file of a repository from its root, where its own commands start."""
    found = Repository(name="/".join(root.parts[-3:-1]), commit=root.name)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "repository"
        shutil.copytree(root, copy)
        with contextlib.chdir(copy):
            for path in Path().rglob("*.json"):
                path.write_text(_filled_in(path.read_text(encoding="utf-8")), encoding="utf-8")
            for path in sorted(one for one in Path().rglob("*") if one.suffix in SUFFIXES):
                found.counts["files"] += 1
                _add(found, path, version)
    return found


def _add(found: Repository, path: Path, version: str) -> None:
    flags = CheckFlags(accelerator="cuda", deepspeed_version=version)
    try:
        reports = [one for one in check_file(path, flags) if one.source.has_deepspeed]
    except NotADsConfigError:
        reports = []
    except AutotuneError as error:
        print(f"{found.name}: {error.message}", file=sys.stderr)
        found.counts["not read"] += 1
        return
    found.counts["no configuration"] += not reports  # or a training without DeepSpeed
    for report in reports:
        found.counts[_verdict(report)] += 1
        for one in report.found:
            told = one.violation
            # A YAML file that names a ds_config.json is judged with it: the finding lies there.
            where = os.path.normpath(report.source.path)
            found.found[told.consequence, told.rule, told.message].add(where)


def _verdict(report: CheckReport) -> str:
    if report.is_refused(fixed=False):
        return "would not run"
    return "warnings" if report.found else "clean"


def _filled_in(text: str) -> str:
    return _PLACEHOLDER.sub(lambda match: match[1] + _value(match[2]), text)


def _value(name: str) -> str:
    if re.search("ENABLED?$", name):
        return "false" if "BF16" in name else "true"
    return "false" if "PRESCALE" in name else "1"


def tables(repositories: list[Repository]) -> Iterator[str]:
    """The lines of both tables."""
    columns = ("files", "no configuration", "not read", "would not run", "warnings", "clean")
    yield f"| repository | commit | {' | '.join(columns)} |"
    yield "|---|---|" + "---:|" * len(columns)
    for one in repositories:
        counts = " | ".join(str(one.counts[column]) for column in columns)
        yield f"| {one.name} | `{one.commit[:12]}` | {counts} |"
    yield ""
    yield "| repository | what DeepSpeed does | rule | finding | files |"
    yield "|---|---|---|---|---|"
    for one in repositories:
        order = sorted(one.found.items(), key=lambda item: (item[0][0] != "raised", item[0]))
        for (consequence, rule, message), paths in order:
            yield f"| {one.name} | {consequence} | `{rule}` | {message} | {_named(paths)} |"


def _named(paths: set[str]) -> str:
    shown = [f"`{path}`" for path in sorted(paths)[:_MOST_PATHS]]
    more = len(paths) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Check configurations that others ship.")
    parser.add_argument("folder", type=Path, help="owner/repository/commit/path ...")
    parser.add_argument("--deepspeed-version", default=NEWEST_READ)
    flags = parser.parse_args()
    roots = sorted(flags.folder.resolve().glob("*/*/*"), key=lambda root: str(root).lower())
    print("\n".join(tables([examine(root, flags.deepspeed_version) for root in roots])))


if __name__ == "__main__":
    main()
