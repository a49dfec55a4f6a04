"""Reduced trials: which candidates run on fewer layers or accelerators first, and what that says.

They come first and teach the forecast, which then chooses the candidates that run as they are. A
figure of theirs is never a candidate's.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.contract import Fidelity
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine
from autotune.job.job import Job
from autotune.planning.lattice import Lattice
from autotune.search.history import History
from autotune.search.runner import Runner
from autotune.search.session import Session
from autotune.search.steering import Steering
from autotune.search.stop import searched
from autotune.space.candidate import Candidate
from autotune.space.rule import Violation

SHARE = 0.5
"""Share of a search's trials, and of its time where that is limited, that reduced trials may
take. Only full trials are compared, so the other half stays for them."""
_MOST_RISK = 0.5
"""Probability of running out of memory at which a trial takes more accelerators."""
_MOST_PROPOSALS = 20
"""Candidates that are looked at for one whose reduced trial is expected to fit."""


@dataclass(frozen=True, kw_only=True)
class Reductions:
    """The reduced forms of a lattice's candidates."""

    forms: Mapping[str, Sequence[Candidate]]
    """Hash of a candidate -> what its reduced trial may run, on the fewest accelerators first.

    The first is legal; the others have not been judged."""
    left_out: str = ""
    """How many candidates have no reduced trial, and why; empty where all have one."""


def reduce_lattice(
    job: Job, environment: Environment, lattice: Lattice, engine: Engine
) -> Reductions | None:
    """Reduce every candidate that stays legal; None where the job asks for no reduced trials."""
    if job.fidelity is None:
        return None
    forms: dict[str, Sequence[Candidate]] = {}
    refused: list[Violation] = []
    fidelities = _whole(job.fidelity.fidelities, job, environment)
    for candidate in lattice.candidates:
        for place, fidelity in enumerate(fidelities):
            violations = engine.judge(candidate.reduced(fidelity))
            if not violations:
                # Larger ones are judged when they are needed: a lattice may be large.
                forms[candidate.hash] = [candidate.reduced(f) for f in fidelities[place:]]
                break
        else:
            refused.append(violations[0])
    if not refused:
        return Reductions(forms=forms)
    counts = Counter(violation.rule for violation in refused)
    rules = ", ".join(f"{rule} {count}" for rule, count in counts.items())
    left_out = (
        f"{len(refused)} of {len(lattice.candidates)} candidates have no reduced trial ({rules}), "
        f"such as: {refused[0].message}"
    )
    return Reductions(forms=forms, left_out=left_out)


def _whole(
    fidelities: Sequence[Fidelity], job: Job, environment: Environment
) -> Sequence[Fidelity]:
    """Those, where there is a choice, whose gangs are within a node or of whole nodes."""
    node_world = min(environment.n_devices, job.world)
    worlds = [fidelity.world or job.world for fidelity in fidelities]
    pairs = zip(fidelities, worlds, strict=True)
    whole = [
        fidelity for fidelity, world in pairs if world <= node_world or world % node_world == 0
    ]
    return whole if len(fidelities) > 1 else fidelities


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
        self,
        session: Session,
        runner: Runner,
        forms: Mapping[str, Sequence[Candidate]],
        steering: Steering,
    ) -> None:
        """Take the forms of `Reductions`, and what chooses among them and is taught."""
        self.forms = forms
        self.world = min((form[0].world for form in forms.values()), default=session.job.world)
        """Accelerators of the trial that was asked for last."""
        self._session = session
        self._note_once = runner.note_once
        self._steering = steering
        self._by_hash = {candidate.hash: candidate for candidate in session.lattice.candidates}

    @classmethod
    def of(
        cls, session: Session, runner: Runner, steering: Steering | None
    ) -> "ReducedTrials | None":
        """The reduced trials of a job, told once; None where there are none or none would help."""
        job = session.job
        reductions = reduce_lattice(job, session.environment, session.lattice, session.engine)
        if job.fidelity is None or reductions is None:
            return None
        if steering is None or not steering.steers:
            runner.note("no reduced trials: there is no forecast that they could teach")
            return None
        runner.note(
            f"up to {n_reduced(job.budget.trials)} reduced trials come first, "
            f"{job.fidelity.describe()} each: they are in no ranking"
        )
        if reductions.left_out:
            runner.note(reductions.left_out)
        return cls(session, runner, reductions.forms, steering)

    def next(self, history: History, *, used_s: float) -> tuple[Candidate, Candidate] | None:
        """The reduced form to run next, and its candidate; None: it is time for full trials.

        Trials took `used_s` seconds of wall-clock so far.
        """
        for candidate_hash, number in too_large(history).items():
            self._note_once(
                f"too large {candidate_hash}",
                f"trial {number} ran out of memory with fewer layers: so would its candidate, "
                "which is not tried",
            )
        job, reduced = self._session.job, history.reduced
        time_s, typical_s = job.budget.time_s, reduced.typical_s or history.typical_s or 0.0
        if time_s is not None and used_s + typical_s > time_s * SHARE:
            return None
        for tried in reduced.tried:
            full = self._by_hash.get(tried.trials[0].spec.identity.reduced_of or "")
            # One of another fidelity than is asked for now is left as it is.
            if full and tried.is_owed and tried.candidate in self.forms.get(full.hash, ()):
                return self._asked(tried.candidate, full)
        if len(searched(reduced)) >= n_reduced(job.budget.trials):
            return None
        begun = {
            t.trials[0].spec.identity.reduced_of or "" for t in reduced.tried if not t.is_owed
        }
        # Candidates that the model cannot tell apart need no second reduced trial.
        closed = {
            *(t.candidate.hash for t in history.tried),
            *self._steering.alike(begun),
            *(self._by_hash.keys() - self.forms.keys()),
        }
        for _ in range(_MOST_PROPOSALS):
            chosen = self._steering.propose(
                history, closed=closed, n_budget=job.budget.trials, seed=job.seed
            )
            if chosen is None:
                return None
            if (form := self._holding(chosen, history)) is not None:
                return self._asked(form, chosen)
            closed |= self._steering.alike({chosen.hash})
        return None

    def _holding(self, candidate: Candidate, history: History) -> Candidate | None:
        """The smallest form of a candidate that is expected to fit; None: none is.

        The only form that there is runs anyway: what it takes teaches the forecast.
        """
        forms = self.forms[candidate.hash]
        if len(forms) == 1:
            return forms[0]
        for form in forms:
            is_legal = not self._session.engine.judge(form)
            if is_legal and self._steering.risk(history, [form])[0] < _MOST_RISK:
                return form
        return None

    def _asked(self, form: Candidate, full: Candidate) -> tuple[Candidate, Candidate]:
        self.world = form.world
        return form, full
