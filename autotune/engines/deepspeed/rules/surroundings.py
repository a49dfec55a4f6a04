"""Surroundings that a section needs: a package, a launcher's variable, kernels."""

from collections.abc import Mapping

from autotune.devices.hardware import is_importable
from autotune.engines.deepspeed.rules.base import Setup, as_section
from autotune.space.rule import Choice, Finding, rule

PACKAGES: Mapping[str, str] = {
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "comet": "comet_ml",
}
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


@rule("datastates/config.py: anything but false switches it on")
def _datastates(setup: Setup) -> Finding | None:
    if setup.ds_config.get("datastates_ckpt", False) is False or is_importable("datastates"):
        return None
    return Finding(
        message="datastates_ckpt: the package datastates is not installed here, and DeepSpeed "
        "raises where it is missing",
        at=("datastates_ckpt",),
        choices=(Choice(changes={"datastates_ckpt": False}),),
        advice="install datastates where it trains, or set datastates_ckpt to false",
        is_note=True,
    )


@rule("runtime/model_checkpointing/data_parallel_writer_factory.py; launcher/launch.py")
def _checkpoint_writer(setup: Setup) -> Finding | None:
    if as_section(setup.section("checkpoint")).get("writer") is None:
        return None
    return Finding(
        message="checkpoint.writer: DeepSpeed asks the environment for CROSS_SIZE then, which its "
        "own launcher sets and torchrun does not",
        at=("checkpoint.writer",),
        choices=(Choice(changes={"checkpoint": {"writer": None}}),),
        advice="start it with the deepspeed launcher, or remove checkpoint.writer",
        is_note=True,
    )


@rule("runtime/hybrid_engine.py: builds the inference kernels")
def _hybrid_engine_on_cpu(setup: Setup) -> Finding | None:
    if setup.accelerator != "cpu" or setup.section("hybrid_engine").get("enabled") is not True:
        return None
    return Finding(
        message="hybrid_engine.enabled=true: DeepSpeed has no inference kernels for a CPU",
        at=("hybrid_engine.enabled",),
        changes={"hybrid_engine": {"enabled": False}},
    )
