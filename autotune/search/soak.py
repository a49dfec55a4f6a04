"""A soak: one configuration for minutes, through a checkpoint, with its memory watched.

Two trials of half the time each. The first saves a checkpoint when its time is over and trains a
few steps more; the second resumes it in fresh processes: its first steps see the same data, so
their losses must be the same. Then it trains on for the other half.
"""

import dataclasses
import itertools
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotune.base.errors import StudyError
from autotune.base.templates import Fact, tell
from autotune.base.units import format_bytes, format_seconds
from autotune.contract import (
    METER_SLACK,
    Checkpoint,
    Measure,
    RankReport,
    Role,
    Start,
    TrialResult,
    TrialSpec,
)
from autotune.fleet.reports import read_reports
from autotune.record.soak import Growth, Resumed
from autotune.record.study import Study, Trial
from autotune.search.history import is_settled
from autotune.search.runner import Runner
from autotune.trial.statistics import MIN_SAMPLES

STEPS_COMPARED = 4
LOSS_TOLERANCE = 5e-4
"""Largest difference of a loss, as a share of it. CPU ranks agreed to 6e-6 at worst (bf16, 49
steps); a GPU adds up in another order each time, so there is room for more."""

WARM_UP_SHARE = 0.2
"""Share of each half whose memory is not judged: allocators and caches still grow there."""
GROWTH_SHARE = 0.02
GROWTH_BYTES = 16 * 2**20
"""Growth that a meter may show while it is watched, the larger of the two: heaps that fragment
grow about that much and stop. A longer soak sees a slower leak."""

CHECKPOINT_BYTES_PER_PARAM = 16
"""Upper bound: weights of two bytes, fp32 weights and two fp32 moments, and some to spare."""


@dataclass(frozen=True, kw_only=True)
class Half:
    """One of the two trials."""

    spec: TrialSpec
    result: TrialResult
    reports: list[RankReport]

    @property
    def n_watched(self) -> int:
        """Samples of memory that every rank has to be judged by."""
        return min((len(_watched(report)) for report in self.reports), default=0)

    @property
    def is_over_limit(self) -> bool:
        limit, peak = self.spec.measure.memory_limit_bytes, self.result.peak_memory_bytes
        return limit is not None and peak is not None and peak > limit * (1 + METER_SLACK)


@dataclass(frozen=True, kw_only=True)
class Soak:
    """The halves that ran, and what they say."""

    halves: list[Half]
    """Two; one where it did not end well."""
    size_bytes: int = 0
    """Bytes of the checkpoint, which is deleted."""

    @property
    def failures(self) -> list[str]:
        """Why it failed; empty if nothing that could be judged did."""
        return [text for name, text in self._problems if name == "failure"]

    @property
    def unknown(self) -> list[str]:
        """What it was too short to judge; empty if all that ended well could be."""
        return [text for name, text in self._problems if name == "unknown"]

    @property
    def _problems(self) -> list[Fact]:
        values = {
            "soak": self,
            "halves": [*zip(("first", "second"), self.halves, strict=False)],
            "is_measured": all(half.result.outcome.is_measured for half in self.halves),
            "least_samples": MIN_SAMPLES,
            "warm_up_share": WARM_UP_SHARE,
            "steps_compared": STEPS_COMPARED,
            "tolerance": LOSS_TOLERANCE,
        }
        return tell("soak_problems", values)

    @cached_property
    def growth(self) -> list[Growth]:
        """How every meter moved, each on the rank and in the half where it grew most."""
        found: dict[str, Growth] = {}
        for report in (report for half in self.halves for report in half.reports):
            for growth in _growth_on(report):
                before = found.setdefault(growth.meter, growth)
                if growth.slope_bytes_per_hour > before.slope_bytes_per_hour:
                    found[growth.meter] = growth
        return list(found.values())

    @cached_property
    def checkpoint(self) -> Resumed | None:
        saved, *resumed = [half.reports for half in self.halves]
        if not saved or not saved[0].checkpoint:
            return None
        loads = [r.checkpoint["seconds"] for reports in resumed for r in reports if r.checkpoint]
        return Resumed(
            steps=int(saved[0].checkpoint["steps"]),
            size_bytes=self.size_bytes,
            save_s=max(report.checkpoint.get("seconds", 0.0) for report in saved),
            load_s=max(loads, default=None),
            steps_compared=0 if self.loss_deviation is None else STEPS_COMPARED,
            loss_deviation=self.loss_deviation,
            loss_tolerance=LOSS_TOLERANCE,
        )

    @cached_property
    def loss_deviation(self) -> float | None:
        """Largest difference of a loss after the resume from the same step's without, as a share.

        None where a rank does not have `STEPS_COMPARED` of both.
        """
        if len(self.halves) < 2:
            return None
        shares = []
        for saved, resumed in zip(*(half.reports for half in self.halves), strict=False):
            start = int(saved.checkpoint.get("steps", len(saved.losses)))
            before, after = saved.losses[start:][:STEPS_COMPARED], resumed.losses[:STEPS_COMPARED]
            if min(len(before), len(after)) < STEPS_COMPARED:
                return None
            pairs = zip(before, after, strict=True)
            shares += [abs(loss - was) / max(abs(was), 1e-12) for was, loss in pairs]
        return max(shares, default=None)


