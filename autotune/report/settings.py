"""What a prediction is of, in a form that shows DeepSpeed's candidates and Megatron's layouts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.contract import KnobValue
from autotune.report.words import describe_candidate
from autotune.space.candidate import Candidate
from autotune.space.knob import Context


class Choices(Protocol):
    """What can be chosen, each by its index."""

    def __len__(self) -> int: ...

    def knobs(self, index: int) -> Mapping[str, KnobValue]:
        """What one of them chooses."""
        ...

    def describe(self, index: int) -> str:
        """The same in words, without what is at its default."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """Candidates of a DeepSpeed lattice."""

    candidates: Sequence[Candidate]
    context: Context

    def __len__(self) -> int:
        return len(self.candidates)

    def knobs(self, index: int) -> Mapping[str, KnobValue]:
        """What one of them chooses."""
        return self.candidates[index].values

    def describe(self, index: int) -> str:
        """What a user has to set."""
        return describe_candidate(self.candidates[index], self.context)
