"""One work on different kinds of accelerator: which is best, by accelerator and by money."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class KindFigures:
    """The best of a study, by accelerator and by money."""

    run: str
    """Key of the study."""
    device_name: str
    world: int
    """Accelerators."""
    samples_per_s: float
    samples_per_s_low: float
    samples_per_s_high: float
    price_per_hour: float | None
    """Price of one accelerator; None: nobody said."""

    def per_accelerator(self, samples_per_s: float) -> float:
        """Samples/s of one accelerator, at such a rate of all."""
        return samples_per_s / self.world

    def per_money(self, samples_per_s: float) -> float:
        """Samples for one of the price's money, at such a rate; a price is known."""
        assert self.price_per_hour is not None
        return 3600.0 * samples_per_s / (self.world * self.price_per_hour)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        rate, is_priced = self.samples_per_s, self.price_per_hour is not None
        return {
            **asdict(self),
            "samples_per_s_per_accelerator": self.per_accelerator(rate),
            "samples_per_money": self.per_money(rate) if is_priced else None,
        }


Measure = Callable[[KindFigures, float], float]
"""A figure of a kind at some samples/s, the more the better."""


def leads_of(kinds: Sequence[KindFigures]) -> list[dict[str, Any]]:
    """Which kind is best per accelerator, and for the same money where all prices are known."""
    measures = [KindFigures.per_accelerator, KindFigures.per_money][: 1 + _all_priced(kinds)]
    return [_lead(kinds, one) for one in measures] if kinds else []


def best_kinds(kinds: Sequence[KindFigures]) -> dict[str, str | None]:
    """Key of the study that does most per accelerator, and for the same money; None: unknown."""
    if not kinds:
        return {"speed": None, "money": None}
    return {
        "speed": _ordered(kinds, KindFigures.per_accelerator)[0].run,
        "money": _ordered(kinds, KindFigures.per_money)[0].run if _all_priced(kinds) else None,
    }


def _lead(kinds: Sequence[KindFigures], of: Measure) -> dict[str, Any]:
    """Which kind is best by a figure, by how much, and whether the intervals say so."""
    bests: dict[str, KindFigures] = {}
    for kind in _ordered(kinds, of):  # of several studies of a kind, the best stands for it
        bests.setdefault(kind.device_name, kind)
    best, second = list(bests.values())[:2]
    return {
        "best": best,
        "second": second,
        "ratio": of(best, best.samples_per_s) / of(second, second.samples_per_s),
        "is_proven": of(best, best.samples_per_s_low) > of(second, second.samples_per_s_high),
    }


def _all_priced(kinds: Sequence[KindFigures]) -> bool:
    return all(kind.price_per_hour is not None for kind in kinds)


def _ordered(kinds: Sequence[KindFigures], of: Measure) -> list[KindFigures]:
    """The kinds, the best by a figure first."""
    return sorted(kinds, key=lambda kind: of(kind, kind.samples_per_s), reverse=True)
