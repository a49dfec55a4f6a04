"""The result of a trial, read from what it left in its folder."""

import dataclasses
import math
import re
import signal
import statistics
from collections.abc import Sequence
from pathlib import Path

from autotune.base.secrecy import scrubbed_text
from autotune.base.text import one_line
from autotune.contract import (
    MOST_LOSSES,
    RANKS_DIR,
    STACKS_FILE,
    STDERR_FILE,
    NodeReport,
    Outcome,
    Phase,
    RankReport,
    Start,
    TrialResult,
    TrialSpec,
    read_tail,
    read_text,
    signal_of,
)
from autotune.fleet.diagnosis import diagnosis_of, use_of
from autotune.fleet.disturbance import disturbance
from autotune.fleet.reports import read_reports
from autotune.trial.statistics import median_interval

_CAUSES_FIRST = (
    Outcome.OOM,
    Outcome.INVALID,
    Outcome.NONFINITE,
    Outcome.LAUNCH,
    Outcome.CRASH,
    Outcome.COMM,
)
"""A rank that fails takes the others down with communication errors: those are never the cause."""

_EVIDENCE_LINE = re.compile(
    r"(out of memory|bad_alloc|cannot allocate|segmentation fault|bus error|"
    r"\w+(?:Error|Exception): .*|terminate called|"
    r"^[\w.-]+: error: .*)",  # argparse: the command's arguments are wrong
    re.IGNORECASE,
)
_TAIL_BYTES = 64 * 1024
_UNKNOWN_KILLER = (
    "no kill for memory was counted here: a scheduler, a limit outside of this container or a "
    "person may have sent it"
)

_DOING = {Phase.WARM_UP: "while warming up", Phase.MEASURED: "while measuring"}
_IN_A_COLLECTIVE = ", at distributed_c10d.py:"

_STACK_OF_SIGNALLED_THREAD = re.compile(
    r'^Current thread .*\n +File "(.+)", line (\d+) in (.+)$', re.MULTILINE
)
"""Stack as faulthandler writes it; the thread that gets a process's signals is the main one."""


def collect(
    spec: TrialSpec, folder: Path, seen: TrialResult, nodes: Sequence[NodeReport]
) -> TrialResult:
    """Name the outcome of a trial by what it left in its folder.

    Args:
        spec: The trial.
        folder: Its own.
        seen: What its coordinator knows: when it ran and where, whether it was cancelled or timed
            out, and as evidence the problem of a node whose report is missing.
        nodes: Reports of the gang's nodes, in their order.
    """
    reports = read_reports(folder, spec.layout.world)
    outcome, evidence, source = _outcome(spec, folder, reports, seen, nodes)
    driver_error = "; ".join(node.driver_error for node in nodes if node.driver_error)
    if driver_error:
        # However the trial ended, the next one may not find its devices.
        evidence = f"{evidence}; {driver_error}" if evidence else driver_error
        source = source or "driver, after the trial"
    is_warm = all(node.start is Start.WARM for node in nodes)
    first = reports[0] if reports else RankReport(rank=0)
    meters = {meter for report in reports for meter in report.memory_bytes}
    memory_bytes = {
        meter: max(r.memory_bytes[meter] for r in reports if meter in r.memory_bytes)
        for meter in sorted(meters)
    }
    if undrained_bytes := max(node.undrained_bytes for node in nodes):
        memory_bytes["undrained"] = undrained_bytes
    result = dataclasses.replace(
        seen,
        outcome=outcome,
        # It is shown before the record is read again; a training script may print anything.
        evidence=one_line(scrubbed_text(evidence)),
        evidence_source=source,
        start=Start.WARM if is_warm else Start.COLD,
        phases_s=_phases(reports, seen.wall_s),
        warmup_step_times_s=first.warmup_step_times_s,
        step_times_s=first.step_times_s,
        steps_skipped=max((r.steps_skipped for r in reports), default=0),
        peak_memory_bytes=memory_bytes.get("peak"),
        memory_bytes=memory_bytes,
        host_construction_bytes=max(
            (r.host_construction_bytes for r in reports if r.host_construction_bytes is not None),
            default=None,
        ),
        loss_first=first.losses[0] if first.losses else None,
        loss_last=first.losses[-1] if first.losses else None,
        read_back=first.read_back,
        differences=sorted({d for r in reports for d in r.differences}),
        versions=first.versions,
        environment=nodes[0].environment,
        diagnosis=diagnosis_of(reports) if outcome.is_measured else None,
        log_bytes_left_out=sum(node.log_bytes_left_out for node in nodes),
        own_log=next((r.own_log for r in reversed(reports) if r.own_log is not None), None),
    )
    return _with_figures(result, spec, reports, nodes) if outcome.is_measured else result


