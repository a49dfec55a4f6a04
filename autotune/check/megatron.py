"""The check of a launch of Megatron-LM: a shell file, or a YAML as `--yaml-cfg` takes it."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.base.yaml_file import parse_yaml
from autotune.check.changes import NULL
from autotune.check.edit import edit
from autotune.check.ignored import MEGATRON_PREFIX, Ignored, ignored_in
from autotune.check.key_positions import TextPlace
from autotune.check.lint import WITHOUT_WORLD, CheckReport, Found
from autotune.check.rule_list import FileRule
from autotune.check.text_nodes import Edit, spliced
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.engines.deepspeed.sources.source import Source
from autotune.engines.megatron.argument_rules import ARGUMENT_RULES
from autotune.engines.megatron.argument_rules.making import as_word, flag_name
from autotune.engines.megatron.argument_rules.ranks import CONNECTIONS, asks_for_connections
from autotune.engines.megatron.launch_rules import changed, judge_launch
from autotune.engines.megatron.launched import GivenArgument, MegatronLaunch, launches_of
from autotune.engines.megatron.rules import RULES
from autotune.engines.megatron.yaml_fields import home_of
from autotune.space.rule import NotJudged, Rule, Violation, level_of

_MOST_ROUNDS = 50
"""Changes that one launch is mended with: each makes a rule silent, and few ask for another."""
_READER = "megatron-lm"
_OFFLOAD = "NVTE_CPU_OFFLOAD_V1"
"""Asked for beside offloaded modules, as 1, from Transformer Engine 2.10 on."""
_BETWEEN = re.compile(r"(?:[ \t]|\\\n)+")
_USED = re.compile(r"(?:[ \t]|\\\n)+(?:\"\$\{?\w+\}?\"|\$\{?\w+\}?)")
"""A variable behind a flag."""
_BLANK = re.compile(r"[ \t]*\\?")
_PARSER = "megatron/training/arguments.py, parse_args"
_YAML_PARSER = "megatron/training/yaml_arguments.py, validate_yaml"
_WORD_RULES: Mapping[str, FileRule] = {
    "flags.unknown": FileRule(
        says="A flag that the release's parser does not have.", level="error", source=_PARSER
    ),
    "flags.own": FileRule(
        says="A flag of no release, where the script is another than pretrain_gpt.py and may add "
        "it.",
        level="warning",
        source=_PARSER,
    ),
    "flags.lost_line": FileRule(
        says="A line that begins with a flag: the launch above it lost its backslash.",
        level="warning",
        source="the launch line",
    ),
    "flags.value": FileRule(
        says="A value that its parser does not take.", level="error", source=_PARSER
    ),
    "flags.stray_word": FileRule(
        says="A word that is neither a flag nor a flag's value.", level="error", source=_PARSER
    ),
    "yaml.unknown": FileRule(
        says="A field of a YAML that no release reads, spelled almost as one that is read.",
        level="warning",
        source=_YAML_PARSER,
    ),
    "yaml.missing": FileRule(
        says="A field that a --yaml-cfg has to have: nothing has a default then.",
        level="error",
        source=_YAML_PARSER,
    ),
}
"""What is said of words of a command line and fields of a YAML."""
_BY_HAND = "its text has no place of their own for the words that change; change them by hand"


@dataclass(frozen=True, kw_only=True)
class MegatronReport(CheckReport):
    """The findings about one launch of Megatron-LM."""

    release: str
    """The release of Megatron Core whose parser and checks would read it."""
    release_because: str = ""
    """Why that one; empty: somebody named it, or it is installed."""

    @property
    def about(self) -> str:
        """What was judged, in words."""
        world = "?" if self.world is None else self.world
        return (
            f"{self.source.path}: read by Megatron-LM, Megatron Core {self.release}"
            + (f" ({self.release_because})" if self.release_because else "")
            + f", world {world} ({self.world_because})"
        )

    @property
    def version_note(self) -> str:
        """Empty: a release that is not known is refused."""
        return ""

    @property
    def unknown_because(self) -> str:
        """See `CheckReport.unknown_because`."""
        return "known to the shell alone"

    def to_dict(self, *, fixed: bool) -> dict[str, Any]:
        """For JSON; as of `CheckReport.to_dict`."""
        told = super().to_dict(fixed=fixed)
        told |= {"consumer": _READER, "consumer_because": "its script"}
        told |= {"megatron": self.release, "megatron_because": self.release_because}
        return {name: value for name, value in told.items() if name != "deepspeed_version"}


def check_launch(
    launch: MegatronLaunch,
    number: int,
    environment: Environment,
    *,
    world: int | None,
    ignore: Sequence[str],
) -> MegatronReport:
    """Judge a launch of a file.

    Args:
        launch: What it starts.
        number: Position among the launches of its file, from 0.
        environment: Where it will run.
        world: Ranks; counts before what the line says.
        ignore: Rules that the user does not want, besides those that the file names.

    Raises:
        JobError: What the file ignores is no rule.
    """
    if world is not None:
        launch = replace(launch, world=world)
    path = launch.path
    ignored = ignored_in(launch.text, {}, ignore, name=str(path))
    place = _places(launch)

    def judged(one: MegatronLaunch, unknown_facts: set[str] | None = None) -> list[Violation]:
        return [
            replace(each, rule=f"{MEGATRON_PREFIX}{each.rule}")
            for each in judge_launch(one, unknown_facts)
        ]

    def look(one: MegatronLaunch) -> list[Violation]:
        return _wanted(judged(one), ignored, place)

    unknown_facts: set[str] = set()
    first = judged(launch, unknown_facts)
    before = _wanted(first, ignored, place)
    spelled = _spelled_right(launch, number)
    after, left = spelled, before if spelled is launch else look(spelled)
    seen = [*before, *(each for each in left if each.rule not in {one.rule for one in before})]
    changes: dict[str, Any] = {}
    mended_by: dict[str, Violation] = {}
    for _ in range(_MOST_ROUNDS):
        mending = next((each for each in left if each.changes), None)
        if mending is None:
            break
        changes |= mending.changes
        after = changed(after, mending.changes)
        rest = look(after)
        silent = {each.rule for each in left} - {each.rule for each in rest}
        mended_by |= dict.fromkeys(silent, mending)
        left = rest
        seen += [each for each in left if each.rule not in {one.rule for one in seen}]
    is_changed = bool(changes) or spelled is not launch
    text = _edited(spelled, changes) if is_changed else None
    not_edited = ""
    if is_changed and not _says(text, number, after):
        names = " or ".join(each.name for each in launch.sourced)
        text = None
        not_edited = f"its words come from {names}" if names else _BY_HAND
    return MegatronReport(
        source=_source(launch),
        environment=environment,
        world=launch.world,
        world_because="given" if world is not None else _world_because(launch),
        found=tuple(
            Found(
                violation=_as_done(each, mended_by, left),
                place=place(each),
                after_fix=each not in before,
            )
            for each in seen
        ),
        left=tuple(left if text is not None or not is_changed else before),
        questions=(),
        unknown=tuple(sorted(launch.unknown)),
        not_judged=tuple(_not_judged(launch, unknown_facts)),
        fixed_text=text,
        not_edited=not_edited,
        ignored=tuple(each.rule for each in first if ignored.holds(each.rule, place(each).line)),
        release=launch.release,
        release_because=launch.release_because,
    )


def _world_because(launch: MegatronLaunch) -> str:
    source = "a YAML" if launch.is_yaml else "the launch line"
    if launch.world is None:
        return f"{source} does not say it: give --world"
    is_set = launch.variables.get("WORLD_SIZE") == str(launch.world)
    return "WORLD_SIZE" if is_set else source


def _as_done(
    violation: Violation,
    mended_by: Mapping[str, Violation],
    left: Sequence[Violation],
) -> Violation:
    """A violation with the fix that was made, which may be another one's, or another than first.

    Args:
        violation: As it was first seen.
        mended_by: Rule -> the violation whose fix made it silent.
        left: Violations that stay.
    """
    by = mended_by.get(violation.rule)
    if by is None:  # what was a fix at first is none after the others
        return next(
            (
                replace(violation, fix=each.fix, changes=each.changes)
                for each in left
                if violation.changes and each.rule == violation.rule
            ),
            violation,
        )
    if by.rule == violation.rule and by.changes == violation.changes:
        return violation
    return replace(violation, fix=by.fix, changes=by.changes)


def _spelled_right(launch: MegatronLaunch, number: int) -> MegatronLaunch:
    """The launch with those flags that can only be mistyped as they were meant."""
    edits = [
        Edit(start=start, end=start + len(name), text=meant)
        for start, (name, meant) in launch.mistyped.items()
        if launch.text.startswith(name, start)  # not pieced together by the shell
    ]
    if not edits:
        return launch
    text = spliced(launch.text, edits)
    found = launches_of(text, launch.path, release=launch.release)
    if len(found) <= number:
        return launch
    return replace(
        found[number],
        world=launch.world,
        gpu=launch.gpu,
        gpu_precisions=launch.gpu_precisions,
    )


@cache
def megatron_rules() -> Mapping[str, FileRule]:
    """All rules of Megatron's by their names here: of words, arguments and layouts, as asked."""
    found = dict(_WORD_RULES)
    rules: tuple[Rule[Any], ...] = (*ARGUMENT_RULES, *RULES)
    for rule in rules:
        says = f"{rule.says.removesuffix('.')}."
        of_rule = FileRule(says=says, level=level_of(rule.consequence), source=rule.source)
        found.setdefault(rule.name, of_rule)
    return {f"{MEGATRON_PREFIX}{name}": rule for name, rule in found.items()}


