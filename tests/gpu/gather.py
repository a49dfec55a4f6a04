"""Records what pieces of time on a GPU measured: `python -m tests.gpu.gather FOLDER...`.

Each FOLDER is one that `tests.gpu.accept` filled. Its tables go to results/recorded/gpu/, in files
of the device's own, and the tables of docs/gpu.md are written anew from all that lie there.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.gpu.piece import (
    ANSWERS_FILE,
    MACHINE_FILE,
    STAGES_FILE,
    TRIALS_FILE,
    PieceError,
    read_json,
    read_table,
)
from tests.gpu.stages import GPU, LISTED, REPOSITORY, stages_of

RECORDED = REPOSITORY / "results" / "recorded" / "gpu"
PAGE = REPOSITORY / "docs" / "gpu.md"
BEGIN, END = "<!-- tables of tests.gpu.gather -->", "<!-- end of these tables -->"
_OF_STEPS = ("phase.warm_up_s", "phase.measured_s", "phase.diagnose_s")
_TRIAL_KEY = ["study", "started_at"]
_LISTED_KEY = ["job", "knobs"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the folders, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="where tables go")
    parser.add_argument("--page", type=Path, default=PAGE, help="whose tables are written")
    options = parser.parse_args(arguments)
    for folder in options.folders:
        if not (folder / STAGES_FILE).is_file():
            parser.error(
                f"{folder} has no {STAGES_FILE}: name a folder that tests.gpu.accept filled"
            )
        try:
            record(folder, options.recorded)
        except PieceError as error:
            parser.error(str(error))
    text = options.page.read_text(encoding="utf-8")
    options.page.write_text(with_tables(text, "\n".join(tables(options.recorded))), "utf-8")
    return 0


def record(folder: Path, recorded: Path) -> None:
    """Add the tables of one piece; a trial that is there already is replaced.

    Raises:
        PieceError: A file of it is damaged, or it was not measured on a GPU.
    """
    device = device_of(folder)
    trials, listed = read_table(folder / TRIALS_FILE), read_table(folder / LISTED)
    stages = pd.DataFrame(_stages(folder))
    recorded.mkdir(parents=True, exist_ok=True)
    if trials is not None:
        _merge(recorded / f"{device}-trials.csv", trials, _TRIAL_KEY)
    if listed is not None:
        _merge(recorded / f"{device}-listed.csv", listed, _LISTED_KEY)
    if len(stages):
        _merge(recorded / f"{device}-stages.csv", stages, ["name"])


def device_of(folder: Path) -> str:
    """Short name of the device that a piece was measured on, such as `h200`.

    Raises:
        PieceError: It was not measured on a GPU, or the folder does not tell on which.
    """
    machine = (read_json(folder / MACHINE_FILE) or {}).get("machine", {})
    devices = machine.get("devices")
    if not devices:
        raise PieceError(
            f"{folder} has no {MACHINE_FILE} that names the GPU: run its stage `machine` first"
        )
    if machine.get("accelerator", "cuda") != "cuda":
        raise PieceError(
            f"{folder} was measured on {devices[0]['name']}, which is no GPU: a rehearsal is not "
            "recorded"
        )
    words = re.findall(r"[A-Za-z]*\d+[A-Za-z]*", devices[0]["name"])
    return (words[0] if words else devices[0]["name"].replace(" ", "-")).lower()


def _stages(folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each stage that ran: how it ended, and the gain that its search found."""
    answers = read_json(folder / ANSWERS_FILE) or {}
    for stage in read_json(folder / STAGES_FILE):
        answer = answers.get(stage["name"])
        found = answer if isinstance(answer, dict) else {}
        best, baseline, gain = (found.get(n) or {} for n in ("best", "baseline", "speedup"))
        yield {
            **{
                key: stage[key] for key in ("name", "seconds", "is_answered", "was_cut", "command")
            },
            "speedup": gain.get("ratio"),
            "speedup_low": gain.get("low"),
            "speedup_high": gain.get("high"),
            "n_pairs": len(found["pairs"]) if "pairs" in found else None,
            "largest_difference": found.get("largest_difference"),
            "n_runs": best.get("n_runs"),
            "best": _knobs(best.get("candidate")),
            "baseline": _knobs(baseline.get("candidate")),
            "best_samples_per_s": best.get("samples_per_s"),
            "baseline_samples_per_s": baseline.get("samples_per_s"),
        }


def _knobs(candidate: Mapping[str, Any] | None) -> str:
    return " ".join(f"{name}={value}" for name, value in (candidate or {}).get("knobs", ()))


def _merge(path: Path, new: pd.DataFrame, key: list[str]) -> None:
    old = [pd.read_csv(path)] if path.is_file() else []
    frames = [frame.dropna(axis="columns", how="all") for frame in (*old, new)]
    merged = pd.concat(frames, ignore_index=True).drop_duplicates(key, keep="last")
    merged.sort_values(key).to_csv(path, index=False, float_format="%.8g")