def soak_trials(
    spec: TrialSpec, files: Mapping[str, str], *, minutes: float, runner: Runner
) -> Soak | None:
    """Run both halves; the second only if the first ended well.

    Where the user ended the second half, the same call goes on with it.

    Args:
        spec: The configuration; its number, role, length and time limit become the soak's.
        files: Its configuration files.
        minutes: For both halves together.
        runner: Runs and records them.

    Returns:
        What ran; None if the user ended it.

    Raises:
        StudyError: The record cannot be written.
        FleetError: No gang is free.
    """
    record = runner.record
    folder = record.folder.resolve() / "checkpoint"
    saving = Checkpoint(folder=str(folder), steps_after=STEPS_COMPARED)

    def run(checkpoint: Checkpoint) -> Half | None:
        """Run a half, once more where the platform ended it; None: the user did."""
        trials: list[Trial] = []
        while not is_settled(trials):
            if checkpoint is saving:
                shutil.rmtree(folder, ignore_errors=True)
            half = _half_of(spec, record.next_number(), minutes, checkpoint)
            trial = runner.run(half, files, name="soak")
            if trial is None:
                return None
            trials.append(trial)
        return _half(trials[-1])

    is_kept, each_half = False, format_seconds(minutes * 30)
    first = _saved(record, folder, lambda n: _half_of(spec, n, minutes, saving), files)
    try:
        if first is None:
            runner.note(f"soak: {each_half}, then a checkpoint")
            first = run(saving)
        if first is None:
            return None
        halves = [first]
        size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if first.result.outcome.is_measured:
            runner.note(
                f"soak: a checkpoint of {format_bytes(size_bytes)}; fresh processes resume it "
                f"and train for {each_half}"
            )
            steps = int(first.reports[0].checkpoint["steps"])
            second = run(Checkpoint(folder=str(folder), resumes_at=steps))
            if second is None:
                is_kept = True
                return None
            halves.append(second)
        return Soak(halves=halves, size_bytes=size_bytes)
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _saved(
    record: Study, folder: Path, half_of: Callable[[int], TrialSpec], files: Mapping[str, str]
) -> Half | None:
    """The first half whose checkpoint is the one that is there; None: it begins anew."""
    trials = reversed(record.trials()) if folder.exists() else ()
    made = ((trial, trial.spec.measure.checkpoint) for trial in trials)
    last = next((trial for trial, saved in made if saved and saved.resumes_at is None), None)
    is_whole = last is not None and is_settled([last]) and last.spec == half_of(last.number)
    return _half(last) if last and is_whole and record.read_files(last) == files else None


