"""The fixes that `--fix` makes on its own, and those that the user chooses.

The rules say what would help; here it is decided who may do it. On its own a fix spells or types a
value as it was meant, moves a key with its value, adds a key, or lets gradient accumulation give
way. Whatever takes a value away, or changes what is trained, is the user's to choose.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from autotune.base.data import table_beside
from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.base.nested import leaves, merge, nested, path_of, value_at
from autotune.check.changes import same_data
from autotune.engines.deepspeed.rules.base import BATCH_KEYS, changed
from autotune.space.rule import Choice, Moves, Patch, Violation

KeyPath = tuple[str, ...]
Look = Callable[[Mapping[str, Any]], Sequence[Violation]]

_MICRO, _ACCUM, _TOTAL = BATCH_KEYS

_MOST_STEPS = 100
"""More than there are rules: a fix that calls for another ends somewhere."""

_TERMS = table_beside(__file__, "fix_terms.json")
_TRAINED = tuple(path_of(key) for key in _TERMS["decides_training"])
"""Keys and sections that decide what is trained; one that is added there changes it, unless it
says what holds without it."""
_MOVING = frozenset(_TERMS["moves_keys"])
"""Rules whose changes bring what they take away to another place, as far as they add anything."""

_MISSING = object()


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way out of what a rule found, under a number that `--choose RULE=N` takes."""

    number: int
    words: str
    changes: Patch
    moves: Moves


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
    moves: Moves
    """Keys that came to another place."""
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
    words: Callable[[Mapping[str, Any], Patch, Moves], str]
    """Changes of a configuration as the file's reader would write them; empty where they cannot be
    written into the file."""


def parse_chosen(text: str) -> Reply:
    """An answer as it stands on the command line.

    Raises:
        JobError: It is not `RULE=N`.
    """
    rule, _, number = text.rpartition("=")
    if not rule or not number.isdecimal() or not number.isascii():
        raise JobError.of("check.choice_is_none", text=text)
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
    moves: dict[KeyPath, KeyPath] = {}
    been = {repr(config)}

    def settled(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[Question, ...]]:
        config = _settled(config, look, terms, seen, moves)
        been.add(repr(config))
        return config, tuple(_questions(config, look, numbers, terms, been))

    config, questions = settled(config)
    waiting = list(chosen)
    while waiting:
        answer, option = _next(waiting, questions, numbers)
        waiting.remove(answer)
        moves |= option.moves
        config, questions = settled(_after(config, option.changes, option.moves))
    return Mended(
        config=config,
        moves=moves,
        left=tuple(look(config)),
        questions=questions,
        seen=tuple(seen.values()),
    )


def _settled(
    config: Mapping[str, Any],
    look: Look,
    terms: Terms,
    seen: dict[tuple[str, str], Violation],
    moves: dict[KeyPath, KeyPath],
) -> Mapping[str, Any]:
    """A configuration after everything that needs nobody; as it was where that goes in circles."""
    before, been = config, {repr(config)}
    for _ in range(_MOST_STEPS):
        violations = look(config)
        for one in violations:
            seen.setdefault((one.rule, one.message), one)
        steps = _steps(config, violations, terms)
        if not steps:
            return config
        for step in steps:
            config = _after(config, step.changes, step.moves)
            moves |= step.moves
        if repr(config) in been:
            break
        been.add(repr(config))
    return before


def _steps(
    config: Mapping[str, Any], violations: Sequence[Violation], terms: Terms
) -> Sequence[Violation]:
    """The next fixes that need nobody; empty: there is none."""
    effects = [_Effects(config, one) for one in violations]
    effects = [
        one
        for one in effects
        if one.pieces and terms.words(config, one.violation.changes, one.violation.moves)
    ]
    sure = [one for one in effects if one.is_free(sure=True)]
    if steps := [one.violation for one in _compatible(sure)]:
        return steps
    others = (one for one in effects if one not in sure)
    free = (o for o in others if o.is_free(sure=False, knows_world=terms.knows_world))
    return [one.violation for one in free][:1]


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