def _wanted(
    found: Sequence[Violation], ignored: Ignored, place: Callable[[Violation], TextPlace]
) -> list[Violation]:
    return [each for each in found if not ignored.holds(each.rule, place(each).line)]


def _not_judged(launch: MegatronLaunch, unknown_facts: set[str]) -> Iterator[NotJudged]:
    """What Megatron asks for, and the file does not tell."""
    why = "; ".join(("only the shell knows it", *launch.unread))
    for start, word in launch.open_words.items():
        number = launch.text.count("\n", 0, start) + 1
        yield NotJudged(what=f"what {word} of line {number} adds", why=why)
    if launch.is_overrides:
        yield NotJudged(what="what the line does not override", why="the recipe is not read")
    for name in sorted(unknown_facts & launch.unknown):
        given = flag_name(name) if not (launch.is_yaml or launch.is_overrides) else name
        yield NotJudged(what=given, why=why)
    if "world" in unknown_facts:
        yield WITHOUT_WORLD
    is_asked = not launch.is_yaml and asks_for_connections(launch)
    lacks = is_asked and CONNECTIONS not in launch.variables
    offloads = "offload_modules" in launch.given and _OFFLOAD not in launch.variables
    for name, is_missing in ((CONNECTIONS, lacks), (_OFFLOAD, offloads)):
        if is_missing:
            yield NotJudged(what=name, why="the file does not set it")


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
    )


