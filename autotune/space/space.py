"""A search space: which knobs are searched, over which values; and its grid for a job."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.base.data import data_folder, shipped_spaces
from autotune.base.errors import JobError
from autotune.base.names import did_you_mean
from autotune.contract import KnobValue
from autotune.space.candidate import Candidate
from autotune.space.knob import Catalogue, Context
from autotune.space.knobs import canonical
from autotune.space.space_file import Domain, Space, read_space_file

MAX_COMBINATIONS = 200_000
"""More than this many combinations of values are refused: building the lattice takes minutes."""


def load_space(name_or_path: str, knobs: Catalogue, engine: str = "") -> Space:
    """Read a shipped space by its name, or the YAML file at a path; `engine` is whose knobs.

    Raises:
        JobError: There is no such space, or the file is not valid.
    """
    path = Path(name_or_path)
    if name_or_path in shipped_spaces():
        path = data_folder("search_spaces") / f"{name_or_path}.yaml"
    elif not os.path.isfile(path):
        guess = did_you_mean(name_or_path, shipped_spaces(), most=1)
        raise JobError(
            f"space: {name_or_path!r} is neither a shipped space nor a file",
            f"{guess}shipped spaces: {', '.join(shipped_spaces())}; or the path of a YAML file",
        )
    return read_space_file(path, knobs, engine)


def grid(space: Space, context: Context) -> Iterator[Candidate]:
    """Every candidate of a space for a job, before the rules: canonical, each once.

    Raises:
        JobError: The space has more than `MAX_COMBINATIONS` combinations of values.
    """
    seen: set[Candidate] = set()
    for count, chosen in enumerate(combinations(space, context), start=1):
        if count > MAX_COMBINATIONS:
            sizes = " x ".join(f"{name} {len(d.values)}" for name, d in space.domains.items())
            raise JobError(
                f"{space.path}: more than {MAX_COMBINATIONS} combinations: {sizes}",
                "list fewer values, or tie a knob to others with `when`",
            )
        candidate = Candidate.of(
            canonical(chosen, context), world=context.world, global_batch=context.global_batch
        )
        if candidate not in seen:
            seen.add(candidate)
            yield candidate


def combinations(space: Space, context: Context) -> Iterator[dict[str, KnobValue]]:
    """Choices of values, one knob after the other; a knob that cannot act is left out."""
    knobs = list(space.domains.items())

    def extended(chosen: dict[str, KnobValue], index: int) -> Iterator[dict[str, KnobValue]]:
        if index == len(knobs):
            yield chosen
            return
        name, domain = knobs[index]
        if not is_tried(context.knobs, name, domain, {**context.base, **chosen}):
            yield from extended(chosen, index + 1)
            return
        for value in domain.values:
            yield from extended({**chosen, name: value}, index + 1)

    yield from extended({}, 0)


def is_tried(
    catalogue: Catalogue, name: str, domain: Domain, chosen: Mapping[str, KnobValue]
) -> bool:
    """Whether to try a knob's values, given those chosen and the base configuration's."""
    return all(
        chosen.get(other, catalogue[other].default_for(chosen)) in allowed
        for other, allowed in (*catalogue[name].when.items(), *domain.when)
    )
