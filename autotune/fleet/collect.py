"""The result of a trial, read from what it left in its folder.

With it the joined diagnoses of its ranks, and whether something else on the machine disturbed it.
"""

import dataclasses
import itertools
import math
import re
import signal
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotune.base.secrecy import scrubbed_text
from autotune.base.text import visible
from autotune.base.units import format_rate
from autotune.contract import (
    MOST_LOSSES,
    RANKS_DIR,
    STACKS_FILE,
    STDERR_FILE,
    Collective,
    CollectiveCalls,
    Diagnosis,
    GpuUse,
    NodeReport,
    Outcome,
    Phase,
    RankDiagnosis,
    RankReport,
    Start,
    Surroundings,
    TrialResult,
    TrialSpec,
    Use,
    read_tail,
    read_text,
    signal_of,
)
from autotune.fleet.node.telemetry import combined
from autotune.fleet.reports import read_reports
from autotune.trial.scripts.lengths import is_drawn
from autotune.trial.statistics import MIN_SAMPLES, median_interval

_CAUSES_FIRST = (
    *(Outcome.OOM, Outcome.INVALID, Outcome.NONFINITE),
    *(Outcome.LAUNCH, Outcome.CRASH, Outcome.COMM),
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
        evidence=visible(scrubbed_text(evidence)),
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
        places = {outcome: place for place, outcome in enumerate(_CAUSES_FIRST)}
        outcome, cause = min(
            failed, key=lambda pair: (places.get(pair[0], len(places)), pair[1].ended_at_s)
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
    spec: TrialSpec, folder: Path, reports: list[RankReport], nodes: Sequence[NodeReport]
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
    result: TrialResult, spec: TrialSpec, reports: list[RankReport], nodes: Sequence[NodeReport]
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


MAX_COLLECTIVES = 40
"""Collectives that a trial's result keeps: those that take longest."""


def diagnosis_of(reports: Sequence[RankReport]) -> Diagnosis | None:
    """The diagnosis of a trial; None where no rank had a diagnostic pass."""
    seen = {r.rank: r.diagnosis for r in reports if r.diagnosis is not None}
    for cut_off in (r for r in reports if r.diagnosis is None and r.phase is Phase.DIAGNOSE):
        seen[cut_off.rank] = RankDiagnosis(problem=f"rank {cut_off.rank} did not finish it")
    if not seen:
        return None
    problems = sorted({report.problem for report in seen.values() if report.problem})
    collectives = _collectives([report.calls for report in seen.values()])
    splits = {rank: report.split for rank, report in seen.items() if report.split is not None}
    if not splits:
        return Diagnosis(collectives=collectives, problem="; ".join(problems))
    # The others wait for the rank that waits least: its time is the trial's.
    busiest = min(splits, key=lambda rank: (splits[rank].communication_s, rank))
    split = splits[busiest]
    others = [s.communication_s for rank, s in splits.items() if rank != busiest]
    return Diagnosis(
        steps=seen[busiest].steps,
        rank=busiest,
        split=split,
        waiting_s=statistics.mean(others) - split.communication_s if others else 0.0,
        collectives=collectives,
        problem="; ".join(problems),
    )


def use_of(reports: Sequence[RankReport], gpus: Sequence[GpuUse]) -> Use | None:
    """Resources that the measured steps took; None where a rank did not say."""
    measured_s = reports[0].measured_s if reports else None
    cpu_s = [r.cpu_s for r in reports if r.cpu_s is not None]
    if not measured_s or len(cpu_s) < len(reports):
        return None
    samples = [gpu.samples for gpu in gpus]
    return Use(
        cpu_s=sum(cpu_s),
        cpu_utilization=statistics.mean(cpu_s) / measured_s,
        gpu=combined(gpus, min(samples), [gpu.energy_j for gpu in gpus]) if gpus else None,
    )


def _collectives(ranks: Sequence[Sequence[CollectiveCalls]]) -> list[Collective]:
    groups: dict[tuple[str, int, int], list[list[float]]] = {}
    for call in itertools.chain.from_iterable(ranks):
        key = (call.name, call.message_bytes, call.group_size)
        groups.setdefault(key, []).append(call.seconds)
    found = [_collective(*key, times) for key, times in groups.items()]
    found.sort(key=lambda c: (-c.transfer_s - c.waiting_s, c.name, c.message_bytes))
    return found[:MAX_COLLECTIVES]


def _collective(
    name: str, message_bytes: int, group_size: int, times: Sequence[Sequence[float]]
) -> Collective:
    """One collective from the times of its calls, rank by rank.

    The last rank to arrive waits for nobody, so the shortest time of a call is that of the
    transfer. A receive has no other rank to compare it with: all of it counts as waiting. Ranks
    that made different numbers of calls, such as the stages of a pipeline, are not comparable call
    by call: the ranks that made the most are looked at.
    """
    n_calls = max(len(of_rank) for of_rank in times)
    alike = [of_rank for of_rank in times if len(of_rank) == n_calls]
    transfers = [min(call) for call in zip(*alike, strict=True)]
    transfer_s = 0.0 if name in _RECEIVES else sum(transfers)
    waiting_s = statistics.mean(sum(of_rank) for of_rank in alike) - transfer_s
    algbw, busbw = _bandwidths(name, message_bytes, group_size, transfer_s / n_calls)
    return Collective(
        name=name,
        message_bytes=message_bytes,
        group_size=group_size,
        calls=n_calls,
        transfer_s=transfer_s,
        waiting_s=waiting_s,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
    )


_RECEIVES = ("recv", "irecv")
_GATHERS = ("all_gather", "all_gather_into_tensor")
_ONCE = (*_GATHERS, "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single")
_BUS: Mapping[str, int] = {
    **dict.fromkeys(("all_reduce", "inference_all_reduce", "all_reduce_coalesced"), 2),
    **dict.fromkeys(_ONCE, 1),
}
"""How often a link carries the (n - 1)/n of the result that is not its rank's own; the result of
other collectives passes a link once, whole."""


def _bandwidths(
    name: str, message_bytes: int, group_size: int, call_s: float
) -> tuple[float | None, float | None]:
    """Algorithm and bus bandwidth as nccl-tests defines them (doc/PERFORMANCE.md).

    The message is what a rank hands in. The result of a gather is as large as all of those.
    """
    total_bytes = message_bytes * (group_size if name in _GATHERS else 1)
    if not total_bytes or call_s <= 0:
        return None, None
    algbw = total_bytes / call_s
    share = _BUS[name] * (group_size - 1) / group_size if name in _BUS else 1
    return algbw, algbw * share


LOAD_SHARE = 0.1
"""Share of a rank's cores that other processes may use: more slows its steps by as much,
which is more than intervals allow for. The search's own process stays below half of it."""
MIN_WATCHED_S = 0.5
"""Shortest watched time that is judged: processors count in ticks of 10 ms."""
SPEEDS_APART = 0.1
"""Share by which the slower one is slower, at the least: less is lost in the interval."""
_ASHMAN_D = 4.0
"""A normal distribution cut in half has 2.3, a uniform one 3.5: two speeds have more."""
_STAYS_Z = -2.33
"""Standard deviations below the expected number of runs: 1% by chance."""


def disturbance(spec: TrialSpec, reports: Sequence[RankReport]) -> str:
    """Causes that disturbed a measured trial, in words; empty: nothing that was noticed."""
    words = [_load(reports), _held_up(reports)]
    # Drawn lengths make steps of many durations by themselves.
    modes = None if is_drawn(spec.workload.lengths) else two_speeds(reports[0].step_times_s)
    if modes is not None:
        fast_ms, slow_ms = (format_rate(step_s * 1e3) for step_s in modes[:2])
        words.append(
            f"steps ran at two speeds: {fast_ms} ms, and for {modes[2]:.0%} of them {slow_ms} ms"
        )
    return "; ".join(word for word in words if word)


def _load(reports: Sequence[RankReport]) -> str:
    """Other processes on the cores of a rank; ranks that share their cores are counted as one."""
    groups: dict[tuple[int, ...], list[tuple[Surroundings, float]]] = {}
    for report in reports:
        seen, cpu_s = report.surroundings, report.cpu_s
        if seen is not None and cpu_s is not None:
            groups.setdefault(tuple(seen.cores), []).append((seen, cpu_s + seen.children_s))
    worst, where = 0.0, ""
    for cores, ranks in groups.items():
        elapsed_s = min(seen.elapsed_s for seen, _ in ranks)
        others_s = min(seen.busy_s for seen, _ in ranks) - sum(cpu_s for _, cpu_s in ranks)
        if elapsed_s >= MIN_WATCHED_S and others_s / (elapsed_s * len(cores)) > worst:
            worst, where = others_s / (elapsed_s * len(cores)), ", ".join(map(str, cores))
    return f"other processes took {worst:.0%} of core {where}" if worst > LOAD_SHARE else ""


def _held_up(reports: Sequence[RankReport]) -> str:
    """Time in which a rank's cores did not run because a hypervisor or a quota held them up."""
    worst: dict[str, float] = {}
    for report in reports:
        seen = report.surroundings
        if seen is None or seen.elapsed_s < MIN_WATCHED_S:
            continue
        shares = {
            "was stolen by other virtual machines": seen.stolen_s / len(seen.cores),
            "was withheld by a CPU quota": seen.throttled_s,
        }
        for what, held_up_s in shares.items():
            share = held_up_s / seen.elapsed_s
            if share > max(LOAD_SHARE, worst.get(what, 0.0)):
                worst[what] = share
    return "; ".join(f"{min(1.0, share):.0%} of the time {what}" for what, share in worst.items())


def two_speeds(samples: Sequence[float]) -> tuple[float, float, float] | None:
    """The two speeds of a series that ran now at one and now at the other; None: it did not.

    The split is Otsu's (A Threshold Selection Method from Gray-Level Histograms, 1979), of the
    logarithms. It counts where each side has `MIN_SAMPLES`, the medians are `SPEEDS_APART` apart,
    the sides are clearly two (Ashman's D, in Ashman, Bird and Zepf, Detecting Bimodality in
    Astronomical Datasets, 1994), and the series stays with a side for longer than chance would
    (Wald and Wolfowitz, On a Test Whether Two Samples are from the Same Population, 1940): what
    alternates by design, like an optimizer that acts every fourth step, is no interference.

    Args:
        samples: In the order in which they were measured; above 0.

    Returns:
        Medians of the faster and the slower ones, in their unit, and the share of the slower.
    """
    if len(samples) < 2 * MIN_SAMPLES:
        return None
    logs = np.log(samples)
    is_slow = logs > _split(np.sort(logs))
    slow, fast = logs[is_slow], logs[~is_slow]
    if min(len(slow), len(fast)) < MIN_SAMPLES:
        return None
    apart = np.median(slow) - np.median(fast)
    spread = math.hypot(slow.std(), fast.std())
    if apart < math.log(1 + SPEEDS_APART) or math.sqrt(2) * apart <= _ASHMAN_D * spread:
        return None
    # Fewer runs than chance would make.
    runs = 1 + np.count_nonzero(is_slow[1:] != is_slow[:-1])
    more = 2 * len(slow) * len(fast) / len(logs)  # than one, as chance would have it
    if runs - 1 - more >= _STAYS_Z * math.sqrt(more * (more - 1) / (len(logs) - 1)):
        return None
    return math.exp(np.median(fast)), math.exp(np.median(slow)), len(slow) / len(logs)


def _split(ordered: npt.NDArray[np.float64]) -> float:
    """The value after which two classes explain most of the variance (Otsu)."""
    n, sums = len(ordered), ordered.cumsum()
    k, below = np.arange(1, n), sums[:-1]
    between = k * (n - k) * (below / k - (sums[-1] - below) / (n - k)) ** 2
    between[ordered[1:] == ordered[:-1]] = -1.0
    return float(ordered[between.argmax()])
