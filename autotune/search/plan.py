"""The plan of a search and its price, before anything runs."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from autotune.base.plugins import load_plugin
from autotune.base.units import typed_seconds
from autotune.contract import KnobValue, Origin, Role, Start
from autotune.devices.hardware import Environment
from autotune.engines.base import find_engine
from autotune.engines.launches.line import in_short
from autotune.job.job import Job
from autotune.planning.lattice import Lattice
from autotune.record.study import results
from autotune.record.tried import is_tried, recorded, warning
from autotune.search.confirm import MAX_FINALISTS, guard_s, run_seconds
from autotune.search.history import History, busy_s, intervals
from autotune.search.prospect import Prospect
from autotune.search.race import COLD, MIN_ROUNDS, WARM, Rules
from autotune.search.reduced import n_reduced, reduce_lattice
from autotune.search.rounds import seconds_of
from autotune.search.session import Session
from autotune.search.stop import CONFIRM_SHARE, n_done
from autotune.search.trial_spec import GUARD_S, OWN_STEPS
from autotune.space.ranks import describe_places, describe_reach
from autotune.space.workload import Reach

ASSUMED_TRIAL_S = 15.0
"""Seconds of a trial of a small model while nothing is known: 5 to 12 s until its first step if it
starts cold."""
ASSUMED_BASELINE_TRIALS = 2
"""Trials to find a baseline: the largest micro-batch of the lowest stage mostly runs; each
bisection is one trial more, and a tight memory limit may take ten, stage by stage."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The trials that would run."""

    session: Session
    """What is searched; where its figures are not measured, nothing runs."""
    untried: str
    """Knobs of the lattice that no recorded run has tried on such a device; empty: none."""
    lacks: str
    """What is not installed though trials were faster with it; empty: nothing."""
    n_recorded: int
    """Trials that the record already holds."""
    prospect: Prospect | None
    """What is predicted of its trials; None: nothing can be."""
    baseline_trials: int
    """Assumed where the baseline is looked for: see `ASSUMED_BASELINE_TRIALS`."""
    search_trials: int
    """Trials of the search, at most."""
    reduced_trials: int
    """Trials among these that come first on fewer layers or accelerators, at most."""
    no_reduced: str
    """Candidates without a reduced trial, in words; empty where all have one."""
    confirm_trials: int
    """At most."""
    trial_s: float
    """Seconds that one trial takes; 0 where nothing runs."""
    confirm_s: float
    """Seconds that one run of the final comparison takes, on average over warm and cold ones."""
    guard_steps: int = 0
    """First steps whose losses the convergence guard compares; 0: it is off."""
    guard_s: float = 0
    """Seconds that these steps take beside those that run anyway, at most."""
    at_once: int
    """Trials of the search that run at the same time."""
    is_measured: bool
    """Whether `trial_s` is the median of trials in the record; else it is assumed."""
    used_s: float
    """Seconds of the budget that the record took, the first run of a command among them."""
    ranks: tuple[str, ...] = ()
    """Where a trial's ranks lie, and how far parallel groups of them reach, in words; empty: they
    lie in one place, or nobody knows."""
    command: str = ""
    """The user's own command, as typed; empty: what is trained is another workload."""
    ways: dict[str, str] = field(default_factory=dict)
    """Knob that changes the command in candidates -> the way by which it does."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Knob that does not reach it -> why."""

    @property
    def trials(self) -> int:
        """Trials that are still to run, at most but for the baseline's."""
        return self.baseline_trials + self.search_trials + self.confirm_trials

    @property
    def total_s(self) -> float:
        """Wall-clock seconds: the search's trials side by side, all others one at a time."""
        rounds = math.ceil(self.search_trials / self.at_once)
        total_s = self._one_at_a_time_s + rounds * self.trial_s
        budget_s = self.session.job.budget.time_s
        return total_s if budget_s is None else min(total_s, budget_s)

    @property
    def least_s(self) -> float:
        """Seconds that the baseline, one trial, and the two of them compared take."""
        first_s = (self.baseline_trials + 1) * self.trial_s
        return first_s + 2 * MIN_ROUNDS * self.confirm_s

    @property
    def enough(self) -> str:
        """A longer budget in whole minutes: for one trial that is compared, else for all trials.

        A share of it is kept to compare, at most what all runs of that take.
        """
        compared_s = 2 * MIN_ROUNDS * self.confirm_s
        rest_s = self.used_s + self.least_s - compared_s
        if (self.session.job.budget.time_s or 0.0) >= self.least_s:
            rounds = math.ceil(self.search_trials / self.at_once) - 1
            rest_s += rounds * self.trial_s
        all_s = rest_s + self.confirm_trials * self.confirm_s
        least_s = max(compared_s / CONFIRM_SHARE, min(rest_s / (1 - CONFIRM_SHARE), all_s))
        return typed_seconds(60 * math.ceil(least_s / 60))

    @property
    def trials_in_time(self) -> int | None:
        """Trials of the search that the time has room for beside the rest; None: for all."""
        budget_s = self.session.job.budget.time_s
        if budget_s is None or not self.trial_s:
            return None
        kept_s = min(budget_s * CONFIRM_SHARE, self.confirm_trials * self.confirm_s)
        left_s = budget_s - self.used_s - kept_s - self.baseline_trials * self.trial_s
        n_trials = self.at_once * max(0, int(left_s / self.trial_s))
        return n_trials if n_trials < self.search_trials else None

    @property
    def accelerator_hours(self) -> float:
        """Accelerators times hours, at most but for the baseline's trials."""
        work_s = self._one_at_a_time_s + self.search_trials * self.trial_s
        if (budget_s := self.session.job.budget.time_s) is not None:
            work_s = min(work_s, budget_s * self.at_once)
        return self.session.job.world * work_s / 3600

    @property
    def price(self) -> float | None:
        """Price of those hours; None where nobody said what one costs."""
        price = self.session.job.price_per_hour
        return None if price is None else self.accelerator_hours * price

    @property
    def _one_at_a_time_s(self) -> float:
        return self.baseline_trials * self.trial_s + self.confirm_trials * self.confirm_s

    @property
    def has_tokens(self) -> bool:
        """Whether samples are made of tokens; those of a user's own script may not be."""
        script = self.session.job.script
        return script is None or script.has_tokens

    @property
    def reasons(self) -> dict[str, str]:
        """Rule -> what it says of a candidate that it refuses, with the fix."""
        examples = self.session.lattice.examples.items()
        return {rule: f"{refusal.message}; {refusal.fix}" for rule, (_, refusal) in examples}

    @property
    def baseline(self) -> str:
        job = self.session.job
        if job.script is not None:
            return "the command as it is"
        given = job.baseline
        return find_engine(job.engine).ladder_in_words if given is None else str(given)

    def as_dict(self) -> dict[str, Any]:
        job, lattice = self.session.job, self.session.lattice
        return {
            "study": self.session.study.name,
            "folder": str(self.session.study.folder),
            "model": job.model.name,
            **{path.rpartition(".")[2]: attrgetter(path)(self.session) for path in _OF_SESSION},
            "deepspeed_version": self.session.environment.deepspeed_version,
            "lengths": job.lengths.describe(job.global_batch),
            "space": "" if lattice.is_laid_out else job.space,
            "lattice_size": len(lattice.candidates),
            "refused": dict(lattice.refused.most_common()),
            "fidelity": "" if job.fidelity is None else job.fidelity.describe(),
            "budget_s": job.budget.time_s,
            "origin": self.session.place.origin,
            **{name: getattr(self, name) for name in _FIGURES},
            "prospect": None if self.prospect is None else dataclasses.asdict(self.prospect),
        }