def _places(launch: MegatronLaunch) -> Callable[[Violation], TextPlace]:
    """Where a violation's first argument stands; else where the training is started."""

    def place(violation: Violation) -> TextPlace:
        offset = launch.start
        for name in violation.at:
            if name.startswith("@"):
                offset = int(name[1:])
                break
            if name in launch.given:
                offset = launch.given[name].start
                break
        line = launch.text.count("\n", 0, offset) + 1
        return TextPlace(line=line, column=offset - launch.text.rfind("\n", 0, offset))

    return place


def _edited(launch: MegatronLaunch, changes: Mapping[str, Any]) -> str | None:
    """The text with some arguments changed; None where that cannot be done."""
    if launch.is_yaml:
        return _edited_yaml(launch, changes)
    # Several arguments may have their value from one variable.
    edits = sorted(dict.fromkeys(_edits(launch, changes)), key=lambda each: each.start)
    is_apart = all(one.end <= other.start for one, other in pairwise(edits))
    return spliced(launch.text, edits) if is_apart else None


def _edits(launch: MegatronLaunch, changes: Mapping[str, Any]) -> Iterator[Edit]:
    new: list[str] = []
    for name, value in changes.items():
        old = launch.given.get(name)
        if old is None:
            if value is not None and launch.is_overrides:
                new.append(f"{_section_of(name, launch)}.{name}={json.dumps(value)}")
            elif value is not None:
                flag = flag_name(name)
                new.append(flag if isinstance(value, bool) else f"{flag} {as_word(value)}")
        elif value is None:
            start, end = _whole_line(launch.text, old.start, _end_of(launch.text, old))
            yield Edit(start=start, end=end, text="")
        elif old.value_start < old.end:
            yield Edit(start=old.value_start, end=old.end, text=as_word(value))
        else:  # `--flag=value` is one word
            yield Edit(start=old.start, end=old.end, text=f"{old.flag}={as_word(value)}")
    if new:
        yield Edit(start=launch.end, end=launch.end, text=f" {' '.join(new)}")


