"""Legality: what a rule is, whatever the engine, and what it says of what it refuses."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, reduce
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from autotune.base.errors import NothingFeasibleError
from autotune.base.nested import Unknown, dotted
from autotune.base.secrecy import HIDDEN, holds_secret
from autotune.base.terms import COMPARE, literal, tests_of
from autotune.base.text import named

if TYPE_CHECKING:  # `check` judges one setup, and must not wait for NumPy
    import numpy as np
    from numpy.typing import NDArray

S = TypeVar("S")
"""Setup that an engine's rules judge: its own value of what would really run."""

FactOf = Callable[[str], Callable[[S], Any]]
"""Name of a fact -> what reads it of a setup."""

Consequence = Literal["raised", "may_raise", "ignored", "differs", "converted"]
"""What the engine does with a clash: it raises, it raises unless something that was not read takes
it, it runs as if the value were not there, it runs something other than was asked, or it takes a
value of another type for the one that is meant."""

Patch = Mapping[str, Any]
"""Changes to a configuration, nested like it; None takes a key away."""

Moves = Mapping[tuple[str, ...], tuple[str, ...]]
"""Paths of keys that go -> where they come again, with their values."""

_NO_MOVES: Moves = {}
_MOST_SETTINGS = 3
"""Settings of the nearest candidate that an error shows."""
_WORD = re.compile(r"[a-z_][a-z0-9_.]*[a-z0-9_]")

Level = Literal["error", "warning", "note"]
"""How much a violation weighs: `error` would not run, `warning` runs as nobody asked for, `note`
changes nothing that is trained."""


class UnknownFactError(Exception):
    """A rule asked for what is not known of a setup; it has nothing to say then."""


def holds(when: str, value_of: Callable[[str], Any]) -> bool:
    """Whether a condition (`condition_of`) holds of values of which some may be unknown.

    Raises:
        UnknownFactError: `value_of` does, and what is known does not decide.
    """
    return condition_of(when, _by_name)(value_of)


def _by_name(name: str) -> Callable[[Callable[[str], Any]], Any]:
    """Reads a value by its name; a list of one counts as that one."""

    def read(value_of: Callable[[str], Any]) -> Any:
        value = value_of(name)
        return value[0] if isinstance(value, list) and len(value) == 1 else value

    return read


@cache
def condition_of(when: str, fact_of: FactOf[S]) -> Callable[[S], bool]:
    """A condition (`autotune.base.terms`) as a function of a setup.

    A name alone asks whether it is on, `a=x` and `a!=x` compare it with a word, and `a~b` with
    another fact. The other signs compare numbers: products (`a*b`) of facts and numbers.
    """
    terms = [_term(term, fact_of) for term in when.split()] or [lambda _: True]
    # A lattice asks many: `all` takes longer.
    return reduce(_both, reversed(terms))


def _both(rest: Callable[[S], bool], term: Callable[[S], bool]) -> Callable[[S], bool]:
    return lambda setup: term(setup) and rest(setup)


def _term(term: str, fact_of: FactOf[S]) -> Callable[[S], bool]:
    first, *others = (_test(*test, fact_of) for test in tests_of(term))
    is_wanted = not term.startswith("!")
    if not others:
        return first if is_wanted else lambda setup: not first(setup)

    def holds_of(setup: S) -> bool:
        unknown = None
        for test in (first, *others):
            try:
                if test(setup):
                    return is_wanted
            except UnknownFactError as error:
                unknown = error
        if unknown is not None:
            raise unknown
        return not is_wanted

    return holds_of


def _test(name: str, sign: str, word: str, fact_of: FactOf[S]) -> Callable[[S], bool]:
    if sign in ("", "=", "!=", "~"):
        fact, words = fact_of(name), (word, literal(word))
        like = fact_of(word) if sign == "~" else fact
        asks: Mapping[str, Callable[[S], bool]] = {
            "": lambda setup: bool(value := fact(setup)) and value != "none",
            "=": lambda setup: fact(setup) in words,
            "!=": lambda setup: bool(value := fact(setup)) and value not in ("none", *words),
            "~": lambda setup: bool(fact(setup) == like(setup)),
        }
        return asks[sign]
    one, other, compare = _product(name, fact_of), _product(word, fact_of), COMPARE[sign]

    def compares(setup: S) -> bool:
        number, limit = one(setup), other(setup)
        if number is None or limit is None or (sign == "%" and not limit):
            return False  # nothing is a multiple of 0
        return bool(compare(number, limit))

    return compares


def _product(text: str, fact_of: FactOf[S]) -> Callable[[S], Any]:
    """A product of numbers; None where one of them is none."""
    first, *others = (_factor(one, fact_of) for one in text.split("*"))
    if not others:
        return first

    def product(setup: S) -> Any:
        factors = [factor(setup) for factor in (first, *others)]
        return None if None in factors else math.prod(factors)

    return product


