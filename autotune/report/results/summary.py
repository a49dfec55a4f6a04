"""The answer of a search as JSON data: what `search --json` prints and `study.json` keeps."""

from collections.abc import Mapping
from typing import Any

from autotune.base.errors import AutotuneError, NothingFeasibleError
from autotune.contract import DS_CONFIG_FILE, Origin
from autotune.record.study import Study
from autotune.search.base import SearchResult, Standing
from autotune.search.front import RULE
from autotune.search.history import History


def summarize(
    result: SearchResult, study: Study, origin: Origin = Origin.MEASURED
) -> dict[str, Any]:
    """The answer as one object.

    Returns:
        `study`, `counts` by outcome, `baseline` and `best` (null where there is none), `ties`,
        `speedup` with its 95% interval `speedup_low` to `speedup_high` (null if no baseline was
        compared), `stop_reason`, `origin` (of the figures: see `Origin`), `problem` (null; see
        `summarize_failure`), `interrupted`, `paths`; with the Pareto objective also `front`,
        fastest first, and `rule`, which says how `best` was chosen of it.
    """
    front = {}
    if result.front is not None:
        front = {"front": [summarize_standing(point) for point in result.front], "rule": RULE}
    return {
        "study": result.study,
        "counts": {outcome.value: count for outcome, count in result.counts.items()},
        "baseline": result.baseline and summarize_standing(result.baseline),
        "best": result.best and summarize_standing(result.best),
        "ties": [summarize_standing(tie) for tie in result.ties],
        "speedup": None if result.speedup is None else result.speedup.ratio,
        "speedup_low": None if result.speedup is None else result.speedup.low,
        "speedup_high": None if result.speedup is None else result.speedup.high,
        "stop_reason": result.stop_reason.value,
        "origin": origin.value,
        "problem": None,
        "interrupted": result.interrupted,
        "paths": _paths(study, has_best=result.best is not None and origin is Origin.MEASURED),
        **front,
    }


def summarize_failure(
    error: AutotuneError, history: History, study: Study, origin: Origin = Origin.MEASURED
) -> dict[str, Any]:
    """The answer of a search that ended without a best candidate.

    Returns:
        The keys of `summarize`; nothing was compared, so `baseline`, `best` and `speedup` are
        null, and `problem` says why and how to mend it: `message` and `fix`.
    """
    nothing = isinstance(error, NothingFeasibleError)
    return {
        "study": study.name,
        "counts": {outcome.value: count for outcome, count in history.counts.items()},
        "baseline": None,
        "best": None,
        "ties": [],
        "speedup": None,
        "speedup_low": None,
        "speedup_high": None,
        "stop_reason": "nothing is feasible" if nothing else "the devices failed: search again",
        "origin": origin.value,
        "problem": {"message": error.message, "fix": error.hint},
        "interrupted": False,
        "paths": _paths(study, has_best=False),
    }


def place(answer: Mapping[str, Any], study: Study) -> dict[str, Any]:
    """An answer that was kept, with the paths of the study as it lies now.

    It may have been moved since, or set aside: its old place may be another study's.
    """

    def placed(standing: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if standing is None:
            return None
        config = study.trial_folder(standing["trial"]) / DS_CONFIG_FILE
        return {**standing, "ds_config": str(config)}

    single = {name: placed(answer[name]) for name in ("baseline", "best")}
    several = {
        name: [placed(standing) for standing in answer[name]]
        for name in ("ties", "front")
        if name in answer
    }
    is_measured = answer.get("origin", Origin.MEASURED) == Origin.MEASURED
    paths = _paths(study, has_best=answer["best"] is not None and is_measured)
    return {**answer, **single, **several, "study": study.name, "paths": paths}


def _paths(study: Study, *, has_best: bool) -> dict[str, str | None]:
    return {
        "table": str(study.table_file),
        "export": str(study.best_folder) if has_best else None,
    }


def summarize_standing(standing: Standing) -> dict[str, Any]:
    """A candidate with its figure, as the answer names it."""
    return {
        "trial": standing.trial,
        "candidate": dict(standing.candidate.values),
        "samples_per_s": standing.samples_per_s,
        "samples_per_s_low": standing.samples_per_s_low,
        "samples_per_s_high": standing.samples_per_s_high,
        "n_runs": standing.n_runs,
        "n_disturbed": standing.n_disturbed,
        "peak_memory_bytes": standing.peak_memory_bytes,
        "ds_config": str(standing.ds_config),
    }
