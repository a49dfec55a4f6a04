"""The samplers `tpe`, `gp` and `random`: Optuna's, asked for a value of every knob.

The lattice then finds the nearest candidate that is legal and open.
"""

from abc import abstractmethod
from importlib.util import find_spec

from optuna.samplers import BaseSampler, GPSampler, RandomSampler

from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.search.optuna_study import ask, make_axes, n_random_trials, sampler_seed, tpe_sampler
from autotune.search.sampler import Request, Sampler
from autotune.space.candidate import Candidate

_GP_PACKAGES = ("scipy", "torch")
"""Packages that Optuna's Gaussian process sampler imports when it is asked."""


class OptunasSampler(Sampler):
    """A sampler of Optuna's over the values of the lattice."""

    tells_idle_knobs: bool = False
    """Whether every trial is told with every knob, those that do not act at their first value."""

    @abstractmethod
    def make(self, *, n_budget: int, seed: int) -> BaseSampler:
        """The sampler as Optuna has it; at most half of a search's trials are random."""

    def propose(self, request: Request) -> Candidate | None:
        """The open candidate that is nearest to the values that Optuna proposes."""
        lattice, history = request.lattice, request.history
        sampler = self.make(n_budget=request.n_budget, seed=sampler_seed(request.seed, history))
        axes = make_axes(lattice.values, history)
        is_whole = self.tells_idle_knobs
        values = ask(sampler, axes, history, request.objective, is_whole=is_whole)
        return lattice.nearest({**lattice.constants, **values}, request.closed)


class Tpe(OptunasSampler):
    """The tree-structured Parzen estimator."""

    def make(self, *, n_budget: int, seed: int) -> BaseSampler:
        """Optuna's, of all knobs together."""
        return tpe_sampler(n_budget, seed)


class Gp(OptunasSampler):
    """The Gaussian process.

    It sees only the knobs that all trials have and draws the others blindly.
    """

    tells_idle_knobs = True

    def check_installed(self) -> None:
        """See that scipy and torch are there."""
        missing = [name for name in _GP_PACKAGES if find_spec(name) is None]
        if missing:
            raise JobError(
                f"sampler: gp needs {' and '.join(missing)}, which is not installed",
                f"pip install {' '.join(missing)}, or choose {flag('sampler')} tpe",
            )

    def make(self, *, n_budget: int, seed: int) -> BaseSampler:
        """Optuna's."""
        self.check_installed()
        return GPSampler(seed=seed, n_startup_trials=n_random_trials(n_budget))


class Random(OptunasSampler):
    """Values drawn at random."""

    def make(self, *, n_budget: int, seed: int) -> BaseSampler:
        """Optuna's."""
        return RandomSampler(seed=seed)
