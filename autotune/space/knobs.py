"""An engine's knobs: their canonical form, in which two candidates never mean one run, and words.

A knob that changes nothing in some situation is not a knob there (`acts`), and values that mean
the same run fold into one (`fold`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from autotune.base.errors import JobError
from autotune.base.names import near_names
from autotune.base.plugins import plugin_names
from autotune.base.text import shortened
from autotune.contract import KnobValue
from autotune.space.candidate import Candidate, format_value
from autotune.space.knob import Catalogue, Context, Knob, Knobs, knobs_of

_MOST_NAMES = 3
"""Knobs that an error names in place of one that is none."""


def knob_named(name: str, knobs: Catalogue, *, where: str) -> Knob:
    """Find a knob.

    Raises:
        JobError: There is none of that name; the hint names the nearest.
    """
    knob = knobs.get(name)
    if knob is None:
        asked = name.lower().replace("-", "_")
        near = [known for known, one in knobs.items() if asked in one.names]
        if not near:
            near = [known for known in knobs if known.endswith(f".{name}")]
            near += [known for known in near_names(name, knobs) if known not in near]
        guess = f"did you mean {' or '.join(near[:_MOST_NAMES])}? " if near else ""
        every = (one for one in plugin_names("engine") if knobs_of(one).keys() == knobs.keys())
        of, flags = next(((f" of {one}", f" --engine {one}") for one in every), ("", ""))
        raise JobError.of(
            "space.no_knob", where=where, name=shortened(name), of=of, guess=guess, flags=flags
        )
    return knob


def parse_settings(settings: Iterable[str], knobs: Catalogue) -> dict[str, KnobValue]:
    """Read `--set name=value` flags; a text may hold several, as reports print them.

    Raises:
        JobError: One is not `name=value`, names no knob or no legal value, or is there twice.
    """
    values: dict[str, KnobValue] = {}
    for setting in (one for text in settings for one in _apart(text)):
        where = f"setting {shortened(setting)}"
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not (name and equals and text):
            raise JobError(f"{where}: not name=value", "write it as zero.stage=2")
        value = knob_named(name, knobs, where=where).check(text, where=where)
        if name in values:
            raise JobError(f"{where}: {name} was already set to {values[name]}", "set it once")
        values[name] = value
    return values


def _apart(text: str) -> list[str]:
    words = text.split()
    return words if len(words) > 1 and all("=" in word for word in words) else [text]


def canonical(values: Knobs, context: Context) -> dict[str, KnobValue]:
    """One value for every knob that acts; equal for any two mappings that mean the same run.

    Knobs that are not named get the base configuration's value or the engine's default, those
    that change nothing here are left out, and values that mean the same run become one. The values
    given are legal (see `Knob.check`).

    Raises:
        JobError: A name is not a knob.
    """
    knobs = context.knobs
    for name in values.keys() - knobs.keys():
        knob_named(name, knobs, where="candidate")
    settled, _ = _settled(values, context)
    for name, knob in knobs.items():
        if knob.is_active(settled, context):
            settled[name] = knob.fold(settled[name], settled, context)
        else:
            del settled[name]
    return settled


def choices_of(values: Knobs, context: Context) -> dict[str, KnobValue]:
    """The knobs that somebody has to set: those that are not what they would be untouched.

    A default that is larger than the model stands in a candidate as the model's size: it is no
    choice all the same.
    """
    as_they_are = canonical(values, context)
    _, others = _settled(values, context)
    # What is as nobody's choice would make it leaves all as it is: that is most of them.
    untouched = (
        as_they_are.get(name) if others.get(name) == v else _untouched(name, values, context)
        for name, v in values.items()
    )
    return {name: v for (name, v), it in zip(values.items(), untouched, strict=True) if v != it}


def describe_settings(knobs: Mapping[str, KnobValue], order: Iterable[str]) -> str:
    """`zero.stage=1 micro_batch=4`, in the order of the engine's knobs."""
    return " ".join(f"{name}={format_value(knobs[name])}" for name in order if name in knobs)


def settings_of(candidate: Candidate, context: Context) -> dict[str, KnobValue]:
    """Settings that a user has to make: those off the engine's default, and those always shown."""
    if (found := context.settings.get(candidate.hash)) is None:
        knobs = context.knobs
        always = {name: v for name, v in candidate.values.items() if knobs[name].is_always_shown}
        found = choices_of(candidate.values, context) | always
        context.settings[candidate.hash] = found
    return dict(found)


def describe_candidate(candidate: Candidate, context: Context) -> str:
    """The settings that a user has to make, in words."""
    return describe_settings(settings_of(candidate, context), context.knobs)


def describe_difference(candidate: Candidate, baseline: Candidate, context: Context) -> str:
    """Changes of the baseline that a user would make, without knobs that do not act."""
    ours, baseline_settings = settings_of(candidate, context), settings_of(baseline, context)
    changes = {
        name: value
        for name, value in candidate.values.items()
        if ours.get(name) != baseline_settings.get(name)
    }
    return describe_settings(changes, context.knobs) or "the baseline itself"


