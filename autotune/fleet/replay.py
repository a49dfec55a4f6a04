"""Answers a search from a table of runs that were measured elsewhere."""

from collections.abc import Mapping

from autotune.contract import Origin, Outcome, TrialResult, TrialSpec
from autotune.fleet.answering import Answer
from autotune.replay.groups import Configuration


def replayed(configurations: Mapping[str, Configuration]) -> Answer:
    """What the table has of a trial's candidate; one that it does not have is invalid.

    Args:
        configurations: By the hash of their candidates.
    """

    def answer(spec: TrialSpec) -> TrialResult:
        found = configurations.get(spec.candidate_hash)
        if found is None:
            return _result(
                spec,
                Outcome.INVALID,
                evidence="the table has no run of this configuration",
                evidence_source="replay",
            )
        where = ", ".join(row.where for row in found.rows)
        if found.step_time_s is None:
            return _result(
                spec,
                Outcome.OOM,
                evidence=f"the table says {found.rows[0].text('status')}",
                evidence_source=where,
            )
        return _measured(spec, found.step_time_s, found.peak_memory_bytes, where)

    return answer


def _measured(
    spec: TrialSpec, step_time_s: float, peak_memory_bytes: int | None, where: str
) -> TrialResult:
    samples_per_s = spec.global_batch / step_time_s
    return _result(
        spec,
        Outcome.OK,
        evidence_source=where,
        step_times_s=[step_time_s],
        step_time_s=step_time_s,
        samples_per_s=samples_per_s,
        peak_memory_bytes=peak_memory_bytes,
    )


def _result(spec: TrialSpec, outcome: Outcome, **figures: object) -> TrialResult:
    return TrialResult(
        number=spec.number,
        role=spec.role,
        candidate_hash=spec.candidate_hash,
        outcome=outcome,
        origin=Origin.REPLAYED,
        **figures,  # type: ignore[arg-type]
    )
