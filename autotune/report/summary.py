"""The answer of a search as JSON data: what `search --json` prints and `study.json` keeps."""

from typing import Any

from autotune.record import Study
from autotune.search.base import SearchResult, Standing


def summarize(result: SearchResult, study: Study) -> dict[str, Any]:
    """The answer as one object.

    Returns:
        `study`, `counts` by outcome, `baseline` and `best` (null where there is none), `ties`,
        `speedup` with its 95% interval `speedup_low` to `speedup_high` (null if no baseline was
        compared), `stop_reason`,
        `interrupted`, `paths`.
    """
    return {
        "study": result.study,
        "counts": {outcome.value: count for outcome, count in result.counts.items()},
        "baseline": _standing(result.baseline),
        "best": _standing(result.best),
        "ties": [_standing(tie) for tie in result.ties],
        "speedup": None if result.speedup is None else result.speedup.ratio,
        "speedup_low": None if result.speedup is None else result.speedup.low,
        "speedup_high": None if result.speedup is None else result.speedup.high,
        "stop_reason": result.stop_reason.value,
        "interrupted": result.interrupted,
        "paths": {
            "table": str(study.table_file),
            "export": str(study.best_folder) if result.best is not None else None,
        },
    }


def _standing(standing: Standing | None) -> dict[str, Any] | None:
    if standing is None:
        return None
    return {
        "trial": standing.trial,
        "candidate": dict(standing.candidate.values),
        "samples_per_s": standing.samples_per_s,
        "samples_per_s_low": standing.samples_per_s_low,
        "samples_per_s_high": standing.samples_per_s_high,
        "n_runs": standing.n_runs,
        "peak_memory_bytes": standing.peak_memory_bytes,
        "ds_config": str(standing.ds_config),
    }
