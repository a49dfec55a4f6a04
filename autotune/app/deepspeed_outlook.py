"""A job on a fleet under DeepSpeed: the candidates of its space that the rules allow."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.app.outlook import FleetWishes, Outlook
from autotune.base.errors import JobError
from autotune.contract import KnobValue
from autotune.cost import Plans
from autotune.devices.accelerators import Accelerator
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, bind_engine, find_engine
from autotune.export.base import Handout
from autotune.export.door import handout_of
from autotune.job.job import Job
from autotune.planning.lattice import Lattice, build_lattice
from autotune.report.settings import Candidates
from autotune.space.candidate import Candidate
from autotune.space.knob import Knob
from autotune.space.knobs import canonical, explain, parse_settings
from autotune.space.rule import Violation
from autotune.space.space import load_space

_STEP = 2
"""What is one step of a number: twice as much, and half of it."""


@dataclass(frozen=True, kw_only=True)
class DeepSpeedOutlook(Outlook[Candidates]):
    """What DeepSpeed may run."""

    lattice: Lattice

    @cached_property
    def engine(self) -> Engine:
        """Of this outlook's own fleet: that of a what-if has its devices."""
        return bind_engine(self.job, self.environment)

    @property
    def choices(self) -> Candidates:
        """The lattice."""
        return self._of(self.lattice.candidates)

    @property
    def home(self) -> str:
        """The job's space."""
        return f"the space {self.job.space}"

    def read(self, settings: Sequence[str]) -> tuple[Candidates, tuple[str, ...]]:
        """A candidate; other knobs are at the base configuration's value or the engine's default.

        Raises:
            JobError: A setting is not one.
        """
        values = parse_settings(settings, self.lattice.context.knobs)
        notes = tuple(explain(values, self.lattice.context).values())
        return self._of([self._candidate(values)]), notes

    def placed(self, choice: Candidates) -> tuple[Candidates, int, bool]:
        """The lattice with a candidate in it."""
        candidate = choice.candidates[0]
        others = self.lattice.candidates
        same = candidate in others
        everyone = others if same else (*others, candidate)
        return self._of(everyone), everyone.index(candidate), same

    def violations(self, choices: Candidates, index: int) -> tuple[Violation, ...]:
        """What the rules say of a candidate."""
        return tuple(self.engine.judge(choices.candidates[index]))

    def neighbours(self, choice: Candidates) -> tuple[Candidates, list[tuple[str, KnobValue]]]:
        """One knob a step up and down, at its other choices, and at the space's values."""
        candidate = choice.candidates[0]
        found: dict[Candidate, tuple[str, KnobValue]] = {}
        space = load_space(self.job.space, self.lattice.context.knobs)
        for name, knob in self.lattice.context.knobs.items():
            own = candidate.get(name)
            domain = space.domains.get(name)
            tried = [*_steps(knob, own), *(domain.values if domain is not None else ())]
            for value in tried:
                other = self._candidate({**candidate.values, name: value})
                if other != candidate and other.get(name) == value:
                    found.setdefault(other, (name, value))
        return self._of(list(found)), list(found.values())

    @property
    def dialect(self) -> str:
        """As the engine names it."""
        return find_engine(self.job.engine).dialect

    def handout(self, index: int) -> Handout:
        """A candidate, rendered.

        Raises:
            RenderError: It does not render.
        """
        return handout_of(
            self.lattice.candidates[index],
            engine=self.engine,
            job=self.job,
            environment=self.environment,
        )

    def columns(self, choices: Candidates) -> Plans:
        """Candidates in the model's columns."""
        return self.engine.plans(choices.candidates, self.table)

    def _of(self, candidates: Sequence[Candidate]) -> Candidates:
        return Candidates(candidates=candidates, context=self.lattice.context)

    def _candidate(self, values: Mapping[str, KnobValue]) -> Candidate:
        return Candidate.of(
            canonical(values, self.lattice.context),
            world=self.job.world,
            global_batch=self.job.global_batch,
        )


def deepspeed_outlook(
    job: Job, environment: Environment, wishes: FleetWishes, table: tuple[Accelerator, ...]
) -> DeepSpeedOutlook:
    """Judge the candidates of the job's space.

    Raises:
        JobError: The space is not valid.
        NothingFeasibleError: The rules refuse every candidate.
    """
    engine = bind_engine(job, environment)
    return DeepSpeedOutlook(
        job=job,
        environment=environment,
        wishes=wishes,
        table=table,
        lattice=build_lattice(load_space(job.space, engine.context.knobs), engine),
    )


def _steps(knob: Knob, own: KnobValue | None) -> Iterable[KnobValue]:
    """Values beside a knob's own; none where it does not act."""
    if own is None:
        return
    if knob.choices and knob.kind != "int":
        wanted: tuple[KnobValue, ...] = tuple(v for v in knob.choices if v != own)
    elif knob.kind == "bool":
        wanted = (not own,)
    elif knob.kind == "int" and knob.choices:
        wanted = tuple(v for v in knob.choices if abs(int(v) - int(own)) == 1)
    elif knob.kind == "int":
        wanted = (int(own) * _STEP, int(own) // _STEP)
    else:
        return  # shares have no step that means the same everywhere; the space's values are tried
    for value in wanted:
        try:
            yield knob.check(value, where="explain")
        except JobError:
            continue  # beyond the knob's range
