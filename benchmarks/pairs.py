"""What one knob of a mixture of experts is forecast to change, beside what it changed.

`pairs.csv` has runs that were published in pairs which differ in one knob alone. For each: the
measured and the forecast change, their quotient, and whether the sign is right. Where a pair is
clean, half of the measured change at least is asked for. `make lint` and the tests run nothing of
it: `python benchmarks/pairs.py` prints a table in Markdown, and fails where a clean pair is off.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.app.planning import open_outlook
from autotune.cost.predict import predict
from autotune.engines.base import bind_engine
from autotune.engines.megatron.knobs import KNOBS, LATTICE_KNOBS
from autotune.planning.outlook import FleetWishes
from autotune.space.candidate import Candidate
from autotune.space.knobs import parse_settings

PAIRS = Path(__file__).resolve().parent / "pairs.csv"
LEAST_SHARE = 0.5
"""Least part of the measured change of a clean pair that has to be forecast."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two runs that differ in one knob."""

    name: str
    clean: str
    """`yes`, `seconds` and why where the change alone can be compared, or `no` and why."""
    before_s: float
    after_s: float
    forecast_before_s: float
    forecast_after_s: float

    @property
    def measured(self) -> float:
        """The change: in seconds, or as a share of the run before."""
        return self._change(self.before_s, self.after_s)

    @property
    def forecast(self) -> float:
        """The same of the forecasts."""
        return self._change(self.forecast_before_s, self.forecast_after_s)

    @property
    def share(self) -> float:
        """Part of the measured change that is forecast; negative: of the other sign."""
        return self.forecast / self.measured

    @property
    def is_clean(self) -> bool:
        """Whether it says something of the knob."""
        return not self.clean.startswith("no")

    def _change(self, before_s: float, after_s: float) -> float:
        is_seconds = self.clean.startswith("seconds")
        return (after_s - before_s) / (1.0 if is_seconds else before_s)

    def change(self, of: float) -> str:
        """A change in words."""
        return f"{of:+.2f} s" if self.clean.startswith("seconds") else f"{of:+.1%}"


def pairs(path: Path = PAIRS) -> Iterator[Pair]:
    """Each pair with its forecasts."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield _pair(row)


def _pair(row: dict[str, str]) -> Pair:
    job = {key: int(row[key]) for key in ("world", "seq_len", "global_batch")}
    keys = {"model": row["model"], "engine": "megatron", **job}
    outlook = open_outlook(None, keys, FleetWishes(gpu=row["gpu"]))
    engine = bind_engine(outlook.job, outlook.environment)
    world, batch = job["world"], job["global_batch"]
    found = []
    for change in ("before", "after"):
        words = f"{row['settings']} {row[change]}".split()
        values = {name: knob.default for name, knob in LATTICE_KNOBS.items()}
        values |= parse_settings(words, KNOBS)
        kept = {
            name: value
            for name, value in values.items()
            if name in LATTICE_KNOBS or value != KNOBS[name].default
        }
        found.append(Candidate.of(kept, world=world, global_batch=batch))
    before_s, after_s = predict(engine.plans(found)).step_time_s.tolist()
    return Pair(
        name=row["name"],
        clean=row["clean"],
        before_s=float(row["before_s"]),
        after_s=float(row["after_s"]),
        forecast_before_s=before_s,
        forecast_after_s=after_s,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=Path, default=PAIRS)
    options = parser.parse_args()
    off = []
    print("| Change | Measured | Forecast | Part of it |\n|---|---|---|---|")
    for pair in pairs(options.pairs):
        share = f"{pair.share:.0%}" if pair.is_clean else pair.clean.removeprefix("no: ")
        measured, forecast = pair.change(pair.measured), pair.change(pair.forecast)
        print(f"| {pair.name} | {measured} | {forecast} | {share} |", flush=True)
        if pair.is_clean and pair.share < LEAST_SHARE:
            off.append(pair.name)
    if off:
        print(f"less than half of the effect: {', '.join(off)}", file=sys.stderr)
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
