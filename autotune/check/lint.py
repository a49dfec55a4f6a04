"""The check: the rules of the lattice on anybody's configuration, and the smallest fix."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, partial
from typing import Any

from autotune.base.flags import flag
from autotune.base.nested import Unknown, dotted, leaves, look_up
from autotune.base.secrecy import scrubbed, scrubbed_text
from autotune.base.text import named
from autotune.base.user_text import read_text
from autotune.check import huggingface
from autotune.check.fixes import Question, Reply, Terms, mend
from autotune.check.ignored import ignored_in
from autotune.check.json_text import duplicates
from autotune.check.key_positions import Places, TextPlace, places_in
from autotune.check.numbers_read import as_read
from autotune.check.written import (
    is_accelerates,
    not_edited,
    text_after,
    text_diff,
    words_for,
)
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed import rules
from autotune.engines.deepspeed.ds_config_text import BYTE_ORDER_MARK
from autotune.engines.deepspeed.rules.base import BATCH_KEYS, Setup, autotp_size
from autotune.engines.deepspeed.rules.releases import NEWEST_READ, OLDEST_READ, is_read
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.rules.version import removed_later
from autotune.engines.deepspeed.sources import neox
from autotune.engines.deepspeed.sources.accelerate import FIELDS, SECTION
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.engines.deepspeed.sources.file_rules import violation_of
from autotune.engines.deepspeed.sources.filled import filled
from autotune.engines.deepspeed.sources.reading import Source
from autotune.engines.deepspeed.sources.refusals import brings_for_cpu
from autotune.engines.deepspeed.sources.source import auto_that_tells
from autotune.engines.launches.shell_words import PASSED_ON
from autotune.engines.releases import release_of
from autotune.space.rule import Level, NotJudged, Patch, Violation, facts_of

_NO_WORLD = Unknown("nobody says how many ranks there are")
_AT_RUN_TIME = "put in at run time"
_KEY_TWICE, _OF_OPTIMIZER = "file.key_twice", "offload.script_optimizer"
_OF_ACCELERATE = ("accelerate.", "huggingface.accelerate_duplicate", "huggingface.not_deepspeed")
"""Beginnings of the names of rules about accelerate's YAML."""
_LAUNCH_RULES = ("lost_line", "blank_word", "visible_", "idle_", "tasks", "lone_", "local_rank")
_OF_ARGUMENTS = "huggingface.two_precisions"
_OF_PROGRAMS = ("file.program_refuses", "file.misspelt_argument", "accelerate.processes")
_MAYBE_OF_LAUNCHES = (*_OF_PROGRAMS, _OF_ARGUMENTS)
"""Rules about a launch where they name no key."""
_OF_LAUNCHES = (*(f"file.{name}" for name in _LAUNCH_RULES), _OF_ARGUMENTS)
"""The same of rules about a launch; another line than its first is their `at`."""
_BY_SCRIPTS = frozenset(
    ("scheduler.missing_params", "optimizer.missing_params", "optimizer.unknown_type")
)
"""Rules about what a script that reads a file of its own may add, or make itself."""


class CheckExit(IntEnum):
    """Exit codes of `check`, which are its own; scripts may rely on them."""

    PASSES = 0
    FAILS = 2
    UNREADABLE = 3


