"""What goes into a trial and what comes out of it: TrialSpec, RankReport, TrialResult, Outcome.

The ranks of a trial import this and `autotune.trial` and nothing else of ours, so it uses the
standard library alone.
"""

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.contract.files import CONFIG_DIR as CONFIG_DIR
    from autotune.contract.files import NODE_FILE as NODE_FILE
    from autotune.contract.files import PARENT_ENV as PARENT_ENV
    from autotune.contract.files import PRIVATE_MODE as PRIVATE_MODE
    from autotune.contract.files import RANKS_DIR as RANKS_DIR
    from autotune.contract.files import RESULT_FILE as RESULT_FILE
    from autotune.contract.files import SCHEMA_VERSION as SCHEMA_VERSION
    from autotune.contract.files import SCRATCH_ENV as SCRATCH_ENV
    from autotune.contract.files import SETTINGS_FILE as SETTINGS_FILE
    from autotune.contract.files import SPEC_FILE as SPEC_FILE
    from autotune.contract.files import STACKS_FILE as STACKS_FILE
    from autotune.contract.files import STDERR_FILE as STDERR_FILE
    from autotune.contract.files import STDOUT_FILE as STDOUT_FILE
    from autotune.contract.files import TRIAL_ENV as TRIAL_ENV
    from autotune.contract.files import ContractError as ContractError
    from autotune.contract.files import NotAFileError as NotAFileError
    from autotune.contract.files import from_json as from_json
    from autotune.contract.files import is_count as is_count
    from autotune.contract.files import open_regular as open_regular
    from autotune.contract.files import read_bounded as read_bounded
    from autotune.contract.files import read_json as read_json
    from autotune.contract.files import read_tail as read_tail
    from autotune.contract.files import read_text as read_text
    from autotune.contract.files import write_aside as write_aside
    from autotune.contract.files import write_json as write_json
    from autotune.contract.plausible import METER_SLACK as METER_SLACK
    from autotune.contract.plausible import check_result as check_result
    from autotune.contract.result import COORDINATOR_ENDED as COORDINATOR_ENDED
    from autotune.contract.result import MOST_LOSSES as MOST_LOSSES
    from autotune.contract.result import Collective as Collective
    from autotune.contract.result import CollectiveCalls as CollectiveCalls
    from autotune.contract.result import Diagnosis as Diagnosis
    from autotune.contract.result import GpuUse as GpuUse
    from autotune.contract.result import NodeReport as NodeReport
    from autotune.contract.result import OwnLog as OwnLog
    from autotune.contract.result import RankDiagnosis as RankDiagnosis
    from autotune.contract.result import RankReport as RankReport
    from autotune.contract.result import Split as Split
    from autotune.contract.result import Surroundings as Surroundings
    from autotune.contract.result import TrialResult as TrialResult
    from autotune.contract.result import Use as Use
    from autotune.contract.result import signal_of as signal_of
    from autotune.contract.spec import SPEC_SCHEMA_VERSION as SPEC_SCHEMA_VERSION
    from autotune.contract.spec import Checkpoint as Checkpoint
    from autotune.contract.spec import EngineSettings as EngineSettings
    from autotune.contract.spec import Fidelity as Fidelity
    from autotune.contract.spec import Identity as Identity
    from autotune.contract.spec import KnobValue as KnobValue
    from autotune.contract.spec import Layout as Layout
    from autotune.contract.spec import Measure as Measure
    from autotune.contract.spec import Predicted as Predicted
    from autotune.contract.spec import Provenance as Provenance
    from autotune.contract.spec import TrialSpec as TrialSpec
    from autotune.contract.spec import Workload as Workload
    from autotune.contract.spec import parts_of as parts_of
    from autotune.contract.spec import settings_of as settings_of
    from autotune.contract.words import LIST_VARIABLES as LIST_VARIABLES
    from autotune.contract.words import Origin as Origin
    from autotune.contract.words import Outcome as Outcome
    from autotune.contract.words import Phase as Phase
    from autotune.contract.words import Role as Role
    from autotune.contract.words import Start as Start

_PARTS = ("files", "words", "spec", "result", "plausible")
"""Its modules, in the order in which they need one another."""


def __getattr__(name: str) -> Any:
    """Load a part with its first name: who reads a file alone needs no spec of a trial."""
    if not name.startswith("_"):
        for part in _PARTS:
            module = importlib.import_module(f"{__name__}.{part}")
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def to_dict(value: "TrialSpec | RankReport | NodeReport | TrialResult") -> dict[str, Any]:
    """The JSON form of a contract object."""
    return dataclasses.asdict(value)
