"""Surroundings that a section needs: a package, a launcher's variable, kernels."""

from collections.abc import Mapping

from autotune.devices.hardware import is_importable
from autotune.engines.deepspeed.rules.base import Setup
from autotune.space.rule import Choice, Finding, rule

PACKAGES: Mapping[str, str] = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}
"""Section -> the package that rank 0 imports for it (monitor/utils.py)."""


@rule("monitor/utils.py: check_*_availability")
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
        if setup.section(section).get("enabled") is True and not is_importable(package)
    ]