def _outcome(
    spec: TrialSpec,
    folder: Path,
    reports: list[RankReport],
    seen: TrialResult,
    nodes: Sequence[NodeReport],
) -> tuple[Outcome, str, str]:
    # What came after all steps were measured costs no figure.
    if len(reports) == spec.layout.world and all(
        r.phase in (Phase.DIAGNOSE, Phase.TEARDOWN) and r.outcome is None and r.step_times_s
        for r in reports
    ):
        if reports[0].stopped_early:
            return Outcome.STOPPED_EARLY, *_losing(spec, reports[0])
        return Outcome.OK, "", ""
    if seen.outcome is Outcome.CANCELLED:
        return Outcome.CANCELLED, "cancelled by the coordinator", "coordinator"
    silent = _killed_silently(reports, nodes, spec.layout.world)
    failed = [(r.outcome, r) for r in reports if r.outcome is not None]
    if failed:
        outcome, cause = min(
            failed, key=lambda pair: (_rank_of_cause(pair[0]), pair[1].ended_at_s)
        )
        if outcome is Outcome.COMM and silent is not None:
            return silent
        evidence = cause.evidence
        if outcome is Outcome.COMM and seen.evidence:
            # A broken connection names an address at most, and the node is what is to be mended.
            evidence = f"{seen.evidence}; {evidence}"
        return outcome, evidence, f"rank {cause.rank} in {cause.phase}"
    if seen.outcome is Outcome.TIMEOUT:
        return _timeout(spec, folder, reports, nodes)
    if silent is not None:
        return silent
    evidence, source = _last_error_line(folder / STDERR_FILE)
    codes = [node.launcher_code for node in nodes]
    code = next((code for code in codes if code), codes[0])
    how = f"ended with code {code}"
    if code is not None and (number := signal_of(code)):
        how = f"was ended by {_signal_name(number)}"
    evidence = evidence or seen.evidence or f"the launcher {how}"
    return Outcome.LAUNCH, evidence, source


def _rank_of_cause(outcome: Outcome) -> int:
    return _CAUSES_FIRST.index(outcome) if outcome in _CAUSES_FIRST else len(_CAUSES_FIRST)


def _killed_silently(
    reports: list[RankReport], nodes: Sequence[NodeReport], world: int
) -> tuple[Outcome, str, str] | None:
    """A rank that a signal ended before it could say anything.

    SIGTERM is what the launcher sends to the others, unless no rank ended in another way.
    """
    phases = {r.rank: r.phase for r in reports}
    ended = [(int(r), code, n) for n in nodes for r, code in n.exit_codes.items() if code]
    is_cause = all(code == -15 for _, code, _ in ended)
    for rank, code, node in sorted(ended, key=lambda entry: entry[0]):
        if code < 0 and (code != -15 or is_cause) and rank < world:
            where = f"rank {rank} in {phases.get(rank, Phase.SPAWN)}"
            if code == -9 and node.oom_killed:
                return Outcome.OOM, "the kernel killed the rank for memory (SIGKILL)", where
            killer = f"; {_UNKNOWN_KILLER}" if code == -9 else ""
            return Outcome.CRASH, f"ended by {_signal_name(-code)}{killer}", where
    return None


def _signal_name(number: int) -> str:
    known = number in {member.value for member in signal.Signals}
    return signal.Signals(number).name if known else f"signal {number}"


def _timeout(
    spec: TrialSpec,
    folder: Path,
    reports: list[RankReport],
    nodes: Sequence[NodeReport],
) -> tuple[Outcome, str, str]:
    after_s = spec.measure.timeout_s
    stopped = [rank for node in nodes for rank in node.stopped_ranks]
    if not reports:
        return Outcome.LAUNCH, f"no rank had started after {after_s:.0f} s", "coordinator"
    for report in reports:
        if report.rank in stopped:
            evidence = (
                f"stopped from outside (SIGSTOP, or a debugger): not done after {after_s:.0f} s"
            )
            return Outcome.CRASH, evidence, f"rank {report.rank} in {report.phase}"
    # Among ranks in the same phase it is the one that the others wait for in a collective.
    places = {report.rank: _stopped_at(folder, report.rank) for report in reports}
    slowest = min(
        reports,
        key=lambda r: (list(Phase).index(r.phase), _IN_A_COLLECTIVE in places[r.rank], r.rank),
    )
    stepped = bool(slowest.warmup_step_times_s or slowest.step_times_s)
    where = f"rank {slowest.rank} in {slowest.phase}"
    # A script of the user's says no more before its first pass.
    after = " or after it" if spec.workload.command and slowest.phase is Phase.ENGINE_INIT else ""
    phase = f"{slowest.phase}{after}{places[slowest.rank]}"
    if stepped:
        doing = _DOING.get(slowest.phase, f"in {slowest.phase}") + places[slowest.rank]
        return Outcome.TIMEOUT, f"not done after {after_s:.0f} s, ended {doing}", where
    outcome = Outcome.LAUNCH if slowest.phase in (Phase.SPAWN, Phase.IMPORT) else Outcome.COMM
    return outcome, f"no first step after {after_s:.0f} s, hung in {phase}", where