def with_tables(page: str, tables_text: str) -> str:
    """The page with these tables in the place of those that it has."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no {BEGIN!r} with an {END!r}")
    return f"{before}{BEGIN}\n{tables_text}\n{END}{after}"


def tables(recorded: Path) -> Iterator[str]:
    """The lines of all tables."""
    trials = dict(_frames(recorded, "trials"))
    stages = dict(_frames(recorded, "stages"))
    yield from _table(
        (
            "device",
            "search",
            "gain over the baseline (95% interval)",
            "rounds",
            "best",
            "baseline",
        ),
        (row for device in stages for row in _gains(device, stages[device], trials.get(device))),
    )
    yield "\nSearches that were cut off:\n"
    yield from (line for device, frame in trials.items() for line in _cut(device, frame, stages))
    yield (
        "\nPredictions, and how far they were off in the median; `inside`: of their 90% "
        "intervals.\n"
    )
    yield from _table(
        ("device", "search", "trials", "step time", "inside", "peak memory", "inside"),
        (row for device, frame in trials.items() for row in _predictions(device, frame)),
    )
    yield "\nA trial's time besides its steps, and its whole time, in the median.\n"
    yield from _table(
        ("device", "search", "start", "trials", "besides its steps", "whole"),
        (row for device, frame in trials.items() for row in _overheads(device, frame)),
    )
    yield "\nLosses of the same steps, started warm and cold:\n"
    yield from (line for device, frame in stages.items() for line in _agreement(device, frame))
    answered = {name for frame in stages.values() for name in frame[frame["is_answered"]]["name"]}
    left = [stage for stage in stages_of(GPU) if stage.name not in answered]
    yield "\nStages that no piece has answered yet:\n"
    yield from (f"- `{stage.name}`: {stage.answers}" for stage in left)


def _frames(recorded: Path, kind: str) -> Iterator[tuple[str, pd.DataFrame]]:
    for path in sorted(recorded.glob(f"*-{kind}.csv")):
        yield path.name.removesuffix(f"-{kind}.csv").upper(), pd.read_csv(path)


def _gains(
    device: str, stages: pd.DataFrame, trials: pd.DataFrame | None
) -> Iterator[tuple[str, ...]]:
    if trials is None:
        return
    for _, row in stages[stages["command"].str.contains(" search ")].iterrows():
        if not row["was_cut"] and pd.notna(row["speedup"]):
            gain = f"{row['speedup']:.3f} ({row['speedup_low']:.3f} to {row['speedup_high']:.3f})"
            best, baseline = str(row["best"]).split(), str(row["baseline"]).split()
            changed = [word for word in best if word not in baseline]
            what = " ".join(changed) if changed else "the baseline"
            if not changed:
                other = _by_round(trials[trials["study"] == row["name"]])
                gain = f"none: {other}" if other else "none: nothing came near"
            yield device, row["name"], gain, f"{row['n_runs']:.0f}", what, _short(baseline)


def _by_round(trials: pd.DataFrame) -> str:
    """How others did beside the baseline in the rounds of a comparison; empty: none ran there."""
    own = trials[trials["role"] == "baseline"]["candidate_hash"].tolist()
    rounds = trials[(trials["role"] == "confirm") & (trials["outcome"] == "ok")].pivot_table(
        index="confirm_round", columns="candidate_hash", values="samples_per_s"
    )
    base = next((key for key in reversed(own) if key in rounds), None)
    if base is None or len(rounds.columns) < 2:
        return ""
    ratios = rounds.drop(columns=base).div(rounds[base], axis="index").stack()
    mean = float(np.exp(np.log(ratios).mean()))
    return f"the other came to {mean:.3f} ({ratios.min():.3f} to {ratios.max():.3f} by round)"


def _cut(device: str, trials: pd.DataFrame, stages: Mapping[str, pd.DataFrame]) -> Iterator[str]:
    ended = stages.get(device, pd.DataFrame({"name": [], "is_answered": []}))
    answered = set(ended[ended["is_answered"].astype(bool)]["name"])
    for study, rows in trials.groupby("study"):
        if study not in answered:
            rounds = rows["confirm_round"].dropna()
            told = (
                f"{rounds.nunique()} rounds of the comparison" if len(rounds) else "no comparison"
            )
            told = ": ".join(filter(None, (told, _by_round(rows))))
            yield f"- {device} `{study}`: {len(rows)} trials, {told}"


def _short(knobs: Sequence[str]) -> str:
    return " ".join(word for word in knobs if word.startswith(("zero.stage", "micro_batch")))


def _predictions(device: str, trials: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    ran = trials[(trials["outcome"] == "ok") & trials["predicted_step_time_s"].notna()]
    for study, rows in ran.groupby("study"):
        yield (
            *(device, str(study), str(len(rows))),
            *_errors(rows, "step_time", "_s", "step_time_s"),
            *_errors(rows, "peak_memory", "_bytes", "peak_memory_bytes"),
        )


def _errors(rows: pd.DataFrame, name: str, unit: str, measured: str) -> tuple[str, str]:
    off = (rows[f"predicted_{name}{unit}"] / rows[measured] - 1).abs().median()
    low, high = (rows[f"predicted_{name}_{end}{unit}"] for end in ("low", "high"))
    inside = ((low <= rows[measured]) & (rows[measured] <= high)).sum()
    return f"{off:.0%}", f"{inside} of {len(rows)}"


def _overheads(device: str, trials: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    ran = trials[trials["outcome"] == "ok"].copy()
    steps = [column for column in _OF_STEPS if column in ran]
    ran["besides_s"] = ran["wall_s"] - ran[steps].fillna(0).sum(axis="columns")
    for (study, start), rows in ran.groupby(["study", "start"]):
        figures = (f"{rows[column].median():.1f} s" for column in ("besides_s", "wall_s"))
        yield device, str(study), str(start), str(len(rows)), *figures


def _agreement(device: str, stages: pd.DataFrame) -> Iterator[str]:
    for _, row in stages.iterrows():
        if pd.notna(row.get("largest_difference")):
            apart = f"at most {row['largest_difference']:.1e} apart"
            yield f"- {device}: {row['n_pairs']:.0f} candidates, {apart}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
