"""The check: the rules of the lattice on anybody's configuration, and the smallest fix."""

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.base.errors import ExitCode
from autotune.base.nested import merge
from autotune.base.secrecy import masked, masked_text
from autotune.check import huggingface
from autotune.check.consumers import Consumer
from autotune.check.edit import duplicates, edited
from autotune.check.source import Source
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.ds_config_text import BYTE_ORDER_MARK
from autotune.engines.deepspeed.rules import judge
from autotune.engines.deepspeed.rules.base import BATCH_KEYS, Setup, changed
from autotune.engines.deepspeed.rules.parallel import autotp_size
from autotune.engines.deepspeed.rules.releases import NEWEST_READ, release_of
from autotune.engines.deepspeed.rules.sections import unreadable
from autotune.space.rule import Patch, UnknownFactError, Violation, listed

_MOST_FIXES = 100
"""More than there are rules: a fix that calls for another ends somewhere."""
_KEY_TWICE = "file.key_twice"


@dataclass(frozen=True, kw_only=True)
class Found:
    """One thing that is wrong with a configuration."""

    violation: Violation
    after_fix: bool
    """Seen only once others were mended."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        told = self.violation
        return {
            "rule": told.rule,
            "level": told.level,
            "message": told.message,
            "fix": told.fix,
            "changes": masked(told.changes),
            "choices": [
                {"words": str(choice), "changes": masked(choice.changes)}
                for choice in told.choices
            ],
            "consequence": told.consequence,
            "after_fix": self.after_fix,
        }


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What was found, and the file after every fix that needs nobody to choose."""

    source: Source
    environment: Environment
    world: int | None
    world_because: str
    found: tuple[Found, ...]
    left: tuple[Violation, ...]
    """What is still wrong after the fix."""
    unknown: tuple[str, ...]
    """Keys whose value is known at run time only; rules that need one had nothing to say."""
    fixed_text: str | None
    """The file after the fix; None where nothing changes, or the file cannot be edited."""

    def is_written(self, *, fixed: bool) -> bool:
        """Whether `--fix`, where it was said, changed the file."""
        return fixed and self.fixed_text is not None and self.source.can_write

    @property
    def version_note(self) -> str:
        """What the rules cannot know of the release; empty where they were read off it."""
        version = self.environment.deepspeed_version
        if release_of(version) <= release_of(NEWEST_READ):
            return ""
        return (
            f"DeepSpeed {version} is newer than {NEWEST_READ}, the last that the rules were read "
            "off: what it changed is not known here"
        )

    @property
    def diff(self) -> str:
        """The fix as a unified diff, secrets masked; empty where there is none."""
        if self.fixed_text is None:
            return ""
        name = str(self.source.path)
        lines = difflib.unified_diff(
            masked_text(self.source.text).splitlines(keepends=True),
            masked_text(self.fixed_text).splitlines(keepends=True),
            fromfile=name,
            tofile=name,
        )
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )

    def exit_code(self, *, fixed: bool) -> ExitCode:
        """2 where the configuration, or what `--fix` made of it, would not run."""
        written = self.is_written(fixed=fixed)
        violations = self.left if written else [found.violation for found in self.found]
        fails = any(violation.consequence == "raised" for violation in violations)
        return ExitCode.INVALID_INPUT if fails else ExitCode.FOUND

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
            "fixed": self.is_written(fixed=fixed),
            "would_run": self.exit_code(fixed=fixed) is ExitCode.FOUND,
            "would_run_after_fix": self.exit_code(fixed=True) is ExitCode.FOUND,
            "diff": self.diff,
        }


@dataclass(frozen=True, kw_only=True)
class _Looked:
    """One look at a configuration."""

    violations: tuple[Violation, ...]
    unknown: frozenset[tuple[str, ...]]
    world: int | None
    world_because: str


