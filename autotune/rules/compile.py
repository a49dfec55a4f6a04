"""Compilation: what DeepSpeed's passes over the compiled graph need."""

from autotune.rules.base import Case, Finding, Rule, Setup, Witness
from autotune.rules.keys import is_at_least

_DEEPCOMPILE_SINCE = "0.16.6"
_ON = {"compile": {"deepcompile": True}, "zero_optimization": {"stage": 1}}


def _needs_cuda(setup: Setup) -> Finding | None:
    if setup.section("compile").get("deepcompile") is not True:
        return None
    if setup.environment.accelerator == "cuda" or setup.compile == "none":
        return None
    return (
        "compile.deepcompile=true: its passes need a CUDA device, the accelerator is "
        f"{setup.environment.accelerator}",
        "remove compile.deepcompile",
    )


def _needs_release(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    if setup.section("compile").get("deepcompile") is not True:
        return None
    if is_at_least(version, _DEEPCOMPILE_SINCE):
        return None
    return (
        f"compile.deepcompile=true: DeepSpeed has it from {_DEEPCOMPILE_SINCE} on, {version} is "
        "installed and raises on it",
        "remove compile.deepcompile",
    )


RULES = (
    Rule(
        name="compile.deepcompile_needs_release",
        check=_needs_release,
        source="DeepSpeed pull request 7154",
        witnesses=(
            Witness(
                broken=Case(ds_config=_ON, compile="deepcompile", accelerator="cuda"),
                repaired=Case(
                    ds_config=_ON | {"compile": None}, compile="torch", accelerator="cuda"
                ),
                consequence="raised",
                raises="Extra inputs are not permitted",
                deepspeed="0.16.0",
            ),
        ),
    ),
    Rule(
        name="compile.deepcompile_needs_cuda",
        check=_needs_cuda,
        source="compile/util.py: is_deepcompile_supported",
        witnesses=(
            Witness(
                broken=Case(ds_config=_ON, compile="deepcompile"),
                repaired=Case(ds_config=_ON | {"compile": None}, compile="torch"),
                consequence="raised",
                raises=".",
            ),
        ),
    ),
)
