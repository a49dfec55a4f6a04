"""The fixes that `--fix` makes on its own, and those that the user chooses.

The rules say what would help; here it is decided who may do it. On its own a fix spells or types a
value as it was meant, moves a key with its value, adds a key, or lets gradient accumulation give
way. Whatever takes a value away, or changes what is trained, is the user's to choose.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.base.errors import JobError
from autotune.base.nested import leaves, merge, value_at
from autotune.check.changes import changes_at, same_data
from autotune.engines.deepspeed.rules.base import BATCH_KEYS, changed
from autotune.engines.deepspeed.rules.keys import DEPRECATED, SECTIONS, SPELLINGS
from autotune.space.rule import Moves, Patch, Violation, in_words

KeyPath = tuple[str, ...]
Look = Callable[[Mapping[str, Any]], Sequence[Violation]]

_MICRO, _ACCUM, _TOTAL = BATCH_KEYS

_MOST_STEPS = 100
"""More than there are rules: a fix that calls for another ends somewhere."""

_TRAINED: tuple[KeyPath, ...] = (
    *((name,) for name in ("train_batch_size", _MICRO, "optimizer", "scheduler")),
    *((name,) for name in ("gradient_clipping", "amp", "fp16", "bf16", "bfloat16", "data_types")),
    *((name,) for name in ("torch_autocast", "sequence_parallel_size", "tensor_parallel")),
    *((name,) for name in ("expert_parallel", "prescale_gradients", "data_efficiency")),
    *((name,) for name in ("gradient_predivide_factor", "gradient_allreduce_op")),
    *((name,) for name in ("curriculum_learning", "compression_training", "sparse_gradients")),
    *(("zero_optimization", name) for name in ("stage", "zenflow")),
)
"""Keys and sections that decide what is trained; one that is added there changes it, unless it
says what holds without it."""

_HEIRS = frozenset(
    {
        ("max_grad_norm", "gradient_clipping"),
        ("cpu_offload", "device"),
        ("cpu_offload_param", "device"),
    }
)
"""Last names of a key and of the one that says the same elsewhere, where they are not alike."""

_AS_A_DEVICE = {True: "cpu", False: "none"}
"""`cpu_offload` in the words of the section that took its place."""

_MISSING = object()


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way out of what a rule found, under a number that `--choose RULE=N` takes."""

    number: int
    words: str
    changes: Patch


@dataclass(frozen=True, kw_only=True)
class Question:
    """An error that only the user can decide how to mend."""

    violation: Violation
    options: tuple[Option, ...]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer of the user's."""

    rule: str
    number: int

    def __str__(self) -> str:
        return f"{self.rule}={self.number}"


@dataclass(frozen=True, kw_only=True)
class Mended:
    """A configuration as far as it could be mended."""

    config: Mapping[str, Any]
    left: tuple[Violation, ...]
    """Violations that are left."""
    questions: tuple[Question, ...]
    """Violations of `left` that have options."""
    seen: tuple[Violation, ...]
    """All that was wrong at any time."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Further conditions that a fix must meet."""

    knows_world: bool
    """Whether somebody said the world: one that is guessed from the batch sizes proves none."""
    words: Callable[[Mapping[str, Any], Patch], str]
    """Changes of a configuration as the file's reader would write them; empty where they cannot be
    written into the file."""


def parse_chosen(text: str) -> Reply:
    """An answer as it stands on the command line.

    Raises:
        JobError: It is not `RULE=N`.
    """
    rule, _, number = text.rpartition("=")
    if not rule or not number.isdecimal() or not number.isascii():
        raise JobError(
            f"--choose {text} is not RULE=N", "such as --choose batch.product=1; check lists them"
        )
    return Reply(rule=rule, number=int(number))


