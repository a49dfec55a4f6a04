"""Reports that the ranks and nodes of a trial have written into its folder so far."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from autotune.contract import (
    NODE_FILE,
    RANKS_DIR,
    ContractError,
    NodeReport,
    Phase,
    RankReport,
    is_count,
    read_json,
)
from autotune.trial.launcher import EXIT_FILE


def read_reports(folder: Path, n_ranks: int, *, first: int = 0) -> list[RankReport]:
    """The ranks' reports that are there and whole, by rank, from the `first` on."""
    reports = []
    for rank in range(first, first + n_ranks):
        with suppress(ContractError):
            data = read_json(folder / RANKS_DIR / f"{rank:02d}.json")
            reports.append(RankReport.from_dict(data))
    return reports


def read_node_report(folder: Path, node: int) -> NodeReport:
    """Report of a node on a trial; empty for one that was lost, or whose file is damaged."""
    with suppress(ContractError):
        return NodeReport.from_dict(read_json(folder / RANKS_DIR / NODE_FILE.format(node=node)))
    return NodeReport()


def exit_codes(folder: Path, node: int) -> dict[str, int]:
    """The exit codes of ranks that the launcher wrote; anything else in the file is left out."""
    with suppress(ContractError):
        codes = read_json(folder / RANKS_DIR / EXIT_FILE.format(node=node))
        return {r: code for r, code in codes.items() if is_count(r) and type(code) is int}
    return {}


def measured_span_s(
    reports: Sequence[RankReport], started_at_s: float
) -> tuple[float, float] | None:
    """When the first rank's measured steps began and ended ; None: there are none.

    Its first phase began at `started_at_s`, by the machine's monotonic clock, as is told here.
    """
    if not reports or not reports[0].measured_s:
        return None
    before = list(Phase)[: list(Phase).index(Phase.MEASURED)]
    phases_s = reports[0].phases_s
    began_s = started_at_s + sum(phases_s.get(phase, 0.0) for phase in before)
    return began_s, began_s + reports[0].measured_s