def _factor(text: str, fact_of: FactOf[S]) -> Callable[[S], Any]:
    if type(number := literal(text)) in (int, float):
        return lambda _: number
    fact = fact_of(text)
    return lambda setup: value if type(value := fact(setup)) in (int, float) else None


class Facts(dict[str, Any]):
    """A section of a configuration as rules ask it, some of its values perhaps `Unknown`.

    It holds these as any other value. To ask for one by its name raises `UnknownFactError`, so no
    rule takes it for a default; who goes through the items looks at their type.
    """

    def __init__(self, content: Mapping[str, Any], path: tuple[str, ...] = ()) -> None:
        super().__init__(content)
        self._path = path

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, Unknown):
            raise UnknownFactError(".".join(map(str, (*self._path, key))))
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, as `dict.get` gives it."""
        value = super().get(key, default)
        return self[key] if isinstance(value, Unknown) else value


def facts_of(
    content: Mapping[str, Any],
    unknown: Collection[tuple[str, ...]] = (),
    why: str = "",
    path: tuple[str, ...] = (),
) -> Facts:
    """A configuration for rules, each of its sections too.

    Args:
        content: It, with values that may be `Unknown`.
        unknown: Paths of further values that are.
        why: Why these are.
        path: Where it stands in the whole.
    """
    facts = Facts(content, path)
    for name, value in content.items():
        here = (*path, name)
        if here in unknown:
            facts[name] = Unknown(why, value)
        elif isinstance(value, Mapping):
            facts[name] = facts_of(value, unknown, why, here)
    return facts


@dataclass(frozen=True, kw_only=True)
class NotJudged:
    """Something that decides whether a setup runs, and that could not be read."""

    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.what} ({self.why})"

    def to_dict(self) -> dict[str, str]:
        return {"what": self.what, "why": self.why}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One way out of several, where only the user can say which."""

    changes: Patch
    moves: Moves = field(default_factory=dict)
    """As in `Objection`."""
    words: str = ""
    """Fix in words, where the changes do not tell."""

    def __str__(self) -> str:
        return self.words or in_words(self.changes, self.moves)


@dataclass(frozen=True, kw_only=True)
class Objection:
    """Which values of a setup clash, and the cheapest way out."""

    message: str
    """Which values clash, with the arithmetic."""
    at: tuple[str, ...] = ()
    """Keys that clash, dotted; empty: those of `changes`, or those that the message names."""
    choices: tuple[Choice, ...] = ()
    """Further ways out; each makes the rule silent."""
    is_note: bool = False
    """Whether it is worth no more than a note, whatever the engine does with it."""
    changes: Patch = field(default_factory=dict)
    """Laid over the configuration it makes the rule silent. Empty where somebody has to choose, or
    where what must change is not in the configuration (the layout, the job)."""
    moves: Moves = field(default_factory=dict)
    """Which of the changes only bring a key to another place, with its value."""


_OF_OBJECTION = tuple(one.name for one in fields(Objection))


@dataclass(frozen=True, kw_only=True)
class Finding(Objection):
    """Objection of a rule to a setup."""

    words: str = ""
    """The changes in words, where their list does not tell."""
    advice: str = ""
    """Without `changes`, what to choose; beside them, another way, from `or` on."""
    consequence: Consequence | None = None
    """Where the clashes of a rule differ in theirs: this one's."""

    @property
    def fix(self) -> str:
        """The cheapest legal change, in words."""
        return ", ".join(
            filter(None, (self.words or in_words(self.changes, self.moves), self.advice))
        )


Answer = Finding | Sequence[Finding] | None
"""Result of a check of a setup: nothing, or a finding for every fact."""


@dataclass(frozen=True, kw_only=True)
class Violation(Objection):
    """Why a setup is refused."""

    rule: str
    fix: str
    """The cheapest change that makes it legal."""
    consequence: Consequence = "raised"

    @property
    def level(self) -> Level:
        return "note" if self.is_note else level_of(self.consequence)


def level_of(consequence: Consequence) -> Level:
    """How much a clash weighs of which the engine makes that."""
    if consequence == "converted":
        return "note"
    return "error" if consequence == "raised" else "warning"