def mend(
    config: Mapping[str, Any], look: Look, terms: Terms, chosen: Sequence[Reply] = ()
) -> Mended:
    """Mend what needs nobody, and then what was chosen, until nothing changes any more.

    Raises:
        JobError: What was chosen is not open.
    """
    seen: dict[tuple[str, str], Violation] = {}
    numbers: dict[str, dict[str, int]] = {}

    def settled(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[Question, ...]]:
        config = _settled(config, look, terms, seen)
        return config, tuple(_questions(config, look(config), numbers, terms))

    config, questions = settled(config)
    waiting = list(chosen)
    while waiting:
        answer, option = _next(waiting, questions, numbers)
        waiting.remove(answer)
        config, questions = settled(_after(config, option.changes))
    return Mended(
        config=config, left=tuple(look(config)), questions=questions, seen=tuple(seen.values())
    )


def _settled(
    config: Mapping[str, Any], look: Look, terms: Terms, seen: dict[tuple[str, str], Violation]
) -> Mapping[str, Any]:
    """A configuration after everything that needs nobody; as it was where that goes in circles."""
    before, been = config, {repr(config)}
    for _ in range(_MOST_STEPS):
        violations = look(config)
        for one in violations:
            seen.setdefault((one.rule, one.message), one)
        after = _step(config, violations, terms)
        if after is None:
            return config
        config = after
        if repr(config) in been:
            break
        been.add(repr(config))
    return before


def _step(
    config: Mapping[str, Any], violations: Sequence[Violation], terms: Terms
) -> Mapping[str, Any] | None:
    """The configuration after the next fixes that need nobody; None where there is none."""
    effects = [_Effects(config, one.changes) for one in violations]
    effects = [one for one in effects if one.pieces and terms.words(config, one.changes)]
    sure = [one for one in effects if one.is_free(sure=True)]
    after = config
    for one in _compatible(sure):
        after = _after(after, one.changes)
    if after is not config:
        return after
    others = (one for one in effects if one not in sure)
    free = (o for o in others if o.is_free(sure=False, knows_world=terms.knows_world))
    step = next(free, None)
    return None if step is None else _after(config, step.changes)


def _compatible(effects: Sequence["_Effects"]) -> Iterator["_Effects"]:
    """Changes that can be laid over a configuration at once, each at places of its own."""
    wanted: dict[KeyPath, set[str]] = {}
    for one in effects:
        for path, _, new in one.pieces:
            wanted.setdefault(path, set()).add(repr(new))
    taken: set[KeyPath] = set()
    above: set[KeyPath] = set()
    for one in effects:
        paths = [path for path, _, _ in one.pieces]
        over = {path[:depth] for path in paths for depth in range(1, len(path))}
        # Two values for one place: which of them was meant, somebody has to say.
        is_agreed = all(len(wanted[path]) == 1 for path in paths)
        if is_agreed and not taken & {*paths, *over} and not above & set(paths):
            taken |= set(paths)
            above |= over
            yield one


def _acts(config: Mapping[str, Any], changes: Patch) -> bool:
    """Whether changes change anything; to Python alone, 16.0 is 16 and 1 is True."""
    return any(True for _ in _pieces(config, changes))


def _questions(
    config: Mapping[str, Any],
    violations: Sequence[Violation],
    numbers: dict[str, dict[str, int]],
    terms: Terms,
) -> Iterator[Question]:
    """The choices that are left, each way out under the number that it keeps."""
    for violation in violations:
        told = {repr(choice.changes): choice.words for choice in violation.choices}
        ways = [violation.changes, *(choice.changes for choice in violation.choices)]
        known = numbers.setdefault(violation.rule, {})
        options: dict[str, Option] = {}
        for changes in ways:
            name = repr(changes)
            if name in options or not _acts(config, changes):
                continue
            if written := terms.words(config, changes):
                number = known.setdefault(name, len(known) + 1)
                options[name] = Option(
                    number=number, words=told.get(name) or written, changes=changes
                )
        if options:
            yield Question(violation=violation, options=tuple(options.values()))


def _next(
    waiting: Sequence[Reply],
    questions: Sequence[Question],
    numbers: Mapping[str, Mapping[str, int]],
) -> tuple[Reply, Option]:
    """The first answer that fits what is open now."""
    opened = {
        Reply(rule=question.violation.rule, number=option.number): option
        for question in questions
        for option in question.options
    }
    for answer in waiting:
        if answer in opened:
            return answer, opened[answer]
    answer = waiting[0]
    if len(numbers.get(answer.rule, ())) >= answer.number > 0:
        raise JobError(
            f"--choose {answer} is not open any more: another choice settled it", "leave it out"
        )
    said = ", ".join(map(str, opened)) or "nothing"
    raise JobError(f"--choose {answer} is not open", f"to choose from: {said}")


