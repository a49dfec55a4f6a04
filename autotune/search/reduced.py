"""Reduced trials: which candidates run on fewer layers or accelerators first, and what that says.

They come first and teach the forecast, which then chooses the candidates that run as they are. A
figure of theirs is never a candidate's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.engines.base import Engine
from autotune.job.fidelity import describe_fidelity
from autotune.job.job import Job
from autotune.planning.lattice import Lattice
from autotune.search.context import SearchContext
from autotune.search.history import History
from autotune.search.steering import Steering
from autotune.search.stop import searched
from autotune.space.candidate import Candidate
from autotune.space.rule import Violation

SHARE = 0.5
"""Share of a search's trials, and of its time where that is limited, that reduced trials may
take. Only full trials are compared, so the other half stays for them."""


@dataclass(frozen=True, kw_only=True)
class Reductions:
    """The reduced forms of a lattice's candidates."""

    forms: Mapping[str, Candidate]
    """Hash of a candidate -> what its reduced trial runs."""
    refused: Mapping[str, int]
    """Rule -> candidates whose reduced form it refuses."""
    example: str
    """Why one of these is refused; empty: none is."""

    def describe(self) -> str:
        """How many have no reduced trial, and why; empty where all have one."""
        n_refused = sum(self.refused.values())
        if not n_refused:
            return ""
        rules = ", ".join(f"{rule} {count}" for rule, count in self.refused.items())
        n_all = n_refused + len(self.forms)
        return (
            f"{n_refused} of {n_all} candidates have no reduced trial ({rules}), such as: "
            f"{self.example}"
        )


def reduce_lattice(job: Job, lattice: Lattice, engine: Engine) -> Reductions | None:
    """Reduce every candidate that stays legal; None where the job asks for no reduced trials.

    A candidate that breaks several rules counts for the first.
    """
    if job.fidelity is None:
        return None
    forms: dict[str, Candidate] = {}
    refused: dict[str, int] = {}
    example: Violation | None = None
    for candidate in lattice.candidates:
        form = candidate.reduced(job.fidelity)
        if violations := engine.judge(form):
            refused[violations[0].rule] = refused.get(violations[0].rule, 0) + 1
            example = example or violations[0]
        else:
            forms[candidate.hash] = form
    return Reductions(
        forms=forms, refused=refused, example="" if example is None else example.message
    )


def n_reduced(n_trials: int) -> int:
    """Reduced trials that a search of so many may begin with."""
    return int(n_trials * SHARE)


def too_large(history: History) -> dict[str, int]:
    """Candidates that need too much memory, as their reduced trials showed.

    Fewer layers need less memory on the same devices: a candidate whose reduced trial ran out of
    memory would run out of it too. Fewer devices hold larger shards: such a trial shows nothing.

    Returns:
        Hash of the candidate -> number of the trial that said so.
    """
    found: dict[str, int] = {}
    for tried in history.reduced.tried:
        spec = tried.trials[0].spec
        is_sound = spec.identity.fidelity is not None and spec.identity.fidelity.world is None
        if is_sound and tried.is_out_of_memory and spec.identity.reduced_of is not None:
            found[spec.identity.reduced_of] = spec.identity.number
    return found


class ReducedTrials:
    """The first part of a search."""

    def __init__(
        self, context: SearchContext, forms: Mapping[str, Candidate], steering: Steering
    ) -> None:
        """Take the forms of `Reductions`, and what chooses among them and is taught."""
        self.forms = forms
        self._context = context
        self._steering = steering
        self._by_hash = {candidate.hash: candidate for candidate in context.lattice.candidates}

    @classmethod
    def of(cls, context: SearchContext) -> "ReducedTrials | None":
        """The reduced trials of a job, told once; None where there are none or none would help."""
        job, steering = context.job, context.steering
        reductions = reduce_lattice(job, context.lattice, context.engine)
        if job.fidelity is None or reductions is None:
            return None
        if steering is None or not steering.steers:
            context.note("no reduced trials: there is no forecast that they could teach")
            return None
        context.note(
            f"up to {n_reduced(job.budget.trials)} reduced trials come first, "
            f"{describe_fidelity(job.fidelity)} each: they are in no ranking"
        )
        if refused := reductions.describe():
            context.note(refused)
        return cls(context, reductions.forms, steering)

    def next(self, history: History, *, used_s: float) -> tuple[Candidate, Candidate] | None:
        """The reduced form to run next, and its candidate; None: it is time for full trials.

        Trials took `used_s` seconds of wall-clock so far.
        """
        for candidate_hash, number in too_large(history).items():
            self._context.note_once(
                f"too large {candidate_hash}",
                f"trial {number} ran out of memory with fewer layers: so would its candidate, "
                "which is not tried",
            )
        job, reduced = self._context.job, history.reduced
        time_s, typical_s = job.budget.time_s, reduced.typical_s or history.typical_s or 0.0
        if time_s is not None and used_s + typical_s > time_s * SHARE:
            return None
        for tried in reduced.tried:
            full = self._by_hash.get(tried.trials[0].spec.identity.reduced_of or "")
            # One of another fidelity than is asked for now is left as it is.
            if full and tried.is_owed and self.forms.get(full.hash) == tried.candidate:
                return tried.candidate, full
        if len(searched(reduced)) >= n_reduced(job.budget.trials):
            return None
        begun = {
            t.trials[0].spec.identity.reduced_of or "" for t in reduced.tried if not t.is_owed
        }
        chosen = self._steering.propose(
            history,
            # Candidates that the model cannot tell apart need no second trial with fewer layers.
            closed={
                *(t.candidate.hash for t in history.tried),
                *self._steering.alike(begun),
                *(self._by_hash.keys() - self.forms.keys()),
            },
            n_budget=job.budget.trials,
            seed=job.seed,
        )
        return None if chosen is None else (self.forms[chosen.hash], chosen)
