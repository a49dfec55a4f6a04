"""A gate: a study's best measured again later, beside what was measured then.

`search --json` carries the `Reference`, `gate.json` in a study's folder holds the last `Gate`.
"""

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from autotune.base.errors import ExitCode
from autotune.base.student_t import CONFIDENCE, t_quantile
from autotune.devices.hardware import Environment
from autotune.record.answer import Speedup, Standing
from autotune.record.found import read_found

GATE_FILE = "gate.json"
GATE_FOLDER = "gate"
DIGEST_LENGTH = 12


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What a study's best was, with all that it takes to run it again."""

    study: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    folder: str
    """The study's own."""
    job: str | None
    """The job as YAML; None: it holds a command, whose words stay in the study's folder."""
    standing: Standing
    """What was handed out: the best, or the baseline where no gain was proven."""
    deviation: Annotated[float, Field(gt=0, lt=10)]
    """Standard deviation of log samples/s between runs, as the study knew it."""
    degrees: Annotated[int, Field(ge=1, le=10_000)]
    """Degrees of freedom of that."""
    environment: Environment
    versions: dict[str, str]
    """Releases in its ranks, by package."""
    configuration: str
    """Digest of its configuration files."""
    script: str
    """Digest of its training script and what that reads."""
    version: Literal[1] = 1

    @property
    def facts(self) -> dict[str, str]:
        """What the figure depends on besides its job; releases are those in the ranks."""
        files = {"configuration": self.configuration, "training script": self.script}
        facts = {**asdict(self.environment), **self.versions, **files}
        return {name: str(v) for name, v in facts.items() if not name.endswith("_version")}

    @property
    def variance_of_mean(self) -> float:
        """Variance of the mean log samples/s, by the interval that `Spread.interval` made."""
        one = self.standing
        half = math.log(one.samples_per_s_high / one.samples_per_s_low) / 2
        return (half / t_quantile(CONFIDENCE, self.degrees)) ** 2 / (one.n_runs + 1)


class GateVerdict(StrEnum):
    """How a gate ends."""

    WITHIN = "within"
    SLOWER = "slower"
    MORE_MEMORY = "more memory"
    DOES_NOT_RUN = "does not run"
    UNDECIDED = "not decided"
    NOT_MEASURED = "not measured"

    @property
    def exit_code(self) -> ExitCode:
        codes = {
            GateVerdict.WITHIN: ExitCode.FOUND,
            GateVerdict.UNDECIDED: ExitCode.UNDECIDED,
            GateVerdict.NOT_MEASURED: ExitCode.FLEET_UNAVAILABLE,
        }
        return codes.get(self, ExitCode.CHECK_FAILED)


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What a gate found."""

    verdict: GateVerdict
    why: str
    """Why there is no figure, in words; empty: there is one."""
    against: str
    """The file or the study that the reference is from."""
    study: str
    within: Annotated[float, Field(gt=0, lt=1)]
    reference: Standing
    now: Standing | None
    """The same candidate as it ran now; None: it was not measured."""
    ratio: Speedup | None
    """Samples/s now over those then."""
    deviation: float | None
    """Standard deviation between runs of now, as a share."""
    runs_to_decide: int | None
    """Runs after which it is likely to be decided; None: it is, or no number of runs does it."""
    differences: dict[str, tuple[str, str]]
    """What is not as it was when the reference was measured -> then, now; empty: not known."""
    device_name: str
    ended_at_s: Annotated[float, Field(allow_inf_nan=False)]
    """Wall-clock time (Unix)."""
    version: Literal[1] = 1


def read_gate(folder: Path) -> Gate | None:
    """The last gate of a study; None if there was none, or if it is unreadable."""
    return read_found(Gate, folder / GATE_FILE)
