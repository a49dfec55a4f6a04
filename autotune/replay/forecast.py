"""What the analytic model says of the configurations of a group."""

from collections.abc import Mapping

from autotune.base.errors import JobError
from autotune.cost.constants import Constants
from autotune.cost.forecast import Forecast, forecast
from autotune.cost.published import rows_to_plans
from autotune.devices.accelerators import shipped_accelerators
from autotune.replay.groups import Group


def forecast_of(group: Group, constants: Constants | None = None) -> Forecast:
    """Predict every configuration of a group, each by the first of its rows.

    Raises:
        JobError: The model cannot predict one of them; the hint says why.
    """
    first: list[Mapping[str, str]] = [c.rows[0].cells for c in group.configurations]
    read = rows_to_plans(first, shipped_accelerators())
    if read.plans is None or len(read.positions) < len(first):
        position, reason = next((i, why) for i, why in enumerate(read.reasons) if why)
        raise JobError(
            f"{group.configurations[position].rows[0].where}: cannot be predicted: {reason}",
            "fill in the cell that it names, or leave the row out",
        )
    return forecast(read.plans, constants)
