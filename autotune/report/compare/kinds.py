"""One work on different kinds of accelerator: which is best, and how both would share a step.

Each kind was measured by itself. What they would do together is arithmetic, and said as such.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.report.telling import Fact, tell


@dataclass(frozen=True, kw_only=True)
class KindFigures:
    """The best of a study, by accelerator and by money."""

    run: str
    """Key of the study."""
    device_name: str
    world: int
    """Accelerators."""
    replicas: int
    """Copies of the model, among which samples are shared."""
    micro_batch: int
    global_batch: int
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


@dataclass(frozen=True, kw_only=True)
class UnevenSplit:
    """Shares of a global batch by which two kinds would end their steps at the same time."""

    kinds: tuple[KindFigures, KindFigures]
    samples: tuple[int, int]
    """Samples of each replica in one optimizer step, by kind."""
    step_s: float
    """Time of a step: that of the slower kind, with no communication between the kinds."""
    even_step_s: float
    """The same where every replica has the same share."""
    alone_step_s: float
    """Time of a step of the faster kind alone."""

    @property
    def micro_batches(self) -> tuple[int, int]:
        """Micro-batch of each kind: the largest that divides its share, up to its best's."""
        pairs = zip(self.kinds, self.samples, strict=True)
        first, second = (
            max(m for m in range(1, min(kind.micro_batch, n) + 1) if n % m == 0)
            for kind, n in pairs
        )
        return first, second

    @property
    def weights(self) -> tuple[float, float]:
        """Factor of a rank's mean loss, so that the mean over ranks is that over all samples."""
        n_replicas = sum(kind.replicas for kind in self.kinds)
        first, second = (n * n_replicas / self.kinds[0].global_batch for n in self.samples)
        return first, second

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        by_kind = zip(self.kinds, self.samples, self.micro_batches, self.weights, strict=True)
        return {
            "shares": [
                {"run": kind.run, "samples": n, "micro_batch": m, "loss_weight": weight}
                for kind, n, m, weight in by_kind
            ],
            **{k: v for k, v in asdict(self).items() if k.endswith("_s")},
        }


def split_of(kinds: Sequence[KindFigures]) -> UnevenSplit | None:
    """The split that balances a step of two kinds; None: they are not two, or none can be.

    Of several studies of a kind, the one that does most per accelerator stands for it.
    """
    kinds = _bests_by_kind(kinds, KindFigures.per_accelerator)
    if len(kinds) != 2 or kinds[0].global_batch != kinds[1].global_batch:
        return None
    one, two = kinds
    batch = one.global_batch
    # Samples/s of one replica: what it does with a share is taken to grow with the share alone.
    rates = one.samples_per_s / one.replicas, two.samples_per_s / two.replicas
    splits = [
        (n, (batch - n * one.replicas) // two.replicas)
        for n in range(1, (batch - 1) // one.replicas + 1)
        if (batch - n * one.replicas) % two.replicas == 0
    ]
    if not splits:
        return None
    samples = min(splits, key=lambda each: max(each[0] / rates[0], each[1] / rates[1]))
    return UnevenSplit(
        kinds=(one, two),
        samples=samples,
        step_s=max(samples[0] / rates[0], samples[1] / rates[1]),
        even_step_s=batch / (one.replicas + two.replicas) / min(rates),
        alone_step_s=batch / max(one.samples_per_s, two.samples_per_s),
    )


def describe_kinds(kinds: Sequence[KindFigures]) -> list[Fact]:
    """What the kinds do, which is best, and the split of a step over two; empty without kinds."""
    if not kinds:
        return []
    leads = [_lead(kinds, KindFigures.per_accelerator)]
    if _all_priced(kinds):
        leads.append(_lead(kinds, KindFigures.per_money))
    return tell("kinds", {"kinds": kinds, "leads": leads, "split": split_of(kinds)})


def best_kinds(kinds: Sequence[KindFigures]) -> dict[str, str | None]:
    """Key of the study that does most per accelerator, and for the same money; None: unknown."""
    if not kinds:
        return {"speed": None, "money": None}
    return {
        "speed": _ordered(kinds, KindFigures.per_accelerator)[0].run,
        "money": _ordered(kinds, KindFigures.per_money)[0].run if _all_priced(kinds) else None,
    }


def _lead(
    kinds: Sequence[KindFigures], of: Callable[[KindFigures, float], float]
) -> dict[str, Any]:
    """Which kind is best by a figure, by how much, and whether the intervals say so."""
    best, second = _bests_by_kind(kinds, of)[:2]
    return {
        "best": best,
        "second": second,
        "ratio": of(best, best.samples_per_s) / of(second, second.samples_per_s),
        "is_proven": of(best, best.samples_per_s_low) > of(second, second.samples_per_s_high),
    }


def _all_priced(kinds: Sequence[KindFigures]) -> bool:
    return all(kind.price_per_hour is not None for kind in kinds)


def _bests_by_kind(
    kinds: Sequence[KindFigures], of: Callable[[KindFigures, float], float]
) -> list[KindFigures]:
    """The best study of each kind by a figure, the best first."""
    bests: dict[str, KindFigures] = {}
    for each in _ordered(kinds, of):
        bests.setdefault(each.device_name, each)
    return list(bests.values())


def _ordered(
    kinds: Sequence[KindFigures], of: Callable[[KindFigures, float], float]
) -> list[KindFigures]:
    """The kinds, the best by a figure first."""
    return sorted(kinds, key=lambda kind: of(kind, kind.samples_per_s), reverse=True)