@dataclass(frozen=True, kw_only=True)
class _Move:
    """A key or a section that goes, and where its values come again."""

    old: KeyPath
    to: Mapping[KeyPath, KeyPath]
    """Each value's place below `old` -> its new place in the configuration."""


def moved_in(config: Mapping[str, Any], changes: Patch) -> Moves:
    """The keys and sections that changes bring to another place just as they are."""
    found: dict[KeyPath, KeyPath] = {}
    for move in _Effects(config, changes).moves:
        places = {to[: len(to) - len(below)] for below, to in move.to.items()}
        place = places.pop()
        is_whole = not places and all(place + below == to for below, to in move.to.items())
        if is_whole and same_data(value_at(config, move.old), value_at(changes, place)):
            found[move.old] = place
    return found


def reworded(config: Mapping[str, Any], changes: Patch, fix: str) -> str:
    """A fix in words that tell what moves, instead of what goes and what comes.

    Args:
        config: What it mends.
        changes: What it does.
        fix: As the rule tells it, which does not compare the two.
    """
    told = in_words(changes)
    if not changes or not fix.startswith(told):
        return fix
    return in_words(changes, moved_in(config, changes)) + fix.removeprefix(told)


class _Effects:
    """What the changes of a violation do to a configuration."""

    def __init__(self, config: Mapping[str, Any], changes: Patch) -> None:
        self.config, self.changes = config, changes
        self.pieces = list(_pieces(config, changes))
        gone = [(path, old) for path, old, new in self.pieces if new is _MISSING]
        self.added = {
            path: new
            for path, old, new in self.pieces
            if new is not _MISSING and (old is _MISSING or old is None)
        }
        self.replaced = [
            (path, old, new)
            for path, old, new in self.pieces
            if new is not _MISSING and path not in self.added
        ]
        self.moves = list(_moves(gone, self.added))
        moved = {move.old for move in self.moves}
        self.lost = [path for path, _ in gone if path not in moved]
        self.arrived = {path for move in self.moves for path in move.to.values()}
        self.came_along = {to[0] for to in self.arrived} & _NEW

    def is_free(self, *, sure: bool, knows_world: bool = False) -> bool:
        """Whether all of them need nobody; `sure`: as moves, and as values that were meant so."""
        return (
            not self.lost
            and all(
                is_same(old, new) or (not sure and self._gives_way(path, knows_world))
                for path, old, new in self.replaced
            )
            and all(
                path in self.arrived
                or path[0] in self.came_along
                or (not sure and self._may_add(path, value, knows_world))
                for path, value in self.added.items()
            )
        )

    def _gives_way(self, path: KeyPath, knows_world: bool) -> bool:
        """Whether only the accumulation changes, and the global batch is stated and stays."""
        total = self.config.get(_TOTAL)
        is_stated = type(total) is int and self.changes.get(_TOTAL, total) == total
        return path == (_ACCUM,) and is_stated and knows_world and _MICRO not in self.changes

    def _may_add(self, path: KeyPath, value: Any, knows_world: bool) -> bool:
        if path == (_ACCUM,):
            return self._gives_way(path, knows_world)
        if path == ("zero_optimization", "stage"):
            return bool(value == 0)  # as without it
        if path[-1] == "enabled" and value is False:
            return True  # as without it
        return not any(path[: len(key)] == key for key in _TRAINED)


_NEW = frozenset({"data_efficiency"})
"""Sections whose own switches come along with what moves there."""


