"""Runs the examples as their users would: `python -m tests.examples.run`.

Each is copied to a folder outside the repository, in the environment that it needs, and run there
under `diagnose` and under `search --trials 1`. What came out is recorded in
`results/recorded/examples/`. No part of `make test`: it installs packages and compiles.
"""

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base.private import user_cache
from autotune.contract import Role, TrialResult, read_json
from autotune.record.answer import answer_of
from autotune.record.study import Study
from tests.captured import captured
from tests.examples.environments import EXAMPLES, MATERIAL, Example, examples, variables_of
from tests.machine import machine_in_words
from tests.versions.environments import REPOSITORY, PinnedEnvironment, install

RECORDS = REPOSITORY / "results" / "recorded" / "examples"
STEPS = ("warm_up", "measured", "diagnose", "teardown")
"""Phases of a trial after its start."""
PACKAGES = (
    *("accelerate", "axolotl", "deepspeed", "llamafactory", "peft", "torch", "transformers"),
    "trl",
)
_VERSIONS = (
    "import importlib.metadata as m, json; "
    "found = {d.name.lower(): d.version for d in m.distributions()}; "
    f"print(json.dumps({{n: found[n] for n in {PACKAGES} if n in found}}))"
)


def main(arguments: list[str]) -> int:
    """Run what is asked for; 1 if an example did not come through."""
    options = _parse(arguments)
    known, failed = examples(), 0
    for name in options.names or known:
        example = known[name]
        made = None if example.is_ours else example.environment(options.environments)
        if made is not None:
            print(f"{name}: {made.folder}", flush=True)
            install(made)
        with tempfile.TemporaryDirectory() as folder:
            record = run(example, made, Path(folder))
        path = options.records / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        failed += record["outcome"] != "ok"
        print(f"{name}: {in_words(record)}", flush=True)
    return 1 if failed else 0


def run(example: Example, made: PinnedEnvironment | None, folder: Path) -> dict[str, Any]:
    """Run one example below a folder; returns the record."""
    environment = variables_of(example, made)
    where = prepare(example, made, folder, environment)
    results = folder / "results"
    ended = {}
    for verb, flags in (("diagnose", ()), ("search", ("--yes", "--trials", "1"))):
        done = autotune(verb, example, where, results, environment, *flags)
        ended[verb] = done.returncode
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            break
    python = sys.executable if made is None else made.python
    versions = captured([python, "-c", _VERSIONS], check=True, cwd=folder)
    return {
        "command": " ".join(example.command),
        "versions": json.loads(versions.stdout),
        "date": datetime.date.today().isoformat(),
        "machine": machine_in_words(),
        **(found_in(results) if set(ended.values()) == {0} else {"outcome": f"exit {ended}"}),
        "left": sorted(p.name for p in where.iterdir() if not (example.folder / p.name).exists()),
    }


def prepare(
    example: Example, made: PinnedEnvironment | None, folder: Path, environment: Mapping[str, str]
) -> Path:
    """Copy an example below a folder, with the material that it starts from; where it is now."""
    where = folder / example.name
    shutil.copytree(example.folder, where, ignore=shutil.ignore_patterns(MATERIAL, "__pycache__"))
    if made is not None:
        subprocess.run(
            [made.python, EXAMPLES / "prepare.py", where / MATERIAL],
            check=True,
            env={**environment, "PYTHONPATH": ""},
            capture_output=True,
        )
    return where


def autotune(
    verb: str,
    example: Example,
    where: Path,
    results: Path,
    environment: Mapping[str, str],
    *flags: str,
) -> subprocess.CompletedProcess[str]:
    """Type our command before an example's, in its folder."""
    return captured(
        [
            *(sys.executable, "-P", "-m", "autotune", verb, "--results", str(results)),
            *(*flags, "--", *example.command),
        ],
        cwd=where,
        env=dict(environment),
        timeout=3600,
    )


def found_in(results: Path) -> dict[str, Any]:
    """What the only study says: the command as it is, one candidate, and the gain."""
    (folder,) = results.glob("*/study.json")
    study = Study(results, folder.parent.name)
    paths = sorted(study.folder.glob("trials/*/result.json"))
    trials = [TrialResult.from_dict(read_json(path)) for path in paths]
    own = trials[0]
    candidate = next(trial for trial in trials if trial.role is Role.SEARCH)
    answer = answer_of(study)
    gain = None if answer is None else answer.speedup
    start_s = sum(value for name, value in candidate.phases_s.items() if name not in STEPS)
    return {
        "outcome": str(candidate.outcome.value),
        "evidence": candidate.evidence,
        "knobs": read_json(paths[1].with_name("spec.json"))["identity"]["knobs"],
        "start_s": round(start_s, 1),
        "samples_per_s": own.samples_per_s and round(own.samples_per_s, 2),
        "candidate_samples_per_s": candidate.samples_per_s and round(candidate.samples_per_s, 2),
        "gain": gain and {k: round(getattr(gain, k), 3) for k in ("ratio", "low", "high")},
    }


def in_words(record: Mapping[str, Any]) -> str:
    """One line of a record, for people."""
    if "start_s" not in record:
        return str(record["outcome"])
    gain = record["gain"]
    return (
        f"{record['outcome']}, a trial starts in {record['start_s']} s, "
        f"{record['samples_per_s']} samples/s as it is, gain "
        + (f"{gain['ratio']}x ({gain['low']} to {gain['high']})" if gain else "none")
        + (f", left {', '.join(record['left'])}" if record["left"] not in ([], [MATERIAL]) else "")
    )


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The examples, under diagnose and search")
    parser.add_argument("names", nargs="*", help="such as trl; all if none is named")
    parser.add_argument("--environments", type=Path, default=user_cache() / "examples")
    parser.add_argument("--records", type=Path, default=RECORDS)
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(examples())):
        parser.error(f"no example {', '.join(unknown)}; there are {', '.join(examples())}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
