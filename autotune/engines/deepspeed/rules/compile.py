"""Compilation: what DeepSpeed's passes over the compiled graph need."""

from autotune.engines.deepspeed.rules.base import Case, Setup, Witness
from autotune.space.rule import Finding, rule

_ON = {"compile": {"deepcompile": True}, "zero_optimization": {"stage": 1}}


@rule(
    "compile.deepcompile_needs_cuda",
    "compile/util.py: is_deepcompile_supported",
    Witness(
        broken=Case(ds_config=_ON, compile="deepcompile"),
        repaired=Case(ds_config=_ON | {"compile": None}, compile="torch"),
        consequence="raised",
        raises=".",
    ),
)
def _needs_cuda(setup: Setup) -> Finding | None:
    if setup.section("compile").get("deepcompile") is not True:
        return None
    if setup.environment.accelerator == "cuda" or setup.compile == "none":
        return None
    return Finding(
        message="compile.deepcompile=true: its passes need a CUDA device, the accelerator is "
        f"{setup.environment.accelerator}",
        changes={"compile": {"deepcompile": None}},
    )
