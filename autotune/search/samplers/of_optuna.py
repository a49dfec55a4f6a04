"""The samplers `tpe` and `random`: Optuna's, asked for a value of every knob.

The lattice then finds the nearest candidate that is legal and open.
"""

from abc import abstractmethod

from optuna.samplers import BaseSampler, RandomSampler

from autotune.search.optuna_study import ask, make_axes, sampler_seed, tpe_sampler
from autotune.search.sampler import Request, Sampler
from autotune.space.candidate import Candidate


class OptunasSampler(Sampler):
    """A sampler of Optuna's over the values of the lattice."""

    @abstractmethod
    def make(self, *, n_budget: int, seed: int) -> BaseSampler:
        """The sampler as Optuna has it; at most half of a search's trials are random."""

    def propose(self, request: Request) -> Candidate | None:
        """The open candidate that is nearest to the values that Optuna proposes."""
        lattice, history = request.lattice, request.history
        sampler = self.make(n_budget=request.n_budget, seed=sampler_seed(request.seed, history))
        axes = make_axes(lattice.values, history)
        values = ask(sampler, axes, history, request.objective)
        return lattice.nearest({**lattice.constants, **values}, request.closed)


class Tpe(OptunasSampler):
    """The tree-structured Parzen estimator."""

    def make(self, *, n_budget: int, seed: int) -> BaseSampler:
        return tpe_sampler(n_budget, seed)


class Random(OptunasSampler):
    """Values drawn at random."""

    def make(self, *, n_budget: int, seed: int) -> BaseSampler:
        return RandomSampler(seed=seed)