_OF_SESSION = (
    *("job.model.shape.n_params", "job.model.shape.n_params_frozen", "job.seq_len"),
    *("job.global_batch", "job.world", "job.precision", "job.memory_limit_bytes"),
    *("job.price_per_hour", "environment.accelerator", "environment.device_name"),
    *("lattice.grid_size", "lattice.is_counted"),
)
_FIGURES = (
    *("has_tokens", "reasons", "untried", "lacks", "baseline", "n_recorded", "baseline_trials"),
    *("search_trials", "reduced_trials", "no_reduced", "confirm_trials", "trial_s", "confirm_s"),
    *("guard_steps", "guard_s", "at_once", "is_measured", "used_s", "ranks", "command", "ways"),
    *("left_out", "trials", "total_s", "accelerator_hours", "price"),
)


def make_plan(session: Session, history: History, prospect: Prospect | None = None) -> Plan:
    """Work out what a search would run; a table's answers are not compared again.

    Args:
        session: What is searched.
        history: What the record answers.
        prospect: What is predicted of the trials, where something is.

    Raises:
        FleetError: The place's devices are not there.
    """
    job, lattice = session.job, session.lattice
    origin, places = session.place.origin, session.place.rank_places(job.world)
    reductions = reduce_lattice(session)
    runs = origin is Origin.MEASURED
    measured_s = history.typical_s
    if measured_s is None and job.script is not None:
        measured_s = job.script.measured.wall_s  # it has run once, and joins the record later
    trial_s = ASSUMED_TRIAL_S if measured_s is None else measured_s
    if measured_s is None and prospect is not None:
        trial_s = min(prospect.trial_s, job.trial_timeout_s)
    untried = len(lattice.candidates) - len(history.tried)
    reduced_trials = 0
    if reductions is not None:
        n_left = n_reduced(job.budget.trials) - len(history.reduced.tried)
        reduced_trials = max(0, min(n_left, len(reductions.forms)))
    search_trials = max(0, min(job.budget.trials - n_done(history), untried + reduced_trials))
    most_finalists = 1 if job.compare == "best" else MAX_FINALISTS
    finalists = min(most_finalists, max(1, search_trials))
    is_confirmed = any(trial.role is Role.CONFIRM for trial in history.trials)
    rules = rules_before(job, session.environment, history)
    is_compared = origin is not Origin.REPLAYED and (search_trials > 0 or not is_confirmed)
    most = rules.most_runs(finalists + 1)
    known_s = run_seconds(history, rules, job.guard_steps)
    one_s = {start: seconds or trial_s for start, seconds in known_s.items()}
    # The cold runs take steps for the guard, and one of the baseline that shows its repeat.
    is_guarded = runs and is_compared and job.guard_steps > 0
    one_guard_s = guard_s(history, job.guard_steps)
    if one_guard_s is None:
        one_guard_s = GUARD_S * max(0, job.guard_steps - OWN_STEPS) / max(1, job.guard_steps)
    return Plan(
        session=session,
        untried=_untried(lattice),
        lacks=session.engine.lacks(),
        n_recorded=len(history.trials),
        prospect=prospect,
        baseline_trials=_baseline_trials(job, history),
        search_trials=search_trials,
        reduced_trials=reduced_trials,
        no_reduced="" if reductions is None else reductions.left_out,
        confirm_trials=most.total() if is_compared else 0,
        trial_s=trial_s if runs else 0.0,
        confirm_s=seconds_of(most, one_s) / most.total() if runs else 0.0,
        at_once=max(1, session.place.at_once(job.world)),
        is_measured=measured_s is not None,
        used_s=_used_s(job, history) if runs else 0.0,
        ranks=tuple(_ranks(lattice, places)),
        **_reach_of(session),
        guard_steps=job.guard_steps if is_guarded else 0,
        guard_s=min(most.total(), most[Start.COLD] + 1) * one_guard_s if is_guarded else 0.0,
    )


