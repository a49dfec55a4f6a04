"""What goes into a trial and what comes out of it: TrialSpec, RankReport, TrialResult, Outcome.

The ranks of a trial import this and `autotune.trial` and nothing else of ours, so it uses the
standard library alone.
"""

import dataclasses
from typing import Any

from autotune.contract.files import (
    CONFIG_DIR,
    NODE_FILE,
    PARENT_ENV,
    RANKS_DIR,
    RESULT_FILE,
    SCHEMA_VERSION,
    SCRATCH_ENV,
    SPEC_FILE,
    STACKS_FILE,
    STDERR_FILE,
    STDOUT_FILE,
    TRIAL_ENV,
    ContractError,
    NotAFileError,
    is_count,
    mode_of,
    open_regular,
    read_bounded,
    read_json,
    read_text,
    write_json,
)
from autotune.contract.plausible import check_result
from autotune.contract.result import (
    COORDINATOR_ENDED,
    Collective,
    CollectiveCalls,
    Diagnosis,
    GpuUse,
    NodeReport,
    RankDiagnosis,
    RankReport,
    Split,
    Surroundings,
    TrialResult,
    Use,
)
from autotune.contract.spec import (
    SPEC_SCHEMA_VERSION,
    Checkpoint,
    EngineSettings,
    Fidelity,
    Identity,
    KnobValue,
    Layout,
    Measure,
    Predicted,
    Provenance,
    TrialSpec,
    Workload,
    parts_of,
    settings_of,
)
from autotune.contract.words import (
    LIST_VARIABLES,
    Origin,
    Outcome,
    Phase,
    Role,
    Start,
)

__all__ = [
    "CONFIG_DIR",
    "COORDINATOR_ENDED",
    "LIST_VARIABLES",
    "NODE_FILE",
    "PARENT_ENV",
    "RANKS_DIR",
    "RESULT_FILE",
    "SCHEMA_VERSION",
    "SCRATCH_ENV",
    "SPEC_FILE",
    "SPEC_SCHEMA_VERSION",
    "STACKS_FILE",
    "STDERR_FILE",
    "STDOUT_FILE",
    "TRIAL_ENV",
    "Checkpoint",
    "Collective",
    "CollectiveCalls",
    "ContractError",
    "Diagnosis",
    "EngineSettings",
    "Fidelity",
    "GpuUse",
    "Identity",
    "KnobValue",
    "Layout",
    "Measure",
    "NodeReport",
    "NotAFileError",
    "Origin",
    "Outcome",
    "Phase",
    "Predicted",
    "Provenance",
    "RankDiagnosis",
    "RankReport",
    "Role",
    "Split",
    "Start",
    "Surroundings",
    "TrialResult",
    "TrialSpec",
    "Use",
    "Workload",
    "check_result",
    "is_count",
    "mode_of",
    "open_regular",
    "parts_of",
    "read_bounded",
    "read_json",
    "read_text",
    "settings_of",
    "to_dict",
    "write_json",
]


def to_dict(value: TrialSpec | RankReport | NodeReport | TrialResult) -> dict[str, Any]:
    """The JSON form of a contract object."""
    return dataclasses.asdict(value)
