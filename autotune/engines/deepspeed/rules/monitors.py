"""Monitors and other helpers that need a package of their own."""

from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec

from autotune.engines.deepspeed.rules.base import Setup, raised
from autotune.space.rule import Choice, Finding, rule

PACKAGES: Mapping[str, str] = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "comet": "comet_ml",
}
"""Section -> the package that rank 0 imports for it (monitor/utils.py)."""


@lru_cache
def is_installed(package: str) -> bool:
    """Whether a package could be imported here; it is not."""
    return find_spec(package) is not None


@rule(
    "monitor/utils.py: check_*_availability",
    # Rank 0 alone writes, and alone raises.
    raised(
        "ModuleNotFoundError: No module named 'comet_ml'",
        {"comet": {"enabled": True}},
        {"comet": {"enabled": False}},
        world=1,
    ),
)
def _not_installed(setup: Setup) -> list[Finding]:
    return [
        Finding(
            message=f"{section}.enabled=true: {package} is not installed here, and DeepSpeed "
            "raises on rank 0 where it is missing",
            at=(f"{section}.enabled",),
            choices=(Choice(changes={section: {"enabled": False}}),),
            advice=f"install {package} where it trains, or set {section}.enabled to false",
            is_note=True,
        )
        for section, package in PACKAGES.items()
        if setup.section(section).get("enabled") is True and not is_installed(package)
    ]