def _questions(
    config: Mapping[str, Any],
    look: Look,
    numbers: dict[str, dict[str, int]],
    terms: Terms,
    been: Set[str],
) -> Iterator[Question]:
    """The choices that are left, each way out under the number that it keeps."""
    for violation in look(config):
        known = numbers.setdefault(violation.rule, {})
        options = []
        for way, words in _ways(config, violation, terms):
            number = known.setdefault(repr(way.changes), len(known) + 1)
            if not _leads_back(config, way, look, terms, been):
                options.append(
                    Option(number=number, words=words, changes=way.changes, moves=way.moves)
                )
        if options:
            yield Question(violation=violation, options=tuple(options))


def _ways(
    config: Mapping[str, Any], violation: Violation, terms: Terms
) -> Sequence[tuple[Choice, str]]:
    of_rule = Choice(changes=violation.changes, moves=violation.moves)
    ways: dict[str, tuple[Choice, str]] = {}
    for way in (of_rule, *violation.choices):
        # Whether it changes anything; to Python alone, 16.0 is 16 and 1 is True.
        acts = any(True for _ in _pieces(config, way.changes))
        if acts and (written := terms.words(config, way.changes, way.moves)):
            first, words = ways.get(repr(way.changes), (way, written))
            ways[repr(way.changes)] = (first, way.words or words)
    return list(ways.values())


def _leads_back(
    config: Mapping[str, Any],
    way: Choice,
    look: Look,
    terms: Terms,
    been: Set[str],
    *,
    looks_on: bool = True,
) -> bool:
    """Whether a way out ends where one has been, as do all ways out of an error that it makes."""
    after = _settled(_after(config, way.changes, way.moves), look, terms, {}, {})
    if repr(after) in been or not looks_on:
        return repr(after) in been
    known = {one.rule for one in look(config)}
    new = [one for one in look(after) if one.level == "error" and one.rule not in known]
    return any(
        all(_leads_back(after, one, look, terms, been, looks_on=False) for one, _ in ways)
        for error in new
        if (ways := _ways(after, error, terms))
    )


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
        raise JobError.of("check.choice_is_settled", answer=answer)
    open_answers = ", ".join(map(str, opened)) or "nothing"
    raise JobError(f"{flag('choose')} {answer} is not open", f"to choose from: {open_answers}")


class _Effects:
    def __init__(self, config: Mapping[str, Any], violation: Violation) -> None:
        self.config, self.violation = config, violation
        self.pieces = list(_pieces(config, violation.changes))
        self.has_lost = any(new is _MISSING for _, _, new in self.pieces)
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
        self.moves = violation.rule in _MOVING and self.has_lost and bool(self.added)

    def is_free(self, *, sure: bool, knows_world: bool = False) -> bool:
        """Whether all of them need nobody; `sure`: as moves, and as values that were meant so."""
        return (
            (self.moves or not self.has_lost)
            and all(
                is_same(old, new) or (not sure and self._gives_way(path, knows_world))
                for path, old, new in self.replaced
            )
            and all(
                self.moves or (not sure and self._may_add(path, value, knows_world))
                for path, value in self.added.items()
            )
        )

    def _gives_way(self, path: KeyPath, knows_world: bool) -> bool:
        """Whether only the accumulation changes, and the global batch is stated and stays."""
        total, changes = self.config.get(_TOTAL), self.violation.changes
        is_stated = type(total) is int and changes.get(_TOTAL, total) == total
        return path == (_ACCUM,) and is_stated and knows_world and _MICRO not in changes

    def _may_add(self, path: KeyPath, value: Any, knows_world: bool) -> bool:
        if path == (_ACCUM,):
            return self._gives_way(path, knows_world)
        if path == ("zero_optimization", "stage"):
            return bool(value == 0)  # as without it
        if path[-1] == "enabled" and value is False:
            return True  # as without it
        return not any(path[: len(key)] == key for key in _TRAINED)


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


def _after(config: Mapping[str, Any], changes: Patch, moves: Moves) -> dict[str, Any]:
    """A configuration after changes; what moves stays as it was written, with its nulls."""
    after = changed(config, changes)
    for old, place in moves.items():
        after = merge(after, nested([(place, value_at(config, old))]))
    return after