def _stopped_at(folder: Path, rank: int) -> str:
    """Line of code at which a hung rank stood, from the stacks that it was asked for."""
    path = folder / RANKS_DIR / STACKS_FILE.format(rank=rank)
    try:
        stacks = read_text(path)
    except OSError:
        return ""
    frame = _STACK_OF_SIGNALLED_THREAD.search(stacks)
    return f", at {Path(frame[1]).name}:{frame[2]} in {frame[3]}" if frame else ""


def _last_error_line(log: Path) -> tuple[str, str]:
    try:
        lines = read_tail(log, _TAIL_BYTES).splitlines()
    except OSError:
        return "", ""
    for line in reversed(lines):
        if _EVIDENCE_LINE.search(line):
            return " ".join(line.split())[:500], log.name
    return "", ""


def _losing(spec: TrialSpec, report: RankReport) -> tuple[str, str]:
    low_s = median_interval(report.step_times_s)[1]
    allowed_s = spec.measure.losing_step_time_s or math.nan
    return (
        f"step time is at least {low_s:.4g} s, above {allowed_s:.4g} s it cannot come near the "
        f"best so far: stopped after {len(report.step_times_s)} steps",
        "interval of the median step",
    )


def _with_figures(
    result: TrialResult,
    spec: TrialSpec,
    reports: list[RankReport],
    nodes: Sequence[NodeReport],
) -> TrialResult:
    step_time_s, low_s, high_s = median_interval(result.step_times_s)
    samples = spec.layout.micro_batch * spec.layout.grad_accum * spec.layout.dp
    losses, n_skipped = _losses(reports)
    return dataclasses.replace(
        result,
        losses=losses,
        losses_skipped=n_skipped,
        use=use_of(reports, [node.gpu for node in nodes if node.gpu is not None]),
        is_steady=reports[0].is_steady,
        disturbed=disturbance(spec, reports),
        tokens_per_step=_per_step(spec, reports, "tokens"),
        padded_tokens_per_step=_per_step(spec, reports, "padded_tokens"),
        step_time_s=step_time_s,
        step_time_low_s=low_s,
        step_time_high_s=high_s,
        samples_per_s=samples / step_time_s,
        samples_per_s_low=samples / high_s,
        samples_per_s_high=samples / low_s,
    )


def _losses(reports: Sequence[RankReport]) -> tuple[list[float], int]:
    """Losses of the global batch in the first steps that were applied, and how many were not.

    Ranks that share a model or a sample say the same loss, and all replicas have as many ranks:
    the mean over the ranks is that over the replicas.
    """
    skipped = {step for report in reports for step in report.skipped}
    n_steps = min(len(report.losses) for report in reports)
    applied = [step for step in range(n_steps) if step not in skipped][:MOST_LOSSES]
    losses = [statistics.fmean(report.losses[step] for report in reports) for step in applied]
    return losses, sum(step < applied[-1] for step in skipped) if applied else 0


def _per_step(spec: TrialSpec, reports: list[RankReport], field: str) -> float | None:
    """A count of tokens per measured step; the ranks of a tensor-parallel group share theirs."""
    total: float = sum(getattr(report, field) for report in reports) / spec.layout.tp
    return total / len(reports[0].step_times_s) if total else None


def _phases(reports: list[RankReport], wall_s: float) -> dict[str, float]:
    """Seconds per phase on rank 0, so that they add up to the trial's wall time."""
    if not reports:
        return {}
    phases = {str(phase): seconds for phase, seconds in reports[0].phases_s.items()}
    after_s = max(0.0, wall_s - reports[0].ended_at_s)
    phases["teardown"] = phases.get("teardown", 0.0) + after_s
    return phases
