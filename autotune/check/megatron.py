"""The check of a launch of Megatron-LM."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from autotune.base.data import table_beside
from autotune.base.flags import flag
from autotune.base.text import line_of, named
from autotune.check.ignored import MEGATRON_PREFIX, ignored_in
from autotune.check.key_positions import TextPlace
from autotune.check.lint import CheckReport, Found, without_world
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.engines.deepspeed.sources.file_rules import FileRule
from autotune.engines.deepspeed.sources.launch import LaunchLine
from autotune.engines.deepspeed.sources.reading import Source
from autotune.engines.launches.files import DATA_SUFFIXES
from autotune.engines.megatron.argument_rules import (
    ARGUMENT_RULES,
    CONNECTIONS,
    asks_for_connections,
    flag_name,
)
from autotune.engines.megatron.launch_rules import judge_launch
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.engines.megatron.pretrain_gpt import check_arguments
from autotune.engines.megatron.rules import RULES
from autotune.space.rule import NotJudged, Rule, Violation, level_of

_READER = "megatron-lm"
_OFFLOAD = "NVTE_CPU_OFFLOAD_V1"
"""Asked for beside offloaded modules, as 1, from Transformer Engine 2.10 on."""
_WORD_RULES: Mapping[str, FileRule] = {
    name: FileRule(**row)
    for name, row in table_beside(__file__, "megatron_word_rules.json").items()
}
"""What is said of words of a command line, and of what the checkout refuses."""


@dataclass(frozen=True, kw_only=True)
class MegatronReport(CheckReport):
    """The findings about one launch of Megatron-LM."""

    release: str
    """The release of Megatron Core whose parser and checks would read it."""
    release_because: str = ""
    """Why that one; empty: somebody named it, or it is installed."""
    trains_without: str = ""
    """The program that trains without Megatron Core; empty: Megatron Core trains."""
    model: str = ""
    """The preset whose sizes were taken, as the launch names it; empty: none."""

    @property
    def about(self) -> str:
        world = "?" if self.world is None else self.world
        because = f" ({self.release_because})" if self.release_because else ""
        reader = f"Megatron-LM, Megatron Core {self.release}{because}"
        sizes = f", sizes of {self.model}" if self.model else ""
        return (
            f"{self.source.path}: read by {self.trains_without or reader}, world {world}"
            f" ({self.world_because}){sizes}{self.without_words}"
        )

    @property
    def version_note(self) -> str:
        """Empty: a release that is not known is refused."""
        return ""

    def to_dict(self, *, fixed: bool) -> dict[str, Any]:
        found = super().to_dict(fixed=fixed)
        found |= {"consumer": _READER, "consumer_because": "its script"}
        found |= {"megatron": self.release, "megatron_because": self.release_because}
        return {name: value for name, value in found.items() if name != "deepspeed_version"}


def check_launch(
    launch: MegatronLaunch,
    environment: Environment,
    *,
    world: int | None,
    ignore: Sequence[str],
    checkout: Path | None = None,
) -> MegatronReport:
    """Judge a launch of a file.

    Args:
        launch: What it starts.
        environment: Where it will run.
        world: Ranks; counts before what the line says.
        ignore: Rules that the user does not want, besides those that the file names.
        checkout: Megatron-LM whose own checks are asked as well.

    Raises:
        JobError: What the file ignores is no rule, or the checkout cannot be asked.
    """
    if world is not None:
        launch = replace(launch, ranks=replace(launch.ranks, world=world))
    ignored = ignored_in(launch.text, {}, ignore, name=str(launch.path))
    place = _places(launch)
    unknown_facts: set[str] = set()
    judged = [
        replace(violation, rule=f"{MEGATRON_PREFIX}{violation.rule}")
        for violation in (*judge_launch(launch, unknown_facts), *_refused_by(checkout, launch))
    ]
    found: list[Found] = []
    unwanted: list[str] = []
    for violation in judged:
        at = place(violation)
        if ignored.holds(violation.rule, at.line):
            unwanted.append(violation.rule)
        else:
            found.append(Found(violation=violation, place=at, after_fix=False))
    return MegatronReport(
        source=_source(launch),
        environment=environment,
        world=launch.world,
        world_because="given" if world is not None else _world_because(launch),
        found=tuple(found),
        left=tuple(one.violation for one in found),
        questions=(),
        unknown=tuple(sorted(launch.unknown)),
        unknown_because="known to the shell, or to a fork's parser, alone",
        not_judged=tuple(_not_judged(launch, unknown_facts, checkout)),
        fixed_text=None,
        not_edited="the file is read, not written: change the words that the findings name",
        ignored=tuple(unwanted),
        release=launch.release,
        release_because=launch.release_because,
        trains_without=launch.trains_without,
        model=launch.model,
    )


def _can_be_asked(launch: MegatronLaunch) -> bool:
    is_known = not (launch.unknown or launch.is_partial or launch.problems)
    return is_known and launch.world is not None and bool(launch.words)


def _refused_by(checkout: Path | None, launch: MegatronLaunch) -> list[Violation]:
    if checkout is None or launch.world is None or not _can_be_asked(launch):
        return []
    refused = check_arguments(checkout, [launch.words], world=launch.world)
    return [
        Violation(rule="checkout.refuses", message=why, fix="change what it names")
        for why in refused.values()
    ]


def _world_because(launch: MegatronLaunch) -> str:
    place = "file" if launch.path.suffix in DATA_SUFFIXES else "launch line"
    if launch.world is None:
        return f"the {place} does not say it: give {flag('world')}"
    is_set = launch.variables.get("WORLD_SIZE") == str(launch.world)
    return "WORLD_SIZE" if is_set else f"the {place}{launch.ranks.by_default}"


@cache
def megatron_rules() -> Mapping[str, FileRule]:
    """All rules of Megatron's by their names here: of words, arguments and layouts, as asked."""
    found = dict(_WORD_RULES)
    rules: tuple[Rule[Any], ...] = (*ARGUMENT_RULES, *RULES)
    for rule in rules:
        says = f"{rule.says.removesuffix('.')}."
        of_rule = FileRule(says=says, level=level_of(rule.consequence), source=rule.source)
        first = found.setdefault(rule.name, of_rule)
        if rule in ARGUMENT_RULES and says not in first.says:  # rows of one subject
            found[rule.name] = replace(first, says=f"{first.says} {says}")
    return {f"{MEGATRON_PREFIX}{name}": rule for name, rule in found.items()}


