"""What stands beside an exported ds_config and decides what it means: the layout of a pipeline."""

from dataclasses import dataclass
from pathlib import Path

from autotune.contract import ContractError, read_json
from autotune.render.deepspeed import SETTINGS_FILE


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """How a pipeline is cut; its ds_config does not say."""

    pp: int
    """Stages."""
    tp: int
    """Ranks that each layer is split over."""


def pipeline_beside(path: Path) -> Pipeline | None:
    """The layout of an export's pipeline, by the settings in the folder of its ds_config.

    Returns:
        None where there are none, they are somebody else's, or they have no pipeline.
    """
    try:
        settings = read_json(path.parent / SETTINGS_FILE)
    except ContractError:
        return None
    if "transformer" not in settings:
        return None
    pp, tp = settings.get("pp"), settings.get("tp")
    if type(pp) is not int or type(tp) is not int or pp < 2 or tp < 1:
        return None
    return Pipeline(pp=pp, tp=tp)
