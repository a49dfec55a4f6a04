"""Answers a search from a table of runs that were measured elsewhere."""

import dataclasses
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
        found = configurations.get(spec.identity.candidate_hash)
        result = TrialResult(
            number=spec.identity.number,
            role=spec.identity.role,
            candidate_hash=spec.identity.candidate_hash,
            outcome=Outcome.INVALID,
            origin=Origin.REPLAYED,
            evidence="the table has no run of this configuration",
            evidence_source="replay",
        )
        if found is None:
            return result
        where = ", ".join(row.where for row in found.rows)
        if found.step_time_s is None:
            return dataclasses.replace(
                result,
                outcome=Outcome.OOM,
                evidence=f"the table says {found.rows[0].text('status')}",
                evidence_source=where,
            )
        return dataclasses.replace(
            result,
            outcome=Outcome.OK,
            evidence="",
            evidence_source=where,
            step_times_s=[found.step_time_s],
            step_time_s=found.step_time_s,
            samples_per_s=spec.layout.global_batch / found.step_time_s,
            peak_memory_bytes=found.peak_memory_bytes,
        )

    return answer