@dataclass(frozen=True, kw_only=True)
class Found:
    """One thing that is wrong with a configuration."""

    violation: Violation
    place: TextPlace
    """Where its key stands in the file."""
    after_fix: bool
    """Seen only once others were mended."""

    def to_dict(self) -> dict[str, Any]:
        """The form that `--format json` prints."""
        violation = self.violation
        return {
            "rule": violation.rule,
            "level": violation.level,
            **({"file": str(self.place.file)} if self.place.file else {}),
            "line": self.place.line,
            "column": self.place.column,
            "message": violation.message,
            "fix": violation.fix,
            "docs": f"autotune rule {violation.rule}",
            "changes": _for_programs(violation.changes),
            "choices": [
                {"words": str(choice), "changes": _for_programs(choice.changes)}
                for choice in violation.choices
            ],
            "consequence": violation.consequence,
            "after_fix": self.after_fix,
        }


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Findings, and the file after every fix that needs no choice, or that was chosen."""

    source: Source
    environment: Environment
    world: int | None
    world_because: str
    found: tuple[Found, ...]
    left: tuple[Violation, ...]
    """Findings that are left after the fix."""
    questions: tuple[Question, ...]
    """Findings of `left` that only the user can decide, each with its ways out."""
    unknown: tuple[str, ...]
    """Keys whose value is known at run time only; rules that need one had nothing to say."""
    unknown_because: str = 'known at run time only ("auto")'
    """Why nobody here knows what is in `unknown`."""
    fixed_text: str | None
    """The file after the fix; None where nothing changes, or the file cannot be edited."""
    not_edited: str
    """Why the file cannot be edited; empty where it can."""
    ignored: tuple[str, ...] = ()
    """Rules of the findings that the user does not want, each once a finding."""
    not_judged: tuple[NotJudged, ...] = ()
    """What decides whether it runs and could not be read; empty: all that does was judged."""

    @property
    def without_words(self) -> str:
        """Says that who starts the file may give it words; empty: it hands on none."""
        line = self.source.line
        taken = [f'"{one}" takes some' for one in line.open_words if PASSED_ON.fullmatch(one)]
        taken = [*taken[:1], *line.assumed]
        return f", started without arguments ({named(taken, ', ', most=3)})" if taken else ""

    @property
    def about(self) -> str:
        """What was judged, in words."""
        source, environment = self.source, self.environment
        world = "?" if self.world is None else self.world
        place = f"{source.path}" + f", as {source.asked} uses it" * (source.path != source.asked)
        release = f"DeepSpeed {environment.deepspeed_version}"
        engine = {True: release, False: "without DeepSpeed", None: f"perhaps {release}"}
        return (
            f"{place}: read by {source.consumer} ({source.because}), "
            f"{engine[source.has_deepspeed]}, {environment.accelerator}, world {world} "
            f"({self.world_because}){self.without_words}"
        )

    @property
    def passes(self) -> bool:
        """Whether the file would run after the fix; if not, nothing is written."""
        return all(violation.level != "error" for violation in self.left)

    @property
    def needed(self) -> tuple[Question, ...]:
        """Questions that have to be answered before the file passes."""
        return tuple(one for one in self.questions if one.violation.level == "error")

    def is_written(self, *, fixed: bool) -> bool:
        """Whether `--fix`, where it was said, changed the file."""
        return fixed and self.fixed_text is not None and self.source.can_write and self.passes

    @property
    def version_note(self) -> str:
        """A warning that the rules do not know the release; empty where they were read off it."""
        version = self.environment.deepspeed_version
        if is_read(version):
            return ""
        is_old = release_of(version) < release_of(OLDEST_READ)
        end, first = ("older", OLDEST_READ) if is_old else ("newer", NEWEST_READ)
        return (
            f"DeepSpeed {version} is {end} than {first}: the rules were read off {OLDEST_READ} to "
            f"{NEWEST_READ}, and what it lacks or changed is known in part"
        )

    @cached_property
    def diff(self) -> str:
        """The fix as a unified diff, secrets masked; empty where there is none."""
        if self.fixed_text is None:
            return ""
        return text_diff(str(self.source.path), self.source.text, self.fixed_text)

    def now(self, *, fixed: bool) -> Sequence[Violation]:
        """Findings about the file as it is: after `--fix`, if that was said."""
        if self.is_written(fixed=fixed):
            return self.left
        return [found.violation for found in self.found if not found.after_fix]

    def exit_code(self, *, fixed: bool, strict: bool = False) -> CheckExit:
        """Exit code of `check` for this file alone; `strict`: a warning fails, too."""
        worst: tuple[Level, ...] = ("error", "warning") if strict else ("error",)
        fails = any(violation.level in worst for violation in self.now(fixed=fixed))
        return CheckExit.FAILS if fails else CheckExit.PASSES

    def is_refused(self, *, fixed: bool) -> bool:
        """Whether something in the file as it is would end the run."""
        return any(violation.level == "error" for violation in self.now(fixed=fixed))

    def would_run(self, *, fixed: bool) -> bool | None:
        """Whether it would run; None: nothing refuses it, and not all was judged."""
        if self.is_refused(fixed=fixed):
            return False
        may_fail = any(one.consequence == "may_raise" for one in self.now(fixed=fixed))
        return None if self.not_judged or may_fail else True

    def to_dict(self, *, fixed: bool) -> dict[str, Any]:
        """For JSON; `would_run` is about the file as it is after `--fix`, if that was said."""
        return {
            "file": str(self.source.path),
            "consumer": str(self.source.consumer),
            "consumer_because": self.source.because,
            "deepspeed_version": self.environment.deepspeed_version,
            "version_note": self.version_note,
            "accelerator": self.environment.accelerator,
            "world": self.world,
            "world_because": self.world_because,
            "unknown": list(self.unknown),
            "findings": [found.to_dict() for found in self.found],
            "ignored": list(self.ignored),
            "not_judged": [one.to_dict() for one in self.not_judged],
            "fixed": self.is_written(fixed=fixed),
            "would_run": self.would_run(fixed=fixed),
            "would_run_after_fix": self.would_run(fixed=True),
            "diff": self.diff,
            "not_edited": self.not_edited,
            "left": [violation.rule for violation in self.left],
            "to_choose": [
                {
                    "choose": f"{question.violation.rule}={option.number}",
                    "words": option.words,
                    "changes": _for_programs(option.changes),
                    "is_needed": question in self.needed,
                }
                for question in self.questions
                for option in question.options
            ],
        }


def _for_programs(changes: Patch) -> Any:
    """Changes as JSON holds them: secrets hidden, and what YAML alone has, a date say, as text."""
    return _as_json(scrubbed(changes))


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _as_json(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


@dataclass(frozen=True, kw_only=True)
class _Looked:
    """One look at a configuration."""

    world: int | None
    world_because: str
    violations: tuple[Violation, ...] = ()
    unknown: frozenset[tuple[str, ...]] = frozenset()
    unknown_facts: frozenset[str] = frozenset()
    """Facts that rules asked for and nobody knows."""


def check(
    source: Source,
    environment: Environment,
    chosen: Sequence[Reply] = (),
    ignore: Sequence[str] = (),
) -> CheckReport:
    """Judge a configuration, and mend it until nothing changes any more.

    Args:
        source: What to judge.
        environment: Where it would run.
        chosen: What the user decided.
        ignore: Rules that the user does not want to hear of, besides those that the file names.

    Raises:
        JobError: What was chosen is not open, or what is to be ignored is no rule.
    """
    report, config = _checked(source, environment, chosen, ignore)
    if not source.is_guessed or not (key := auto_that_tells(config)):
        return report
    # A key that has moved tells who reads the file: the fix is for that reader, at once.
    read = replace(source, consumer=Consumer.TRAINER, because=f'"auto" at {key} once it is mended')
    return _checked(read, environment, chosen, ignore)[0]


def _checked(
    source: Source, environment: Environment, chosen: Sequence[Reply], ignore: Sequence[str]
) -> tuple[CheckReport, Mapping[str, Any]]:
    """The report, and the configuration after what was mended."""
    wishes = _Wishes(source, ignore)
    first = _look(source.config, source, environment)
    all_of_file = list(_of_the_file(source))
    all_found = [*first.violations, *all_of_file]
    of_config, of_file = wishes.wanted(first.violations), wishes.wanted(all_of_file)
    before = [*of_config, *of_file]
    why_not = not_edited(source)
    if any(one.rule == _KEY_TWICE for one in all_of_file):
        why_not = "a key stands there twice"

    looked_at = source.config

    def look(config: Mapping[str, Any]) -> list[Violation]:
        # Whoever mends looks at one configuration several times: a large one takes its time.
        nonlocal looked_at, of_config
        if config is not looked_at:
            again = _look(config, source, environment, world=first.world)
            looked_at, of_config = config, wishes.wanted(again.violations)
        return of_config

    terms = Terms(knows_world=source.world is not None, words=partial(words_for, source))
    mended = mend(source.config, look, terms, chosen)
    text = None
    if not why_not and repr(mended.config) != repr(source.config):
        text = text_after(source, mended.config, mended.moves)
        if text is None:
            why_not = "its text cannot be changed there with every comment and alias kept"
    report = CheckReport(
        source=source,
        environment=environment,
        world=first.world,
        world_because=first.world_because,
        found=tuple(
            Found(violation=_discreet(one), place=wishes.place(one), after_fix=at >= len(before))
            for at, one in enumerate((*before, *_new(mended.seen, before)))
        ),
        left=tuple(before) if why_not else (*mended.left, *of_file),
        questions=() if why_not else tuple(map(_discreet_question, mended.questions)),
        unknown=tuple(sorted(map(dotted, first.unknown))),
        fixed_text=None if text == source.text else text,
        not_edited=why_not,
        ignored=tuple(one.rule for one in all_found if one not in before),
        not_judged=tuple(_not_judged(source, first, environment.deepspeed_version)),
    )
    return report, source.config if why_not else mended.config


def _discreet(violation: Violation) -> Violation:
    """A violation without secrets, for people."""
    message, fix = scrubbed_text(violation.message), scrubbed_text(violation.fix)
    if (message, fix) == (violation.message, violation.fix):
        return violation
    return replace(violation, message=message, fix=fix)


def _discreet_question(question: Question) -> Question:
    """A question without secrets, for people."""
    options = tuple(replace(one, words=scrubbed_text(one.words)) for one in question.options)
    return replace(question, violation=_discreet(question.violation), options=options)


class _Wishes:
    """The findings that the user wants to hear of, with the place of each in the file."""

    def __init__(self, source: Source, ignore: Sequence[str]) -> None:
        self._source = source
        self._ignored = ignored_in(source.text, source.config, ignore, name=str(source.path))

    def wanted(self, violations: Iterable[Violation]) -> list[Violation]:
        """Findings that no flag, comment or key of the file suppresses."""
        if self._ignored.is_nothing:
            return list(violations)
        return [
            one
            for one in violations
            if not self._ignored.holds(one.rule, 0 if (at := self.place(one)).file else at.line)
        ]

    def place(self, violation: Violation) -> TextPlace:
        """Places of the keys that it is about."""
        file, launch = self._source.accelerate.path, self._source.launch_at
        of_launch, of_file = map(violation.rule.startswith, (_OF_LAUNCHES, _OF_ACCELERATE))
        if violation.rule in _MAYBE_OF_LAUNCHES:
            if (argument := self._place_of_argument(violation)) is not None:
                return argument
            of_launch |= not self._source.config.keys() & {*violation.at}
        lines = [int(one[1:]) for one in violation.at if one.startswith("@")]
        if launch is not None and (of_launch or (of_file and file is None)):
            path = None if launch[0] == self._source.path else launch[0]
            return TextPlace(file=path, line=next(iter(lines), launch[1]))
        if lines:
            return TextPlace(line=lines[0])
        is_elsewhere = file != self._source.path and (of_launch or of_file)
        if file is None or not is_elsewhere:
            return self._places.of(violation)
        return replace(self._places_of_accelerate.of(violation), file=file)

    def _place_of_argument(self, violation: Violation) -> TextPlace | None:
        """Place of an argument in the file that holds them; None: it does not stand there."""
        path, at = self._source.arguments_path, self._source.arguments_at
        at_line = self._source.line.arguments.keys() & violation.at[:1]
        if path is None or not path.is_file() or not violation.at or at_line:
            return None
        is_yaml = path.suffix in (".yaml", ".yml")
        found = places_in(read_text(path), at, "yaml" if is_yaml else "json").of(violation)
        return replace(found, file=None if path == self._source.path else path)

    @cached_property
    def _places_of_accelerate(self) -> Places:
        path = self._source.accelerate.path
        assert path is not None, "it holds what is found there"
        return places_in(read_text(path), (), "yaml")

    @cached_property
    def _places(self) -> Places:
        return places_in(self._source.text, self._source.at, self._source.syntax)


def _new(violations: Iterable[Violation], known: Iterable[Violation]) -> list[Violation]:
    """Findings about facts that no known one is about; of one fact, the first."""
    facts = set(map(_fact, known))
    new: dict[tuple[object, ...], Violation] = {}
    for violation in violations:
        if (fact := _fact(violation)) not in facts:
            new.setdefault(fact, violation)
    return list(new.values())


def _fact(violation: Violation) -> tuple[object, ...]:
    """Identity of a violation: its keys, whatever their values, or its message."""
    if violation.at:
        return (violation.rule, violation.at)
    changed_keys = tuple(path for path, _ in leaves(violation.changes) if path)
    return (violation.rule, changed_keys or violation.message)


def _look(
    config: Mapping[str, Any],
    source: Source,
    environment: Environment,
    *,
    world: int | None = None,
) -> _Looked:
    """Judge once; `world`: as an earlier look took it."""
    if not source.has_deepspeed:
        found = tuple(huggingface.of_accelerates_file(source))
        return _Looked(world=source.world, world_because=source.world_because, violations=found)
    filled_in, unknown = filled(config, source)
    after: Mapping[str, Any] = filled_in
    if _may_read_itself(source):
        after = as_read(after)
    taken, because = _world(after, source, unknown)
    world = world or taken
    setup = _setup(after, source, environment, world, unknown)
    unknown_facts: set[str] = set()
    violations = rules.judge(setup, unknown_facts)
    if "bf16" not in config:  # but in what accelerate adds, of which `huggingface` tells
        violations = [one for one in violations if one.rule != "precision.bfloat16_beside_bf16"]
    if source.unasked:
        violations = [one for one in violations if not _is_unasked(one, source)]
    of_reader = huggingface.violations(config, source)
    on = [name for name in ("fp16", "bf16") if look_up(config, f"{name}.enabled") is True]
    is_told = any(one.rule == "huggingface.two_precisions" for one in source.refused)
    if len(on) < 2 and (is_told or any(one.level == "error" for one in of_reader)):
        # What the reader adds makes two of them, which that tells.
        violations = [one for one in violations if one.rule != "precision.fp16_and_bf16"]
    if any(one.rule == "huggingface.mismatch" and {*one.at} & {*BATCH_KEYS} for one in of_reader):
        # The arguments say the sizes: another one that makes the product right would differ.
        violations = [one for one in violations if one.rule != "batch.product"]
    violations = [*of_reader, *violations]
    return _Looked(
        violations=tuple(_as_its_reader_has_it(one, source) for one in violations),
        unknown=frozenset(unknown),
        unknown_facts=frozenset(unknown_facts),
        world=world,
        world_because=because,
    )


def _as_its_reader_has_it(one: Violation, source: Source) -> Violation:
    """A violation with what follows from it where another program reads or completes the file."""
    for key in {*one.at} & FIELDS.keys() if is_accelerates(source) else ():
        name = f"{SECTION}.{FIELDS[key]}"
        message, fix = (text.replace(key, name) for text in (one.message, one.fix))
        one = replace(one, at=(name,), message=message, fix=fix)
    if source.is_part and one.rule in _BY_SCRIPTS:
        one = replace(one, consequence="may_raise")
    # Nobody reads the configuration then, and its YAML alone is refused.
    is_unread = bool(source.not_for) and not one.rule.startswith("accelerate.")
    is_dropped = source.reader == neox.READER and neox.drops(one)
    if one.level != "error" or not (is_unread or is_dropped):
        return one
    message = f"{one.message}{neox.DROPPED}" if is_dropped else one.message
    return replace(one, message=message, consequence="ignored")


def without_world(why: str = "") -> NotJudged:
    """What rules about ranks leave open; `why`, where it is not that nobody says how many."""
    why = why or f"give it with {flag('world')}"
    return NotJudged(what="what the number of ranks decides", why=why)


def _not_judged(source: Source, looked: _Looked, version: str) -> Iterator[NotJudged]:
    """What decides whether a configuration runs, and nobody here could read."""
    yield from source.not_judged
    if not source.has_deepspeed:
        return
    if source.reader == neox.READER:
        yield neox.OWN_CHECKS
    if not is_read(version):
        yield NotJudged(
            what=f"DeepSpeed {version}", why=f"rules are of {OLDEST_READ} to {NEWEST_READ}"
        )
    if "world" in looked.unknown_facts:
        unread = "its degrees" if source.line.reader else "the stages of its PipelineModule"
        yield without_world("" if source.split else f"{unread} are not read")
    if any(one.rule == _OF_OPTIMIZER and one.is_note for one in looked.violations):
        line = f": give the line that starts it with {flag('launch')}" * (source.script is None)
        why = f"beside an offload DeepSpeed takes its own for the CPU alone{line}"
        yield NotJudged(what="the optimizer that the script brings", why=why)
    if source.is_tuned is None and look_up(source.config, "autotuning.enabled") is True:
        yield NotJudged(
            what="autotuning",
            why="what the file means without deepspeed --autotuning is something else: give the "
            f"line with {flag('launch')}",
        )
    for path in sorted(source.unknown):
        value = look_up(source.config, dotted(path))
        if dotted(path) in looked.unknown_facts and value != AUTO:
            yield NotJudged(what=dotted(path), why=f"{value} is put in at run time")
    yield from huggingface.not_compared(source)
    if look_up(source.config, "expert_parallel.comm_backend") == "deepep":
        yield NotJudged(what="DeepEP", why="its package deep_ep has to be on the nodes")
    if source.consumer is not Consumer.DEEPSPEED and source.mixed_precision == "fp8":
        yield NotJudged(what="fp8", why="Transformer Engine or torchao has to be on the nodes")
    for name in removed_later(source.config, version):
        yield NotJudged(what=name, why="later releases removed it, and no rule knows what it does")


def _is_unasked(violation: Violation, source: Source) -> bool:
    """Whether it is about nothing but what the reader puts in itself, and no refusal."""
    changed_keys = (dotted(path) for path, _ in leaves(violation.changes) if path)
    keys = set(violation.at or changed_keys)
    return violation.level != "error" and bool(keys) and keys <= source.unasked


def _setup(
    config: Mapping[str, Any],
    source: Source,
    environment: Environment,
    world: int | None,
    unknown: set[tuple[str, ...]],
) -> Setup:
    return Setup(
        ranks=_NO_WORLD if world is None else world,
        ds_config=facts_of(config, unknown, _AT_RUN_TIME) if unknown else config,
        tp=source.layout.tp if source.layout.pp > 1 else autotp_size(config),
        tp_follows_file=source.layout.pp == 1,
        pp=source.layout.pp,
        sp_by_script=source.layout.sp,
        brings_cpu_adam=brings_for_cpu(source),
        is_part=source.is_part,
        is_tuned=source.is_tuned,
        environment=replace(
            environment, n_devices=source.per_node or 0 if source.split == 1 else 0
        ),
    )


def _world(
    config: Mapping[str, Any], source: Source, unknown: set[tuple[str, ...]]
) -> tuple[int | None, str]:
    """Ranks: as they were given, else as the batch sizes of the file imply them."""
    if source.world is not None:
        return source.world, source.world_because
    given = [None if (name,) in unknown else config.get(name) for name in BATCH_KEYS]
    sizes = [size for size in given if type(size) is int and size > 0]
    if len(sizes) < len(given):
        return None, "not known: rules that need it say nothing"
    micro, accum, total = sizes
    if total % (micro * accum):
        return None, f"not known: {total} is no multiple of {micro} * {accum}"
    groups = total // (micro * accum)
    sp = config.get("sequence_parallel_size", 1)
    ranks = (
        groups * source.layout.pp * source.layout.tp * (sp if type(sp) is int and sp > 0 else 1)
    )
    if ranks % (source.per_node or 1):
        return None, f"not known: the batch sizes make {ranks}, of nodes with {source.per_node}"
    return ranks, "from the three batch sizes"


def _may_read_itself(source: Source) -> bool:
    """Whether DeepSpeed reads the file: a script may do so as well, and hand over what it read."""
    is_read = source.consumer is Consumer.DEEPSPEED and not source.reader
    return is_read and source.syntax != "yaml" and not source.at


def _of_the_file(source: Source) -> Iterator[Violation]:
    """Violations of the file itself, and of its launch line."""
    yield from source.refused
    reads_itself = _may_read_itself(source)
    if source.syntax != "yaml" and not reads_itself and source.text.startswith(BYTE_ORDER_MARK):
        yield violation_of("file.byte_order_mark", path=source.path, consumer=source.consumer)
    names = duplicates(source.text) if source.syntax == "json" else source.twice
    if names:
        # DeepSpeed refuses it in a file that it reads itself (runtime/config.py: DeepSpeedConfig);
        # for Trainer and accelerate it is accelerate that reads, with a plain json.load. Of YAML,
        # PyYAML takes the last one, and OmegaConf refuses the file.
        is_refused = reads_itself or source.refuses_twice
        who = "DeepSpeed" if reads_itself else source.reader or "OmegaConf"
        yield violation_of(
            _KEY_TWICE,
            consequence="raised" if is_refused else "ignored",
            names=named(names),
            then=f"{who} refuses the file" if is_refused else "the last one counts",
        )
    if source.launched is not None:
        yield violation_of("file.not_launched", launched=source.launched, path=source.path)