class _Partial(Mapping[str, Any]):
    """A configuration that raises where a value is asked for that is not known: a rule is silent.

    What a consumer fills in at run time ("auto") must not be taken for DeepSpeed's default.
    Such a key is in the mapping and not among the items.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        unknown: Collection[tuple[str, ...]],
        path: tuple[str, ...] = (),
    ) -> None:
        self._content, self._unknown, self._path = content, unknown, path

    def __getitem__(self, key: str) -> Any:
        value, here = self._content[key], (*self._path, key)
        if here in self._unknown:
            raise UnknownFactError(".".join(here))
        if isinstance(value, Mapping) and any(p[: len(here)] == here for p in self._unknown):
            return _Partial(value, self._unknown, here)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._content

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._content if (*self._path, key) not in self._unknown)

    def __len__(self) -> int:
        return len(self._content)


@dataclass(frozen=True, kw_only=True)
class _WorldlessSetup(Setup):
    """A setup whose world is not known: what rules read of it raises."""

    def __getattribute__(self, name: str) -> Any:
        if name == "world":
            raise UnknownFactError(name)
        return super().__getattribute__(name)


def check(source: Source, environment: Environment) -> CheckReport:
    """Judge a configuration, and mend it one fix at a time until nothing changes any more."""
    first = _look(source.config, source, environment)
    around = list(_of_the_file(source))
    before = (*first.violations, *around)
    found = [Found(violation=violation, after_fix=False) for violation in before]
    changes, left = _mend(source, environment, first, found)
    can_edit = source.can_edit and all(one.rule != _KEY_TWICE for one in around)
    return CheckReport(
        source=source,
        environment=environment,
        world=first.world,
        world_because=first.world_because,
        found=tuple(found),
        left=(*left, *around) if can_edit else before,
        unknown=tuple(sorted(".".join(path) for path in first.unknown)),
        fixed_text=edited(source.text, _nested(source, changes)) if can_edit and changes else None,
    )


def _mend(
    source: Source, environment: Environment, first: _Looked, found: list[Found]
) -> tuple[Patch, tuple[Violation, ...]]:
    """All changes, and what is left; what a fix brings to light is added to what was found."""
    known = {found_one.violation.rule for found_one in found}
    changes: Patch = {}
    config: Mapping[str, Any] = source.config
    violations = first.violations
    for _ in range(_MOST_FIXES):
        tried = [(one.changes, changed(config, one.changes)) for one in violations if one.changes]
        # As text: to Python, 16.0 is 16 and 1 is True.
        step = next(((fix, after) for fix, after in tried if repr(after) != repr(config)), None)
        if step is None:
            break
        changes, config = merge(changes, step[0]), step[1]
        violations = _look(config, source, environment).violations
        new = [violation for violation in violations if violation.rule not in known]
        found += [Found(violation=violation, after_fix=True) for violation in new]
        known |= {violation.rule for violation in new}
    return changes, violations


def _look(config: Mapping[str, Any], source: Source, environment: Environment) -> _Looked:
    """Judge once, past values that nobody can read."""
    after, unknown = huggingface.filled(config, source)
    mute = {*unknown, *unreadable(after)}
    world, because = _world(after, source, mute)
    setup = _setup(after, source, environment, world, unknown)
    violations = judge(setup)
    if mute - unknown:
        past = judge(_setup(after, source, environment, world, mute))
        known = {violation.rule for violation in violations}
        violations += [violation for violation in past if violation.rule not in known]
    return _Looked(
        violations=(*huggingface.violations(config, source), *violations),
        unknown=frozenset(unknown),
        world=world,
        world_because=because,
    )


def _setup(
    config: Mapping[str, Any],
    source: Source,
    environment: Environment,
    world: int | None,
    unknown: set[tuple[str, ...]],
) -> Setup:
    kind = _WorldlessSetup if world is None else Setup
    return kind(
        world=world or 1,
        ds_config=_Partial(config, unknown) if unknown else config,
        tp=source.layout.tp if source.layout.pp > 1 else autotp_size(config),
        pp=source.layout.pp,
        sp_by_script=source.layout.sp,
        environment=replace(environment, n_devices=source.per_node or 0),
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
    groups = max(1, total // (micro * accum))
    sp = config.get("sequence_parallel_size", 1)
    ranks = (
        groups * source.layout.pp * source.layout.tp * (sp if type(sp) is int and sp > 0 else 1)
    )
    return ranks, "from the three batch sizes"


def _nested(source: Source, changes: Patch) -> Patch:
    for name in reversed(source.at):
        changes = {name: changes}
    return changes


def _of_the_file(source: Source) -> Iterator[Violation]:
    """What is wrong with the file itself, and with what is said of it."""
    yield from source.refused
    reads_itself = source.consumer is Consumer.DEEPSPEED and not source.reader
    if source.can_edit and not reads_itself and source.text.startswith(BYTE_ORDER_MARK):
        yield Violation(
            rule="file.byte_order_mark",
            message=f"{source.path} begins with a byte order mark: DeepSpeed reads past it, "
            f"{source.consumer} does not",
            fix="save it as UTF-8 without the mark",
        )
    if source.can_edit and (names := duplicates(source.text)):
        # DeepSpeed refuses it in a file that it reads itself (runtime/config.py: DeepSpeedConfig);
        # for Trainer and accelerate it is accelerate that reads, with a plain json.load.
        is_refused = reads_itself and not source.at
        then = "DeepSpeed refuses the file" if is_refused else "the last one counts"
        yield Violation(
            rule=_KEY_TWICE,
            message=f"{listed(names, ', ')}: written twice in one section, and {then}",
            fix="keep one of them; no other fix is written before",
            consequence="raised" if is_refused else "ignored",
        )
    if source.launched is not None:
        yield Violation(
            rule="file.not_launched",
            message=f"the launch line names {source.launched}, this is {source.path}: what it "
            "starts reads nothing of this",
            fix=f"check {source.launched}, or name {source.path} in the line",
            consequence="ignored",
        )
