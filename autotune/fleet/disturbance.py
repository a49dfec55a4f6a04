"""Whether something else on the machine disturbed a trial while it measured, and the evidence."""

from collections.abc import Sequence

from autotune.contract import RankReport, Surroundings, TrialSpec
from autotune.fleet.two_speeds import two_speeds
from autotune.trial.scripts.lengths import is_drawn

LOAD_SHARE = 0.1
"""Share of a rank's cores that other processes may use: more slows its steps by as much,
which is more than intervals allow for. The search's own process stays below half of it."""
MIN_WATCHED_S = 0.5
"""Shortest watched time that is judged: processors count in ticks of 10 ms."""


def disturbance(spec: TrialSpec, reports: Sequence[RankReport]) -> str:
    """What disturbed a measured trial, in words; empty: nothing that was noticed."""
    words = [_load(reports), _held_up(reports)]
    # Drawn lengths make steps of many durations by themselves.
    modes = None if is_drawn(spec.workload.lengths) else two_speeds(reports[0].step_times_s)
    if modes is not None:
        words.append(
            f"steps ran at two speeds: {modes.fast * 1e3:.3g} ms, and for {modes.slow_share:.0%} "
            f"of them {modes.slow * 1e3:.3g} ms"
        )
    return "; ".join(word for word in words if word)


def _load(reports: Sequence[RankReport]) -> str:
    """Other processes on the cores of a rank; ranks that share their cores are counted as one."""
    groups: dict[tuple[int, ...], list[tuple[Surroundings, float]]] = {}
    for report in reports:
        seen, cpu_s = report.surroundings, report.cpu_s
        if seen is not None and cpu_s is not None:
            groups.setdefault(tuple(seen.cores), []).append((seen, cpu_s))
    worst, where = 0.0, ""
    for cores, ranks in groups.items():
        elapsed_s = min(seen.elapsed_s for seen, _ in ranks)
        others_s = min(seen.busy_s for seen, _ in ranks) - sum(cpu_s for _, cpu_s in ranks)
        if elapsed_s >= MIN_WATCHED_S and others_s / (elapsed_s * len(cores)) > worst:
            worst, where = others_s / (elapsed_s * len(cores)), ", ".join(map(str, cores))
    return f"other processes took {worst:.0%} of core {where}" if worst > LOAD_SHARE else ""


def _held_up(reports: Sequence[RankReport]) -> str:
    """Time in which a rank's cores did not run because a hypervisor or a quota held them up."""
    said: dict[str, float] = {}
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
            if share > max(LOAD_SHARE, said.get(what, 0.0)):
                said[what] = share
    return "; ".join(f"{min(1.0, share):.0%} of the time {what}" for what, share in said.items())