def _end_of(text: str, given: GivenArgument) -> int:
    """One past an argument where it is used; its value may stand in a variable elsewhere."""
    flag_end = given.start + len(given.flag)
    is_one_word = given.value_start >= given.end
    if is_one_word or _BETWEEN.fullmatch(text, flag_end, max(flag_end, given.value_start)):
        return given.end
    used = _USED.match(text, flag_end)
    return used.end() if used else flag_end


def _section_of(name: str, launch: MegatronLaunch) -> str:
    """Where a field stands in a recipe: Megatron-Bridge's have sections, NeMo's a model."""
    is_nemos = any(each.flag.startswith("trainer.") for each in launch.given.values())
    if is_nemos or not name.startswith(("overlap_", "use_distributed", "micro_", "global_")):
        return "model"
    return "train" if name.endswith("batch_size") else "ddp"


def _whole_line(text: str, start: int, end: int) -> tuple[int, int]:
    """A stretch to take out: its line where nothing else stands there, else with a blank."""
    begin = text.rfind("\n", 0, start) + 1
    close = text.find("\n", end)
    close = len(text) if close < 0 else close
    if not text[begin:start].strip() and _BLANK.fullmatch(text[end:close].rstrip()):
        return begin, min(close + 1, len(text))
    while start > begin and text[start - 1] in " \t":
        start -= 1
    return start, end


def _edited_yaml(launch: MegatronLaunch, changes: Mapping[str, Any]) -> str | None:
    data = parse_yaml(launch.text, launch.path)
    patch: dict[str, Any] = {}
    for name, value in changes.items():
        old = launch.given.get(name)
        section, _, key = (old.flag if old else home_of(name)).rpartition(".")
        held = data[section] if section else data
        # A key that is not there is asked for, and found missing: Megatron has no defaults then.
        off = False if isinstance(held.get(key), bool) else NULL
        new = {key: off if value is None else value}
        patch |= {section: {**patch.get(section, {}), **new}} if section else new
    return edit(launch.text, patch, "yaml")


def _says(text: str | None, number: int, wanted: MegatronLaunch) -> bool:
    """Whether an edited text gives the arguments that are wanted."""
    if text is None:
        return False
    try:
        found = launches_of(text, Path(wanted.path), release=wanted.release)
    except JobError:  # what was edited does not close any more
        return False
    if len(found) <= number:
        return False
    given = found[number].given
    if len(found[number].problems) > len(wanted.problems):
        return False

    # A flag that turns something off is one that is given; `false` of a YAML is as if it were not.
    def told(arguments: Mapping[str, GivenArgument]) -> dict[str, Any]:
        return {
            name: each.value
            for name, each in arguments.items()
            if each.value is not False or not wanted.is_yaml
        }

    return told(given) == told(wanted.given)
