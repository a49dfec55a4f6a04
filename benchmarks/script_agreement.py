"""Is the gain that a search claims on a user's command what that command shows by its own clock?

    python benchmarks/script_agreement.py STUDY [--results DIR] [--rounds N] [--json]

STUDY is a finished search of a Trainer command (`search -- torchrun train.py ...`). The command as
it was typed and the exported `launch.sh` run in turns, plainly: nothing of autotune is in their
ranks. Each runs twice, for few and for many steps, and the difference of Trainer's own
`train_runtime` is the time of the steps between; start and first steps cancel. The ratio is the
geometric mean over the rounds, with its 95% interval. Exits with 1 if it and the claimed gain have
no value in common.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from autotune.app.exports import export_study
from autotune.base.student_t import t_quantile
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.job.observed import OBSERVED_FILE, Observed, filled_in
from autotune.record.answer import answer_of
from autotune.record.study import Study

FEW, MANY = 10, 60
"""Optimizer steps of the two runs whose difference is taken."""
_RUNTIME = re.compile(r"'train_runtime': '?([0-9.]+)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    study = Study(options.results, options.study)
    script = Observed.read(study.folder / OBSERVED_FILE)
    answer = answer_of(study)
    if answer is None or answer.speedup is None:
        print("the study has no confirmed gain: finish its search", file=sys.stderr)
        return 2
    claimed = answer.speedup
    environment = {**os.environ, **extensions_environment("cpu", os.environ)}
    logs: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        export_study(study, Path(folder) / "best")
        after = ["bash", str(Path(folder) / "best" / "launch.sh")]
        before = filled_in(script.command, {})
        for number in range(options.rounds):
            times_s = {
                name: step_time_s(command, script.folder, environment, Path(folder) / "out")
                for name, command in (("before", before), ("after", after))
            }
            logs.append(math.log(times_s["before"] / times_s["after"]))
            said = ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in times_s.items())
            print(f"round {number}: {said} a step: {math.exp(logs[-1]):.3f}x", flush=True)
    mean = statistics.mean(logs)
    reach = math.inf
    if len(logs) > 1:
        reach = t_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(mean - min(reach, 700.0)), math.exp(mean + min(reach, 700.0))
    agrees = low <= claimed.high and claimed.low <= high
    print(
        f"plain runs: {math.exp(mean):.3f}x ({low:.3f} to {high:.3f}); the search claims "
        f"{claimed.ratio:.3f}x ({claimed.low:.3f} to {claimed.high:.3f}): "
        + ("they agree" if agrees else "they do not agree")
    )
    if options.json:
        found = {"plain": math.exp(mean), "plain_low": low, "plain_high": high}
        print(json.dumps({**found, "claimed": claimed.ratio, "agrees": agrees}))
    return 0 if agrees else 1


def step_time_s(command: list[str], folder: str, environment: dict[str, str], out: Path) -> float:
    """Seconds of a step of a Trainer command, by its own clock."""
    runtimes_s = {}
    for steps in (FEW, MANY):
        extra = ["--max_steps", str(steps), "--save_strategy", "no", "--output_dir", str(out)]
        ran = subprocess.run(
            [*command, *extra],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        found = _RUNTIME.findall(ran.stdout + ran.stderr)
        # A rank was seen to abort after its last line, where its figures have been printed.
        if not found:
            raise SystemExit(f"{' '.join(command)} failed:\n{ran.stderr[-2000:]}")
        runtimes_s[steps] = float(found[-1])
    return (runtimes_s[MANY] - runtimes_s[FEW]) / (MANY - FEW)


if __name__ == "__main__":
    sys.exit(main())
