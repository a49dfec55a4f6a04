"""How a rule of arguments is made, and how its change is told.

Each rule names the function of NVIDIA/Megatron-LM that checks it (the main branch at Megatron Core
0.20, unless it says more), and the change that makes it legal. `needs` and `excludes` make the
rules that many arguments share; the others are functions under `argument_rule`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from autotune.engines.megatron.flags import flags, is_flag_of_any, newest_release
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.space.rule import Consequence, Finding, Patch, Rule

ARGUMENTS = "megatron/training/arguments.py, validate_args"
CONFIG = "megatron/core/transformer/transformer_config.py, __post_init__"
OPTIMIZER = "megatron/core/optimizer/optimizer_config.py, __post_init__"
PARALLEL = "megatron/core/model_parallel_config.py, __post_init__"
CHUNKED = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
"""The two ways to say how a pipeline is interleaved."""
_FLAG = re.compile(r"--([a-z0-9-]+)")
Answer = tuple[str, Patch] | tuple[str, Patch, str] | None
"""What is wrong, the change that mends it, and advice where somebody has to choose."""


def argument_rule(
    name: str, source: str, consequence: Consequence = "raised"
) -> Callable[[Callable[[MegatronLaunch], Answer]], Rule[MegatronLaunch]]:
    """A rule of a function that gives what is wrong, or nothing for a legal launch."""

    def of(asked: Callable[[MegatronLaunch], Answer]) -> Rule[MegatronLaunch]:
        return _made(name, source, " ".join((asked.__doc__ or "").split()), asked, consequence)

    return of


def _made(
    name: str,
    source: str,
    says: str,
    asked: Callable[[MegatronLaunch], Answer],
    consequence: Consequence = "raised",
) -> Rule[MegatronLaunch]:
    def check(launch: MegatronLaunch) -> Finding | None:
        answer = asked(launch)
        if answer is None:
            return None
        message, changes, advice = (*answer, "")[:3]
        words = all_in_words(changes)
        named = (flag.replace("-", "_") for flag in _FLAG.findall(message))
        at = tuple(changed for changed in (*named, *changes) if changed in launch.given)
        return Finding(message=message, changes=changes, words=words, advice=advice, at=at)

    return Rule(name=name, check=check, source=source, says=says, consequence=consequence)


def all_in_words(changes: Patch) -> str:
    """Changes of arguments, in words."""
    return " and ".join(in_words(name, value) for name, value in changes.items())


def in_words(name: str, value: Any) -> str:
    """A change of one argument, in words."""
    if value is None:
        return f"remove {flag_name(name)}"
    flag = flag_name(name)
    return f"add {flag}" if isinstance(value, bool) else f"set {flag} to {as_word(value)}"


@cache
def flag_name(argument: str) -> str:
    """An argument as it is written on a command line."""
    spelled = f"--{argument.replace('_', '-')}"
    if is_flag_of_any(spelled):
        return spelled
    known = flags(newest_release()).values()
    return next((flag.name for flag in known if flag.argument == argument), spelled)


def as_word(value: Any) -> str:
    """A value as it is written on a command line."""
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def is_on(launch: MegatronLaunch, argument: str) -> bool:
    """True for a switch that is on."""
    return bool(launch.get(argument))


def needs(
    name: str,
    asked: str,
    needed: Sequence[str],
    source: str = ARGUMENTS,
    *,
    removes: bool = False,
    before: str = "",
) -> Rule[MegatronLaunch]:
    """A switch that needs one of others."""
    others = " or ".join(map(flag_name, needed))

    def check(launch: MegatronLaunch) -> Answer:
        if before and not is_before(launch.release, before):
            return None
        if not is_on(launch, asked) or any(is_on(launch, other) for other in needed):
            return None
        change: Patch = {asked: None} if removes else {needed[0]: True}
        return f"{flag_name(asked)}: needs {others}", change

    says = f"{flag_name(asked)} without {others}."
    return _made(name, f"{source}: {asked}", says, check)


def excludes(
    name: str, first: str, second: str, why: str, source: str = ARGUMENTS
) -> Rule[MegatronLaunch]:
    """Two switches that are not both on; the second goes."""

    def check(launch: MegatronLaunch) -> Answer:
        if is_on(launch, first) and is_on(launch, second):
            return f"{flag_name(first)} and {flag_name(second)}: {why}", {second: None}
        return None

    says = f"{flag_name(first)} beside {flag_name(second)}."
    return _made(name, f"{source}: {first}", says, check)


def is_before(release: str, other: str) -> bool:
    """True for a release older than another."""
    return tuple(map(int, release.split("."))) < tuple(map(int, other.split(".")))


def rules_in(names: Mapping[str, Any]) -> tuple[Rule[MegatronLaunch], ...]:
    """The rules among a module's names, in their order there."""
    return tuple(value for value in names.values() if isinstance(value, Rule))
