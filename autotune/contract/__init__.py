"""What goes into a trial and what comes out of it: TrialSpec, RankReport, TrialResult, Outcome.

The ranks of a trial import this and `autotune.trial` and nothing else of ours, so it uses the
standard library alone.
"""

import importlib
from typing import TYPE_CHECKING, Any

# Types alone: `_NAMES` below says once what is handed out, and a test holds modules to it. Loading
# a part with its first name takes a twentieth off the start of `autotune check`.
if TYPE_CHECKING:
    from autotune.contract.files import *  # noqa: F403
    from autotune.contract.plausible import *  # noqa: F403
    from autotune.contract.result import *  # noqa: F403
    from autotune.contract.spec import *  # noqa: F403
    from autotune.contract.words import *  # noqa: F403

_NAMES = {
    "files": """
        CONFIG_DIR NODE_FILE PARENT_ENV PRIVATE_MODE RANKS_DIR RESULT_FILE SCHEMA_VERSION
        SCRATCH_ENV SETTINGS_FILE SPEC_FILE STACKS_FILE STDERR_FILE STDOUT_FILE TRIAL_ENV
        ContractError NotAFileError from_json is_count open_regular read_bounded read_json
        read_tail read_text write_aside write_json""",
    "words": """
        LIST_VARIABLES Origin Outcome Phase Role Start""",
    "spec": """
        SPEC_SCHEMA_VERSION Checkpoint EngineSettings Fidelity Identity KnobValue Layout
        Measure Predicted Provenance TrialSpec Workload parts_of settings_of""",
    "result": """
        COORDINATOR_ENDED MOST_LOSSES Collective CollectiveCalls Diagnosis GpuUse
        NodeReport OwnLog RankDiagnosis RankReport Split Surroundings TrialResult Use
        signal_of to_dict""",
    "plausible": """
        METER_SLACK check_result""",
}
"""Its modules, and the names that each of them gives to others."""
_PARTS = {name: part for part, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a part with its first name: who reads a file alone needs no spec of a trial."""
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    part = importlib.import_module(f"{__name__}.{_PARTS[name]}")
    return globals().setdefault(name, getattr(part, name))
