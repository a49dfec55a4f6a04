"""Compilation: what DeepSpeed's passes over the compiled graph need."""

from autotune.engines.deepspeed.rules.base import Setup, raised, zero
from autotune.space.rule import Finding, rule


@rule(
    "compile/util.py: is_deepcompile_supported",
    raised(
        ".",
        zero(1) | {"compile": {"deepcompile": True}},
        {"compile": None},
        compile="deepcompile",
        repaired={"compile": "torch"},
    ),
)
def _deepcompile_needs_cuda(setup: Setup) -> Finding | None:
    if setup.section("compile").get("deepcompile") is not True:
        return None
    if setup.accelerator == "cuda" or setup.compile == "none":
        return None
    return Finding(
        message="compile.deepcompile=true: its passes need a CUDA device, the accelerator is "
        f"{setup.accelerator}",
        changes={"compile": {"deepcompile": None}},
    )
