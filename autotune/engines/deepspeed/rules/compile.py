"""Compilation: what DeepSpeed's passes over the compiled graph need, and which exclude others."""

from autotune.engines.deepspeed.rules.base import Setup
from autotune.space.rule import Finding, rule

_OFFLOADS = ("offload_parameters", "offload_opt_states", "offload_activation")


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
