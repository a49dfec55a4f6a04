"""Compilation: what DeepSpeed's passes over the compiled graph need, and which exclude others."""

from autotune.engines.deepspeed.rules.base import Setup
from autotune.space.rule import Finding, rule

_OFFLOADS = ("offload_parameters", "offload_opt_states", "offload_activation")


@rule("compile/util.py: is_deepcompile_supported")
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


@rule("compile/init_z3.py: init_z3")
def _several_offloads(setup: Setup) -> Finding | None:
    if not _compiles_stage_3(setup):
        return None
    found = _offloads(setup)
    if len(found) < 2:
        return None
    return Finding(
        message=f"compile.{' and compile.'.join(found)}: each pass plans for the whole memory by "
        "itself, so one at a time",
        changes={"compile": dict.fromkeys(found[1:])},
    )


@rule("compile/init_z3.py: init_z3")
def _states_offloaded_twice(setup: Setup) -> Finding | None:
    if not _compiles_stage_3(setup) or setup.optimizer_offload == "none":
        return None
    if "offload_opt_states" not in _offloads(setup):
        return None
    return Finding(
        message="compile.offload_opt_states=true with offload_optimizer.device="
        f"{setup.optimizer_offload}: both manage the same states",
        changes={"compile": {"offload_opt_states": None}},
    )


@rule(
    "runtime/engine.py: get_deepcompile_backend; compile/init_z1_and_2.py has no such passes",
    consequence="ignored",
)
def _offloads_below_stage_3(setup: Setup) -> Finding | None:
    if setup.section("compile").get("deepcompile") is not True or setup.stage == 3:
        return None
    if not (found := _offloads(setup)):
        return None
    return Finding(
        message=f"compile.{' and compile.'.join(found)} at stage {setup.stage}: the pass runs at "
        "stage 3 alone",
        changes={"compile": dict.fromkeys(found)},
    )


def _offloads(setup: Setup) -> list[str]:
    section = setup.section("compile")
    return [name for name in _OFFLOADS if section.get(name) is True]


def _compiles_stage_3(setup: Setup) -> bool:
    return setup.section("compile").get("deepcompile") is True and setup.stage == 3
