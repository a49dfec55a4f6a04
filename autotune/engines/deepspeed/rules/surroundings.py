"""Surroundings that a section needs: a package, a launcher's variable, kernels."""

from collections.abc import Mapping

from autotune.devices.hardware import is_importable
from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.words import finding
from autotune.space.rule import Finding, rule

PACKAGES: Mapping[str, str] = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet_ml"}
"""Section -> the package that rank 0 imports for it (monitor/utils.py)."""


@rule("monitor/utils.py: check_*_availability")
def _not_installed(setup: Setup) -> list[Finding]:
    return [
        finding("not_installed", section=section, package=package)
        for section, package in PACKAGES.items()
        if setup.section(section).get("enabled") is True and not is_importable(package)
    ]