def is_same(old: Any, new: Any) -> bool:
    """Whether a value is another one, but for its type and its spelling."""
    if same_data(old, new):
        return True
    if isinstance(new, list):
        olds = old if isinstance(old, list) else [old]
        return len(olds) == len(new) and all(map(is_same, olds, new))
    if isinstance(new, Mapping):
        # A section for one value holds it and nothing besides.
        return (
            len(new) == 1
            and not isinstance(old, Mapping | list)
            and all(is_same(old, value) for value in new.values())
        )
    if any(isinstance(one, Mapping | list) or one is None for one in (old, new)):
        return False
    if isinstance(old, str) and isinstance(new, bool | str):
        return old.strip().lower() == str(new).lower()
    number = _number(old)
    return number is not None and number == _number(new)


def _number(value: Any) -> int | float | None:
    """The kind that a value counts as; a whole number of any length stays one."""
    if isinstance(value, bool | int):
        return int(value)
    try:
        return value if isinstance(value, float) else int(value)
    except (ValueError, TypeError):
        pass
    try:
        number = float(value)
    except (ValueError, TypeError):
        return None
    return number if math.isfinite(number) else None


def _pieces(
    config: Mapping[str, Any], changes: Patch, at: KeyPath = ()
) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Effects of changes: place, old value and new value, `_MISSING` for none."""
    for name, new in changes.items():
        old, path = config.get(name, _MISSING), (*at, name)
        if new is None:
            if old is not _MISSING:
                yield path, old, _MISSING
        elif isinstance(new, Mapping):
            if isinstance(old, Mapping):
                yield from _pieces(old, new, path)
            elif old is _MISSING or old is None:
                yield from ((where, old, value) for where, value in leaves(new, path))
            else:
                yield path, old, changed({}, new)
        elif old is _MISSING or repr(old) != repr(new):
            yield path, old, new


def _moves(gone: Sequence[tuple[KeyPath, Any]], added: Mapping[KeyPath, Any]) -> Iterator[_Move]:
    free = dict(added)
    for old, value in gone:
        if _is_read(old) and (old[-1], "gradient_clipping") not in _HEIRS:
            continue  # where it stands it says something, and elsewhere something else
        to: dict[KeyPath, KeyPath] = {}
        for below, leaf in leaves(value):
            if leaf is None:
                continue  # comes along, see `_after`
            place = next(
                (new for new, there in free.items() if _says(old + below, leaf, new, there)), None
            )
            if place is None:
                break
            to[below] = place
            del free[place]
        else:
            if to:
                yield _Move(old=old, to=to)
                continue
        free |= {place: added[place] for place in to.values()}


def _is_read(path: KeyPath) -> bool:
    """Whether some release of DeepSpeed reads a key where it stands, under its present name."""
    section = SECTIONS.get(".".join(path[:-1]))
    if section is None:
        return len(path) > 1 and _is_read(path[:-1])
    key = section.keys.get(path[-1])
    is_old = path[-1] in ("bfloat16", *DEPRECATED, *SPELLINGS)
    return key is not None and not key.removed_in and not is_old


def _says(old: KeyPath, value: Any, new: KeyPath, there: Any) -> bool:
    """Whether a value that is added says, at its place, what one that goes said."""
    if (old[-1], new[-1]) in _HEIRS:
        is_device = new[-1] == "device"
        return there == _AS_A_DEVICE.get(_switch(value)) if is_device else is_same(value, there)
    guarded = [next((k for k in _TRAINED if path[: len(k)] == k), None) for path in (old, new)]
    is_renamed = "bfloat16" in (old[0], new[0]) or guarded[0] == ("curriculum_learning",)
    if None not in guarded and guarded[0] != guarded[1] and not is_renamed:
        return False  # from one precision to another, say
    return is_same(value, there)


def _switch(value: Any) -> Any:
    return next((truth for truth in (True, False) if is_same(value, truth)), None)


def _after(config: Mapping[str, Any], changes: Patch) -> dict[str, Any]:
    """A configuration after changes; what is null in a section that moves goes along."""
    after = changed(config, changes)
    for move in _Effects(config, changes).moves:
        nulls = [below for below, leaf in leaves(value_at(config, move.old)) if leaf is None]
        tops = {to[: len(to) - len(b)] for b, to in move.to.items() if to[len(to) - len(b) :] == b}
        for below in nulls if len(tops) == 1 else ():
            after = merge(changes_at([((*next(iter(tops)), *below), None)]), after)
    return after
