"""Rules of memory: what is computed again, and what goes to the host."""

from autotune.engines.megatron.argument_rules.making import (
    ARGUMENTS,
    CONFIG,
    Answer,
    argument_rule,
    flag_name,
    is_before,
    is_on,
    rules_in,
)
from autotune.engines.megatron.choices import MODULES
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.space.rule import Patch


@argument_rule("recompute.full_method", f"{CONFIG}: recompute_method")
def _full_method(launch: MegatronLaunch) -> Answer:
    """--recompute-granularity full without a method or a number of layers."""
    if launch.get("recompute_granularity") != "full" or is_on(launch, "recompute_activations"):
        return None
    missing = _missing(launch)
    if not missing:
        return None
    flags = " and ".join(map(flag_name, missing))
    return f"--recompute-granularity full: needs {flags}", missing


def _missing(launch: MegatronLaunch) -> Patch:
    """What full recomputation lacks."""
    needed = {"recompute_method": "uniform", "recompute_num_layers": 1}
    return {name: value for name, value in needed.items() if launch.get(name) is None}


@argument_rule("recompute.one_way", f"{ARGUMENTS}: recompute_activations", "ignored")
def _one_way(launch: MegatronLaunch) -> Answer:
    """--recompute-activations, which means selective, beside --recompute-granularity full."""
    is_full = launch.get("recompute_granularity") == "full"
    if not (is_full and is_on(launch, "recompute_activations")) or len(_missing(launch)) < 2:
        return None  # with a method it is refused
    return (
        "--recompute-granularity full: --recompute-activations makes it selective",
        {},
        "remove one of the two",
    )


@argument_rule("recompute.selective_method", f"{CONFIG}: recompute_granularity")
def _selective_method(launch: MegatronLaunch) -> Answer:
    """--recompute-granularity selective with a method or a number of layers."""
    is_selective = launch.get("recompute_granularity") == "selective"
    if not (is_selective or launch.get("recompute_activations")):
        return None
    names = ("recompute_method", "recompute_num_layers")
    given = [name for name in names if launch.get(name) is not None]
    if not given:
        return None
    flags = " and ".join(map(flag_name, given))
    if launch.get("recompute_granularity") == "full":
        return (
            "--recompute-activations makes --recompute-granularity full selective, which takes "
            f"no {flags}",
            {"recompute_activations": None, **_missing(launch)},
        )
    return (
        f"--recompute-granularity selective takes no {flags}: that is for full recomputation",
        dict.fromkeys(given),
    )


@argument_rule("recompute.saved_by_sequence", f"{CONFIG}: distribute_saved_activations")
def _saved_activations(launch: MegatronLaunch) -> Answer:
    """--distribute-saved-activations with --sequence-parallel."""
    if launch.get("distribute_saved_activations") and launch.get("sequence_parallel"):
        return (
            "--distribute-saved-activations: --sequence-parallel splits them already",
            {"distribute_saved_activations": None},
        )
    return None


@argument_rule("recompute.saved_alone", f"{ARGUMENTS}: distribute_saved_activations")
def _saved_alone(launch: MegatronLaunch) -> Answer:
    """--distribute-saved-activations without tensor parallel ranks or full recomputation."""
    if not is_on(launch, "distribute_saved_activations"):
        return None
    if launch.get("tensor_model_parallel_size") == 1:
        problem = "splits over the tensor parallel ranks, and --tensor-model-parallel-size is 1"
    elif launch.get("recompute_granularity") != "full" or is_on(launch, "recompute_activations"):
        problem = "splits what --recompute-granularity full saves"
    else:
        return None
    return f"--distribute-saved-activations: {problem}", {"distribute_saved_activations": None}


@argument_rule("recompute.modules", f"{CONFIG}: recompute_modules")
def _recompute_modules(launch: MegatronLaunch) -> Answer:
    """--recompute-modules that no release before 0.17 has."""
    modules = launch.get("recompute_modules")
    is_selective = launch.get("recompute_granularity") == "selective"
    if not modules or not (is_selective or is_on(launch, "recompute_activations")):
        return None
    for module in modules:
        if module not in MODULES and is_before(launch.release, "0.17"):
            left = [name for name in modules if name != module]
            return (
                f"--recompute-modules {module}: is none of {', '.join(MODULES)}",
                {"recompute_modules": left or None},
            )
    return None


@argument_rule("offload.modules", f"{CONFIG}: offload_modules")
def _offload_modules(launch: MegatronLaunch) -> Answer:
    """--fine-grained-activation-offloading of nothing, or of attn_proj without core_attn."""
    if not is_on(launch, "fine_grained_activation_offloading"):
        return None
    modules = launch.get("offload_modules")
    if not modules:
        return (
            "--fine-grained-activation-offloading: needs --offload-modules",
            {"offload_modules": ["core_attn"]},
        )
    if "attn_proj" in modules and "core_attn" not in modules:
        return (
            "--offload-modules attn_proj: takes what core_attn hands it, and needs it beside",
            {"offload_modules": [*modules, "core_attn"]},
        )
    return None


RULES = rules_in(globals())