def rules_before(job: Job, environment: Environment, history: History | None = None) -> Rules:
    """The rules that the comparison will follow, as far as one can know: trials may start warm."""
    explored = () if history is None else history.explored.trials
    if starts := {trial.measured.start for trial in explored if trial.measured}:
        return WARM if starts == {Start.WARM} else COLD
    return WARM if environment.accelerator == "cpu" and job.script is None else COLD


def _ranks(lattice: Lattice, places: Sequence[str]) -> Iterator[str]:
    """Where ranks lie, and how far the groups of each degree of the lattice reach."""
    if len(set(places)) < 2:
        return
    yield describe_places(places)
    world = len(places)
    for name in ("tp", "sp", "cp", "pp"):
        for degree in map(int, lattice.values.get(name, ())):
            if 1 < degree <= world and world % degree == 0:
                stride = world // degree if name == "pp" else 1
                yield f"groups of {name}={degree}: {describe_reach(degree, stride, places)}"


def _used_s(job: Job, history: History) -> float:
    """Seconds of the budget that trials of the record took, as a search counts them."""
    if history.recorded or job.script is None:
        return busy_s(intervals(history.recorded))
    return job.script.measured.wall_s  # it joins the record as its first trial


def _reach_of(session: Session) -> dict[str, Any]:
    """How the knobs reach the user's own command; empty where there is none."""
    job, lattice = session.job, session.lattice
    if job.script is None:
        return {}
    reach: Reach = load_plugin("workload", job.workload).reach(job)
    command = next(iter(session.engine.ladder()))[0]

    def is_changed(name: str) -> bool:
        """Whether candidates differ in a knob, or all of them from the command as it is."""
        value = command.values.get(name)
        used = lattice.table.used(name) - {None}
        return name in lattice.values or (value is not None and used - {value} != set())

    changed = filter(is_changed, lattice.context.knobs)
    return {
        "command": in_short(job.script.command, Path(job.script.folder)),
        "ways": {name: reach.ways.get(name, "configuration") for name in changed},
        "left_out": dict(reach.left_out),
    }


def _baseline_trials(job: Job, history: History) -> int:
    """Trials still to run; a search for a baseline may take more or fewer."""
    if any(trial.role is not Role.BASELINE for trial in history.recorded):
        return 0
    wanted = 1 if job.baseline is not None else ASSUMED_BASELINE_TRIALS
    if job.script is not None:
        wanted = 0  # its first run is the baseline
    return max(0, wanted - len(results(history.trials)))


def _untried(lattice: Lattice) -> str:
    """One value of each knob; defaults are left out, since they run everywhere."""
    context = lattice.context
    first: dict[str, KnobValue] = {}
    runs = recorded(context.engine)
    for name, values in lattice.values.items():
        for value in values:
            knob = context.knobs[name]
            if value != knob.default and not is_tried(knob, value, context.accelerator, runs):
                first.setdefault(name, value)
    return warning(first, context)