def _not_judged(
    launch: MegatronLaunch, unknown_facts: set[str], checkout: Path | None
) -> Iterator[NotJudged]:
    if checkout is not None and not _can_be_asked(launch):
        what = f"what {checkout} itself says"
        yield NotJudged(what=what, why="it is asked of a line without open words and errors")
    words = [
        f"what {word} of line {line_of(launch.text, start)} adds"
        for start, word in launch.open_words.items()
        if not launch.is_passing_on  # it is judged as nobody gives it words
    ]
    names = [
        f"{launch.prefix}{name}" if launch.is_overrides else flag_name(name)
        for name in sorted(unknown_facts & launch.unknown)
    ]
    if words or names:
        why = launch.unread or "only the shell knows it"
        yield NotJudged(what=named([*words, *names]), why=why)
    if launch.rest is not None:
        yield NotJudged(what=launch.rest[0], why=launch.rest[1])
    if launch.ranks.lacks_ranks is None:
        why = f"{launch.ranks.starter} does not set it: what stands before Python may"
        yield NotJudged(what="RANK of each task", why=why)
    if "world" in unknown_facts:
        yield without_world()
    lacks = asks_for_connections(launch) and CONNECTIONS not in launch.variables
    offloads = "offload_modules" in launch.given and _OFFLOAD not in launch.variables
    for name, is_missing in ((CONNECTIONS, lacks), (_OFFLOAD, offloads)):
        if is_missing:
            yield NotJudged(what=name, why="the file does not set it")
    if checkout is None and not launch.is_overrides:
        yield NotJudged(
            what="Megatron-LM's other checks",
            why="of schedules, data, checkpoints, sizes: "
            f"{flag('megatron_path')} names a checkout to ask",
        )


def _source(launch: MegatronLaunch) -> Source:
    return Source(
        asked=launch.path,
        path=launch.path,
        text=launch.text,
        config={},
        consumer=Consumer.DEEPSPEED,
        because=_READER,
        reader=_READER,
        world=launch.world,
        line=LaunchLine(open_words=tuple(launch.open_words.values()), assumed=launch.assumed),
        sourced=launch.sourced,
    )


def _places(launch: MegatronLaunch) -> Callable[[Violation], TextPlace]:
    """Where a violation's first argument stands; else where the training is started."""

    def place(violation: Violation) -> TextPlace:
        starts = (
            int(name[1:]) if name.startswith("@") else launch.given[name].start
            for name in violation.at
            if name.startswith("@") or name in launch.given
        )
        offset = next(starts, launch.start)
        line = line_of(launch.text, offset)
        return TextPlace(line=line, column=offset - launch.text.rfind("\n", 0, offset))

    return place
