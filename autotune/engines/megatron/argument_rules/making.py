"""How a rule of arguments is made, and how its change is told.

Each rule names the function of NVIDIA/Megatron-LM that checks it (the main branch at Megatron Core
0.20, unless it says more), and the change that makes it legal. Most are rows: `clash`, `needs` and
`excludes`. What has to be calculated is a function under `argument_rule`.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from autotune.engines.megatron.flags import flags, is_flag_of_any, newest_release
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.space.rule import Consequence, Finding, Patch, Rule

ARGUMENTS = "megatron/training/arguments.py, validate_args"
CONFIG = "megatron/core/transformer/transformer_config.py, __post_init__"
OPTIMIZER = "megatron/core/optimizer/optimizer_config.py, __post_init__"
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


def clash(
    name: str,
    when: str,
    message: str,
    changes: Patch,
    source: str = ARGUMENTS,
    *,
    advice: str = "",
    before: str = "",
    since: str = "",
    consequence: Consequence = "raised",
) -> Rule[MegatronLaunch]:
    """Arguments that do not go together.

    Args:
        name: The rule's name; several rows of one subject may share it.
        when: Terms that all have to hold. `a` asks whether an argument is on, `a=x` and `a!=x`
            compare one that is on, `a>1` a number; `a|b` holds where one does, and `!a|b` where
            none does.
        message: What is wrong.
        changes: What mends it; arguments that are not given are not removed.
        source: The function of Megatron's that checks it.
        advice: Another way out.
        before: The first release that does not check it; empty: all do.
        since: The first release that does.
        consequence: What Megatron does with it.
    """
    terms = [_term(text) for text in when.split()]

    def check(launch: MegatronLaunch) -> Answer:
        if before and not is_before(launch.release, before):
            return None
        if since and is_before(launch.release, since):
            return None
        if not all(term(launch) for term in terms):
            return None
        made = {name: v for name, v in changes.items() if v is not None or name in launch.given}
        return message, made, advice

    return _made(name, f"{source}: {when.split()[0]}", f"{message}.", check, consequence)


Term = Callable[[MegatronLaunch], bool]
_TEST = re.compile(r"(\w+?)(?:(=|!=|>)(.+))?")


def _term(text: str) -> Term:
    """A term of `clash`."""
    is_negated = text.startswith("!")
    tests = [_test(part) for part in text.removeprefix("!").split("|")]
    return lambda launch: any([test(launch) for test in tests]) is not is_negated


def _test(text: str) -> Term:
    found = _TEST.fullmatch(text)
    assert found is not None, f"{text} is no test"
    name, sign, other = found.groups()

    def holds(launch: MegatronLaunch) -> bool:
        value = launch.get(name)
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if sign == "=":
            return str(value) == other
        if sign == ">":
            return bool(value) and value > int(other)
        is_on = bool(value) and value != "none"
        return is_on and (sign is None or str(value) != other)

    return holds


def needs(
    name: str,
    asked: str,
    needed: str,
    source: str = ARGUMENTS,
    *,
    removes: bool = False,
) -> Rule[MegatronLaunch]:
    """A switch that needs one of others, joined by `|`: the first is added, or the switch goes."""
    others = needed.split("|")
    message = f"{flag_name(asked)}: needs {' or '.join(map(flag_name, others))}"
    changes: Patch = {asked: None} if removes else {others[0]: True}
    return clash(name, f"{asked} !{needed}", message, changes, source)


def excludes(
    name: str, first: str, second: str, why: str, source: str = ARGUMENTS
) -> Rule[MegatronLaunch]:
    """Two arguments that are not both on; the second goes."""
    message = f"{flag_name(first)} and {flag_name(second)}: {why}"
    return clash(name, f"{first} {second}", message, {second: None}, source)


def is_before(release: str, other: str) -> bool:
    """True for a release older than another."""
    return tuple(map(int, release.split("."))) < tuple(map(int, other.split(".")))


def rules_in(names: Mapping[str, Any]) -> tuple[Rule[MegatronLaunch], ...]:
    """The rules among a module's names, in their order there."""
    return tuple(value for value in names.values() if isinstance(value, Rule))