@dataclass(frozen=True, kw_only=True)
class Rule(Generic[S]):
    """A named legality check."""

    name: str
    """`subject.what`, such as `offload.param_needs_stage_3`."""
    check: Callable[[S], Answer]
    """Returns a finding for every fact that clashes, None or nothing for a legal setup."""
    source: str
    """Where the engine says so: a file, an issue, a measurement."""
    says: str = ""
    """Its subject."""
    consequence: Consequence = "raised"
    """What the engine does with a clash, where a finding does not tell."""
    reads: tuple[str, ...] = ()
    """Columns that `holds` looks at."""
    holds: "Callable[[S], NDArray[np.bool_]] | None" = None
    """The same for many setups at once, a value each; None: the engine judges them one by one."""

    def findings(self, setup: S, unknown_facts: set[str] | None = None) -> Sequence[Finding]:
        """Objections of the rule to a setup; none where it asks for what is not known.

        Args:
            setup: What to judge.
            unknown_facts: Takes the name of the fact that was asked for and is not known.
        """
        try:
            answer = self.check(setup)
        except UnknownFactError as error:
            if unknown_facts is not None:
                unknown_facts.add(str(error))
            return ()
        if not answer:
            return ()
        return (answer,) if isinstance(answer, Finding) else answer

    def violations(self, setup: S, unknown_facts: set[str] | None = None) -> list[Violation]:
        """The same under the rule's name."""
        found = self.findings(setup, unknown_facts)
        return [self._named(finding) for finding in found] if found else []

    def _named(self, finding: Finding) -> Violation:
        consequence = finding.consequence or self.consequence
        same = {name: getattr(finding, name) for name in _OF_OBJECTION}
        return Violation(rule=self.name, fix=finding.fix, consequence=consequence, **same)


def rule(
    source: str, *, consequence: Consequence = "raised"
) -> Callable[[Callable[[S], Answer]], Rule[S]]:
    """Makes a rule of the check below it: `_hpz_with_tp` in zeropp.py is `zeropp.hpz_with_tp`."""

    def of(check: Callable[[S], Answer]) -> Rule[S]:
        name = f"{check.__module__.rpartition('.')[2]}.{check.__name__.lstrip('_')}"
        says = " ".join((check.__doc__ or "").split())
        return Rule(name=name, check=check, source=source, says=says, consequence=consequence)

    return of


def rules_of(*modules: ModuleType) -> tuple[Rule[Any], ...]:
    """The rules that some modules define, in the order of their definitions."""
    return tuple(
        value for module in modules for value in vars(module).values() if isinstance(value, Rule)
    )


def judge_by(
    rules: Iterable[Rule[S]], setup: S, unknown_facts: set[str] | None = None
) -> list[Violation]:
    """Objections of some rules to a setup, in their order; empty: they allow it.

    `unknown_facts` takes the facts that they asked for in vain.
    """
    return [found for rule in rules for found in rule.violations(setup, unknown_facts)]


def nothing_legal(
    refused: str, counts: Counter[str], nearest: Mapping[str, str], found: Sequence[Violation]
) -> NothingFeasibleError:
    """The error where the rules refuse every candidate; its hint names the nearest change.

    Args:
        refused: The candidates, in words that end before the names of rules.
        counts: Rule -> candidates that it refuses.
        nearest: The candidate that breaks the fewest rules: knob -> value in words. Three are
            shown, those that the clashes speak of first.
        found: What it breaks.
    """
    most = ", ".join(f"{rule} ({count})" for rule, count in counts.most_common(3) if count)
    clashes = "; ".join(violation.message for violation in found)
    fixes = "; ".join(violation.fix for violation in found)
    words = set(_WORD.findall(f"{clashes} {fixes}"))
    shown = sorted(nearest, key=lambda name: name not in words)  # stable: else in their order
    settings = named([f"{name}={nearest[name]}" for name in shown], most=_MOST_SETTINGS)
    return NothingFeasibleError(
        f"{refused} {most}", f"the nearest is [{settings}]: {clashes}. {fixes}"
    )


def in_words(changes: Patch, moves: Moves = _NO_MOVES) -> str:
    """Changes as an instruction: `set a.b to 1 and remove c`, or `rename c to d`.

    Args:
        changes: What is laid over a configuration.
        moves: Which of them only bring a key to another place, with its value.
    """
    return named(_in_words(changes, moves, ()), " and ")


def _in_words(changes: Patch, moves: Moves, at: tuple[str, ...]) -> Iterator[str]:
    for name, value in changes.items():
        path = (*at, name)
        if path in moves.values():
            continue
        if (to := moves.get(path)) is not None:
            verb = "rename" if to[:-1] == at else "move"
            yield f"{verb} {dotted(path)} to {dotted(to)}"
        elif isinstance(value, Mapping):
            yield from _in_words(value, moves, path)
        elif value is None:
            yield f"remove {dotted(path)}"
        else:
            shown = HIDDEN if holds_secret(name, value) else value
            text = shown if isinstance(shown, str) else json.dumps(shown, default=str)
            yield f"set {dotted(path)} to {text}"
