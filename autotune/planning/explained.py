"""One candidate: what is predicted of it, why it stands where it does, and its neighbours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.contract import KnobValue
from autotune.cost import Plans, Prediction
from autotune.cost.errors import Margin
from autotune.planning.choices import PROBABLE, choices_of, is_exotic, reasons_behind
from autotune.planning.outlook import Outlook
from autotune.planning.ranking import legal_rows
from autotune.space.candidate import Candidate, format_value
from autotune.space.knobs import changing_knobs
from autotune.space.rule import Violation


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """The candidate with one knob at another value."""

    knob: str
    value: KnobValue
    along: Mapping[str, KnobValue]
    """Settings without which that knob does nothing."""
    violations: tuple[Violation, ...]
    """Empty: legal."""
    step_time_s: float
    peak_memory_bytes: float
    fit_probability: float
    is_exotic: bool
    changes_training: bool
    """Whether other numbers are trained with that value."""


@dataclass(frozen=True, kw_only=True, eq=False)
class JudgedCandidate:
    """A candidate with what the rules say of it."""

    outlook: Outlook
    candidate: Candidate
    notes: tuple[str, ...]
    """Notes on settings that do not reach the run as they were written."""
    violations: tuple[Violation, ...]
    """Empty: legal."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimated(JudgedCandidate):
    """A candidate with what is predicted of it."""

    prediction: Prediction
    """Prediction of the cost model for the candidate alone."""
    reach: Margin
    """How far measured figures may be from the predicted ones."""

    @property
    def step_time_s(self) -> float:
        """Predicted."""
        return float(self.prediction.step_time_s[0])

    @property
    def peak_memory_bytes(self) -> float:
        """Predicted."""
        return float(self.prediction.peak_memory_bytes[0])

    @property
    def fit_probability(self) -> float:
        """Predicted."""
        return float(self.prediction.fit_probability[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Explained(Estimated):
    """A candidate with its reasons."""

    place: int
    """Its rank among the choices, from 1, as in the plan."""
    n_ranked: int
    """Distinct choices of the lattice, and this one where it is another."""
    first: str
    """The candidate that stands for the choice in the plan, in words; empty: it is this one, or
    the plan does not have it."""
    slower_than_first: float
    """Factor of the step time over that one's."""
    is_in_lattice: bool
    nearest: Sequence[str]
    """Settings that the nearest candidate of the lattice has otherwise; empty: this one is there,
    or rules refuse it."""
    min_fit: float
    behind: Mapping[str, float]
    """Why it comes behind plainer ones -> how many times as fast it has to be to lead them."""
    neighbours: tuple[Neighbour, ...]

    @property
    def cheapest_fit(self) -> Neighbour | None:
        """The fastest legal neighbour that fits, plain ones first; None: none does, or has to."""
        return min(self._fitting(self.min_fit), key=self._plainest, default=None)

    @property
    def nearest_fit(self) -> Neighbour | None:
        """The same; where no plain one surely fits, the plain one that most probably does."""
        return min(self._fitting(PROBABLE), key=self._plainest, default=None)

    @property
    def cheapest_legal(self) -> Neighbour | None:
        """The fastest legal neighbour: one that fits, by what the rules' fixes name.

        A fix names `knob=value`, or of a switch that has to be on the knob alone.

        None: there is none, or the candidate is legal.
        """
        if not self.violations:
            return None
        fixes = " ".join(violation.fix for violation in self.violations)
        words = {word.strip(".,;:()`") for word in fixes.split()}
        knobs = {word.partition("=")[0] for word in words}

        def order(one: Neighbour) -> tuple[object, ...]:
            fits = one.fit_probability >= self.min_fit
            is_named = f"{one.knob}={format_value(one.value)}" in words
            is_named |= one.value is True and one.knob in words
            return not fits, not is_named, one.knob not in knobs, *self._plainest(one)

        return min(self._legal, key=order, default=None)

    def _plainest(self, neighbour: Neighbour) -> tuple[object, ...]:
        return neighbour.changes_training, neighbour.is_exotic, *self.by_use(neighbour)

    def by_use(self, neighbour: Neighbour) -> tuple[bool, bool, float, float]:
        """Sorts neighbours: the fastest that fits and trains the same, the surest, smallest."""
        fits = neighbour.fit_probability >= self.min_fit
        chance = 0.0 if fits else round(neighbour.fit_probability, 2)
        is_hopeless = not fits and not chance
        size = neighbour.peak_memory_bytes if is_hopeless else neighbour.step_time_s
        return not fits, neighbour.changes_training, -chance, size

    @property
    def _legal(self) -> list[Neighbour]:
        return [neighbour for neighbour in self.neighbours if not neighbour.violations]

    def _fitting(self, chance: float) -> list[Neighbour]:
        """Legal neighbours that fit so surely; none where the candidate itself surely fits."""
        least = max(chance, self.fit_probability)
        legal = self._legal if self.fit_probability < self.min_fit else []
        return [n for n in legal if n.fit_probability >= least]


def estimate_candidate(outlook: Outlook, settings: Sequence[str]) -> Estimated:
    """Predict one candidate, legal or not; settings as of `explain_candidate`.

    Raises:
        JobError: A setting is not one.
    """
    candidate, notes = outlook.read(settings)
    prediction, reach = outlook.predict_plans(outlook.plans([candidate]))
    return Estimated(
        outlook=outlook,
        candidate=candidate,
        notes=notes,
        violations=tuple(outlook.engine.judge(candidate)),
        prediction=prediction,
        reach=reach,
    )


def explain_candidate(
    outlook: Outlook, settings: Sequence[str], *, min_fit: float | None = None
) -> Explained:
    """Explain one candidate.

    Its settings are `knob=value` each, as `Outlook.read` takes them; it fits as of `legal_rows`.

    Raises:
        JobError: A setting is not one.
    """
    one = estimate_candidate(outlook, settings)
    candidate, prediction = one.candidate, one.prediction
    legal = legal_rows(outlook, min_fit=min_fit)
    outlook, found, min_fit = legal.outlook, legal.prediction, legal.choices.min_fit
    candidates = outlook.lattice.candidates
    is_in = not one.violations and candidate in candidates
    index = candidates.index(candidate) if is_in else None
    # Outside the lattice it is ranked behind its equals.
    setbacks = outlook.setbacks(candidates)
    if index is None:
        found = _beside(found, prediction)
        setbacks = np.append(setbacks, outlook.setbacks([candidate]))
    choices = choices_of(found, setbacks, min_fit=min_fit, splits=outlook.is_space_named)
    at = len(candidates) if index is None else index
    place = choices.rank(at)
    first = int(choices.firsts[place - 1])
    if first != at:
        inside = [first, *choices.variants(place).tolist()]
        first = next(place for place in inside if place == at or outlook.lattice.is_legal(place))
    first_s = one.step_time_s if first == at else found.step_time_s[first]
    return Explained(
        **{**vars(one), "outlook": outlook},
        place=place,
        n_ranked=len(choices),
        first="" if index is None or first == at else outlook.engine.describe(candidates[first]),
        slower_than_first=float(one.step_time_s / first_s),
        is_in_lattice=index is not None,
        nearest=() if is_in or one.violations else _nearest(outlook, candidate),
        min_fit=min_fit,
        behind=reasons_behind(prediction.plans),
        neighbours=neighbours_of(outlook, outlook.neighbours(candidate)),
    )


def _nearest(outlook: Outlook, candidate: Candidate) -> list[str]:
    """Settings that the nearest candidate of the lattice has otherwise than one outside of it."""
    near = outlook.lattice.nearest(candidate.values)
    knobs = outlook.lattice.context.knobs
    return [
        f"{name}={format_value(near.get(name, knobs[name].default))}"
        for name in knobs
        if near is not None and near.get(name) != candidate.get(name)
    ]


def _beside(found: Prediction, beside: Prediction) -> Prediction:
    """The candidates of a lattice and one more behind them."""
    n, columns = len(found.step_time_s), found.plans.columns()
    for name, one in beside.plans.columns().items():
        if isinstance(columns[name], np.ndarray) or columns[name] != one:
            column = np.broadcast_to(columns[name], n)
            columns[name] = np.append(column, one)
    both = {
        name: np.append(getattr(found, name), getattr(beside, name))
        for name in ("step_time_s", "peak_memory_bytes", "fit_probability", "host_memory_bytes")
    }
    return Prediction(**both, plans=Plans(**columns), constants=found.constants)


def neighbours_of(
    outlook: Outlook, others: Mapping[Candidate, tuple[str, KnobValue]]
) -> tuple[Neighbour, ...]:
    """What is forecast of some candidates, each with the knob and the value that make it."""
    if not others:
        return ()
    found, knobs = outlook.predict(list(others)), outlook.lattice.context.knobs
    exotic = is_exotic(found.plans)
    return tuple(
        Neighbour(
            knob=knob,
            value=value,
            along=knobs[knob].along,
            violations=tuple(outlook.engine.judge(other)),
            step_time_s=float(found.step_time_s[index]),
            peak_memory_bytes=float(found.peak_memory_bytes[index]),
            fit_probability=float(found.fit_probability[index]),
            is_exotic=bool(exotic[index]),
            changes_training=knob in changing_knobs(other, knobs),
        )
        for index, (other, (knob, value)) in enumerate(others.items())
    )


def faster_attention(outlook: Outlook, candidate: Candidate) -> Neighbour | None:
    """A candidate with a fused attention, a legal one first; None: it has one, or none is near."""
    fused = ("flash_attention_2", "flex_attention")
    if candidate.get("attention") in fused:
        return None
    steps = [("attention", kernel) for kernel in fused]
    others = {one: step for one, step in outlook.neighbours(candidate).items() if step in steps}
    found = neighbours_of(outlook, others)
    return min(found, key=lambda one: bool(one.violations), default=None)
