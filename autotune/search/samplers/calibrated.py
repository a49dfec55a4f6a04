"""The sampler `calibrated`: what the cost model ranks first, corrected by every trial."""

from autotune.search.sampler import Request
from autotune.search.samplers.of_optuna import Tpe
from autotune.space.candidate import Candidate


class Calibrated(Tpe):
    """Follows the forecast; where there is none, TPE proposes."""

    goes_by_forecast = True

    def propose(self, request: Request) -> Candidate | None:
        steering = request.steering
        if steering is None or not steering.steers:
            return super().propose(request)
        return steering.propose(
            request.history, request.closed, n_budget=request.n_budget, seed=request.seed
        )