def describe_change(candidate: Candidate, baseline: Candidate | None, context: Context) -> str:
    """What a user changes in a baseline; without one, all that a user sets."""
    if baseline is None:
        return describe_candidate(candidate, context)
    return describe_difference(candidate, baseline, context)


def changed_knobs(target: Candidate, baseline: Candidate, context: Context) -> tuple[str, ...]:
    """Knobs to change in a baseline to reach a target."""
    wanted, before = settings_of(target, context), settings_of(baseline, context)
    changes = tuple(name for name in target.values if wanted.get(name) != before.get(name))
    if partway(baseline, target, changes, context) != target:  # what stands at other defaults
        values = baseline.values
        changes = tuple(n for n, v in target.values.items() if values.get(n) != v)
    return changes


def partway(
    baseline: Candidate, target: Candidate, changes: Collection[str], context: Context
) -> Candidate:
    """The baseline with some knobs as in the target, as far as they act there."""
    if not changes:
        return baseline
    chosen = {name: target[name] for name in target.values if name in changes}
    values = canonical({**baseline.values, **chosen}, context)
    return Candidate.of(values, world=target.world, global_batch=target.global_batch)


def _settled(values: Knobs, context: Context) -> tuple[dict[str, KnobValue], dict[str, KnobValue]]:
    """A value for every knob, acting or not; and what each would be if nobody chose it alone."""
    settled: dict[str, KnobValue] = {}
    untouched: dict[str, KnobValue] = {}
    base = context.base
    for name, knob in context.knobs.items():
        untouched[name] = base[name] if name in base else knob.default_for(settled)
        settled[name] = values[name] if name in values else untouched[name]
    return settled, untouched


def _untouched(name: str, values: Knobs, context: Context) -> KnobValue | None:
    """Value of the knob if nobody chose it, the others being as they are."""
    others = {other: value for other, value in values.items() if other != name}
    return canonical(others, context).get(name)


_STEP = 2
"""Factor of one step of a number: twice as much, or half of it."""
_LARGEST_COUNT = 1024
"""Largest number that counts ranks, layers or samples, where powers of two divide what there is;
what is larger counts bytes or elements."""


def steps_of(
    candidate: Candidate, knobs: Catalogue, more: Mapping[str, Sequence[KnobValue]]
) -> Iterator[tuple[str, KnobValue]]:
    """Knobs with values to try beside a candidate's own, in the order of the knobs.

    A knob that does not act there has no steps; `more` has values to try besides them.
    """
    for name, knob in knobs.items():
        for value in (*_steps(knob, candidate.get(name)), *more.get(name, ())):
            yield name, value


def _steps(knob: Knob, current: KnobValue | None) -> Iterator[KnobValue]:
    """Values beside a knob's own; none where it does not act."""
    if current is None:
        return
    is_int = knob.kind == "int"
    wanted: Iterable[KnobValue] = ()  # a share has no step that means the same everywhere
    if knob.choices and is_int:
        wanted = (v for v in knob.choices if abs(int(v) - int(current)) == 1)
    elif knob.choices:
        wanted = (v for v in knob.choices if v != current)
    elif knob.kind == "bool":
        wanted = (not current,)
    elif is_int:
        wanted = _number_steps(int(current))
    for value in wanted:
        try:
            yield knob.check(value, where="explain")
        except JobError:
            continue  # beyond the knob's range


def _number_steps(current: int) -> tuple[int, ...]:
    """Twice as much, half of it, and the powers of two on both sides of a count."""
    steps = (current * _STEP, current // _STEP)
    if not 0 < current <= _LARGEST_COUNT or current & (current - 1) == 0:
        return steps
    above = 1 << current.bit_length()
    return tuple(dict.fromkeys((above, above // 2, *steps)))


def explain(values: Knobs, context: Context) -> dict[str, str]:
    """Why a user's setting does not reach the run as it was written; empty where all do.

    Returns:
        Knob name -> one sentence.
    """
    settled = canonical(values, context)
    reasons = {}
    for name, value in values.items():
        if name not in settled:
            knob = context.knobs[name]
            why = "it is the default" if value == knob.default else f"it acts {knob.scope}"
            reasons[name] = f"{name}={format_value(value)} changes nothing here: {why}"
        elif settled[name] != value:
            reasons[name] = f"{name}={value} means the same run as {settled[name]}, which is used"
    return reasons


def changing_knobs(candidate: Candidate, knobs: Catalogue) -> list[str]:
    """Knobs of a candidate with which something else is trained, by their names."""
    usual = {name: knob.default for name, knob in knobs.items() if knob.changes_training}
    return sorted(name for name, value in usual.items() if candidate.get(name, value) != value)