def _half(trial: Trial) -> Half:
    assert trial.result is not None, "it has ended"
    reports = read_reports(trial.folder, trial.spec.layout.world)
    return Half(spec=trial.spec, result=trial.result, reports=reports)


def check_space(folder: Path, n_params: int) -> None:
    """See that a checkpoint fits on the disk, before minutes are spent.

    Raises:
        StudyError: It might not.
    """
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free_bytes = shutil.disk_usage(above).free
    needed_bytes = n_params * CHECKPOINT_BYTES_PER_PARAM
    if free_bytes < needed_bytes:
        needed, free = format_bytes(needed_bytes), format_bytes(free_bytes)
        raise StudyError.of(
            "search.no_room_for_checkpoint", folder=folder, n=n_params, needed=needed, free=free
        )


def _watched(report: RankReport) -> list[dict[str, float]]:
    """The samples of a rank's memory that its growth is judged by."""
    return report.memory_samples[round(len(report.memory_samples) * WARM_UP_SHARE) :]


def _growth_on(report: RankReport) -> list[Growth]:
    samples = _watched(report)
    if len(samples) < MIN_SAMPLES:
        return []
    hours = [sample["elapsed_s"] / 3600 for sample in samples]
    watched = hours[-1] - hours[0]
    meters = {name: [s[name] for s in samples] for name in samples[0] if name != "elapsed_s"}
    return [
        Growth(
            meter=meter,
            slope_bytes_per_hour=_slope(hours, sizes),
            allowed_bytes_per_hour=max(GROWTH_SHARE * statistics.median(sizes), GROWTH_BYTES)
            / watched,
            watched_s=watched * 3600,
        )
        for meter, sizes in meters.items()
    ]


def _half_of(spec: TrialSpec, number: int, minutes: float, checkpoint: Checkpoint) -> TrialSpec:
    budget_s = minutes * 60 / 2
    return dataclasses.replace(
        spec,
        identity=dataclasses.replace(spec.identity, number=number, role=Role.SOAK),
        # Every sample is as long as the longest there is room for.
        workload=dataclasses.replace(spec.workload, lengths={}),
        measure=Measure(
            warmup_steps=2,
            min_steps=MIN_SAMPLES + 2,  # enough samples are left after `WARM_UP_SHARE` of so few
            max_steps=2**31,
            target_half_width=0.0,  # steady or not, it goes on
            budget_s=budget_s,
            memory_limit_bytes=spec.measure.memory_limit_bytes,
            # Once more for the checkpoint, which may be hundreds of gigabytes.
            timeout_s=budget_s + 2 * spec.measure.timeout_s,
            checkpoint=checkpoint,
            start=Start.COLD,
        ),
    )


def _slope(times: Sequence[float], values: Sequence[float]) -> float:
    """How fast values grow at least, whatever a single jump adds.

    Memory grows in steps and jumps, and a jump that is not repeated is no growth. What counts is
    the slower of all and of what is left without the largest jump, or of both halves where that is
    more: a jump is in one of them alone.
    """
    rises = [after - before for before, after in itertools.pairwise(values)]
    jump = max(rises, default=0.0)
    behind = rises.index(jump) + 1 if rises else 0
    level = [*values[:behind], *(value - jump for value in values[behind:])]
    half = len(times) // 2
    halves = (
        _median_slope(times[part], values[part]) for part in (slice(half), slice(half, None))
    )
    return min(_median_slope(times, values), max(min(halves), _median_slope(times, level)))


def _median_slope(times: Sequence[float], values: Sequence[float]) -> float:
    """The median slope of all pairs (Theil and Sen), 0 below two times."""
    pairs = itertools.combinations(zip(times, values, strict=True), 2)
    slopes = [
        (after - value) / (later - at) for (at, value), (later, after) in pairs if later != at
    ]
    return statistics.median(slopes) if slopes else 0.0
