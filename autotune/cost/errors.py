"""How far predictions are off where nobody looked: the interval beside a predicted figure.

`errors.yaml` beside this file says how far the model was off on published runs of sources whose
rows its constants had not seen. `benchmarks/fit_errors.py` learns and writes it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.base.errors import JobError
from autotune.base.yaml_file import read_yaml
from autotune.cost.predict import Prediction, predict
from autotune.devices.accelerators import Accelerator

SHIPPED = Path(__file__).resolve().parent / "errors.yaml"
LEVEL = 0.9
"""Share of figures that an interval holds, on average over sources left out."""
UPPER = 0.95
"""Quantile at the upper end of such an interval."""
_ALIKE = 0.2
"""Accelerators whose peaks differ by less, in logarithm, count as the same: A100 and A800."""
_NATURAL_ROUTING = 1.5
"""Factor by which steps may take longer where the router decides alone which experts get how many
rows, and ranks hold different ones. Predictions are of even ones, as are most published runs,
whose routers were forced. Where both were published, steps took 1.2 to 1.5 times as long."""
_HINT = "written by benchmarks/fit_errors.py"

Values = NDArray[np.float64]
_Size = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]


class MissSizes(BaseModel):
    """Sizes of log(measured / predicted) that an interval reaches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seen: _Size
    """Where other sources have runs of the same framework on such accelerators."""
    unseen: _Size
    doubtful: _Size
    """More, for a figure that is all doubtful."""


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Factors by which measured figures may lie above the predicted ones, or below."""

    step_time: Values
    peak_memory: Values
    slower: Values | float = 1.0
    """Beyond that, step times may lie above the predicted ones, but not below."""

    def around(self, predicted: Prediction, index: int) -> tuple[float, float, float, float]:
        """The interval of a step time in seconds, and that of a peak in bytes."""
        seconds, peak = predicted.step_time_s[index], predicted.peak_memory_bytes[index]
        time_by, peak_by = self.step_time[index], self.peak_memory[index]
        slower = self.slower_at(index)
        ends = (seconds / time_by, seconds * time_by * slower, peak / peak_by, peak * peak_by)
        return tuple(map(float, ends))  # type: ignore[return-value]

    def slower_at(self, index: int) -> float:
        """`slower` of one prediction."""
        return float(np.broadcast_to(self.slower, self.step_time.shape)[index])


class Errors(BaseModel):
    """Errors on sources left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sources: int
    """Sources that were left out, one after the other."""
    step_time: MissSizes
    """Sizes of dense models."""
    mixture_step_time: MissSizes
    """Sizes of mixtures of experts."""
    peak_memory: MissSizes
    peaks: dict[str, list[float]]
    """Framework -> peaks of the accelerators that it was seen on, in TFLOP/s at 16 bits."""

    def is_seen(self, framework: str, accelerator: Accelerator) -> bool:
        """Whether there are published runs of the framework on such accelerators.

        A probe of one's own stands for runs of others there.
        """
        known = self.peaks.get(framework, [])
        if accelerator.measured is not None:
            return bool(known)
        return is_among(accelerator.peak_flops[accelerator.half], known)

    def reach(
        self, frameworks: Sequence[str], accelerators: Sequence[Accelerator], said: Prediction
    ) -> Margin:
        """How far each prediction reaches; one framework and accelerator each."""
        pairs = zip(frameworks, accelerators, strict=True)
        seen = np.array([self.is_seen(framework, its) for framework, its in pairs], bool)
        return self.reach_around(seen, said)

    def reach_around(self, seen: NDArray[np.bool_], said: Prediction) -> Margin:
        """How far predictions reach, by whether their like was seen."""
        p = said.plans
        is_mixture = np.greater(p.n_experts, 1)
        is_natural = is_mixture & np.greater(p.ep, 1) & np.less_equal(p.expert_imbalance, 1)
        is_natural = is_natural & np.equal(p.forced_balance, 0)
        margin = self.reach_of(seen, doubt_of(said), np.broadcast_to(is_mixture, seen.shape))
        return replace(margin, slower=np.where(is_natural, _NATURAL_ROUTING, 1.0))

    def reach_of(
        self, seen: NDArray[np.bool_], doubt: Values, is_mixture: NDArray[np.bool_]
    ) -> Margin:
        """How far predictions reach: by what was seen, what is doubtful, and the kind of model."""

        def factors(sizes: MissSizes) -> Values:
            found: Values = np.exp(
                np.where(seen, sizes.seen, sizes.unseen) + sizes.doubtful * doubt
            )
            return found

        times = np.where(is_mixture, factors(self.mixture_step_time), factors(self.step_time))
        return Margin(step_time=times, peak_memory=factors(self.peak_memory))


def is_among(peak_flops: float, known_tflops: Sequence[float]) -> bool:
    """Whether an accelerator's peak is that of a known one."""
    return any(abs(math.log(peak_flops / (1e12 * known))) < _ALIKE for known in known_tflops)


def doubt_of(said: Prediction) -> Values:
    """Share of each step that depends on networks and hosts, of which tables say least.

    All of it is in doubt where states are offloaded.
    """
    times, plans = said.times, said.plans
    doubtful = (
        *(times.tensor_comm_s, times.expert_comm_s, times.context_comm_s, times.pipeline_comm_s),
        *(times.data_comm_s, times.host_s, times.offload_s),
    )
    share = np.sum([np.asarray(part) for part in doubtful], axis=0) / said.step_time_s
    offloads = np.greater(plans.optimizer_tier, 0) | np.greater(plans.param_tier, 0)
    found: Values = np.clip(np.where(offloads, 1.0, share), 0.0, 1.0)
    return found


def spare_of(said: Prediction, fewest_logit_bytes: Sequence[float] | Values) -> Values:
    """Factors by which peaks may lie below the predicted ones, none below 1.

    Where nobody says how a loss is computed, it may hold as few bytes per logit as that.
    """
    least = replace(said.plans, logit_bytes=np.asarray(fewest_logit_bytes))
    peaks = predict(least, said.constants).peak_memory_bytes
    found: Values = np.maximum(1.0, said.peak_memory_bytes / peaks)
    return found


@cache
def load_errors(path: Path = SHIPPED) -> Errors:
    """Read what was learned; the shipped file by default.

    Raises:
        JobError: It cannot be read, or a figure is not one.
    """
    try:
        return Errors.model_validate(read_yaml(path, hint=_HINT))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise JobError(f"{path}: {key}: {first['msg']}", _HINT) from error
