"""The protocol of an engine: what a candidate means there, and what the live engine must say.

An `EnginePlugin` is registered by name (entry points of the group `autotune.engines`) and bound to
a job and an environment; what it gives then is the `Engine` of that job.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.base.plugins import load_plugin, plugin_names
from autotune.contract import KnobValue
from autotune.cost.plans import Plans
from autotune.devices.accelerators import Accelerator, accelerators_with
from autotune.devices.hardware import Environment, not_installed, version_of
from autotune.engines.advice import COMMON, AdviceRules
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.space.knob import Catalogue, Context
from autotune.space.knobs import changing_knobs, describe_candidate
from autotune.space.rows import answers_of
from autotune.space.rule import Violation
from autotune.space.space_file import Space, load_space

BOTH = "both"
"""In place of an engine's name, of a search alone: one for each engine, one after the other."""


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """Settings with which the ranks of a candidate start, beside its files."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the candidate sets."""
    binds_cores: bool = False
    """Whether each GPU rank is bound to its own share of the cores; a CPU rank always is."""
    may_start_warm: bool = True
    """Whether they may be forked from a process that has imported everything: what is compiled on
    import or at the first step may not."""


@dataclass(frozen=True, kw_only=True)
class EnginePackage:
    """A package that has to be installed where trials of an engine are started."""

    name: str
    """Name by which pip knows it."""
    title: str
    """Name by which people know it."""
    least: str
    """The oldest release that will do."""
    tried: tuple[str, ...] = ()
    """Releases that trained candidates, oldest first; empty: nobody says."""
    removed: tuple[tuple[str, str], ...] = ()
    """Releases, oldest first, with what each took out, in words."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """Names of what an engine compiles for its ranks on this machine."""

    folder: str = ""
    """Folder that holds it; empty: nothing can be there."""
    built: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Names of what every trial loads and is not built yet."""
    stale_locks: tuple[str, ...] = ()
    """Paths that a killed build left, on which the ranks would wait for ever."""
    misread: tuple[tuple[str, str], ...] = ()
    """What the engine's compiler makes of the user's environment: what is wrong, and the fix."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Configuration files to hand out."""

    files: Mapping[str, str]
    """Path -> text."""
    overridden: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Keys of the user's own file that are not as written: key -> (theirs, ours)."""


@dataclass(frozen=True, kw_only=True)
class CommandJob:
    """The job that somebody's own command is, by its words."""

    keys: Mapping[str, Any]
    model: Mapping[str, Any]
    """A Hugging Face config."""
    left_out: Sequence[str] = ()
    """Flags of the command that trials leave out, besides those that a knob governs."""


class Engine(ABC):
    """A training engine for one job in one environment; most answers have a default of nothing."""

    name: str
    planned_alone: tuple[str, ...] = ()
    """Knobs that the layouts of a plan have off their default and those of a search have not."""

    def __init__(self, job: Job, environment: Environment) -> None:
        """An engine; a subclass checks here whether it trains the job."""
        self._job = job
        self._environment = environment

    @property
    def context(self) -> Context:
        """The context that decides, for the job, which knobs act and what they mean."""
        return Context.of(self._job, self._environment)

    @cached_property
    def accelerators(self) -> Sequence[Accelerator]:
        """The table to look the environment's device up in: the job's entries, then the shipped.

        Raises:
            JobError: The job's file is not such a table.
        """
        return accelerators_with(self._job.accelerators)

    @property
    def space(self) -> Space:
        """The job's space, or what of it reaches what the job trains.

        Raises:
            JobError: There is no such space, or its file is not valid.
        """
        return load_space(self._job.space, self.context.knobs, self.name)

    def layouts(self, *, saves_memory: bool = False) -> Sequence[Candidate] | None:
        """Every legal candidate, where the engine lays the job out itself.

        Those of the space `plan` may have knobs of `planned_alone` off their default; others have
        not. Where none of these fits, it `saves_memory` at a price as well.

        None: the candidates of the job's space are judged.

        Raises:
            NothingFeasibleError: None is legal.
        """
        return None

    @property
    def rendering_digest(self) -> str:
        """Digest of all that `files` of a candidate follow from besides it; empty: unknown.

        A record of thousands of trials is resumed by it, without rendering each again.
        """
        return ""

    @abstractmethod
    def judge(self, candidate: Candidate) -> Sequence[Violation]:
        """The rules that a candidate breaks; empty for a legal one.

        Raises:
            RenderError: A template or the base configuration does not render.
        """

    def refused_rows(self, rows: Sequence[Candidate]) -> Mapping[str, NDArray[np.bool_]] | None:
        """Rule -> the candidates of a grid that it refuses, all judged at once.

        None: the rules judge candidates one by one.
        """
        return None

    @property
    def decided_by(self) -> Mapping[tuple[str, ...], Collection[str]]:
        """Knobs -> names of rules whose answer follows from these knobs alone.

        They are asked once per combination of the knobs, and not of every candidate of a grid.
        """
        return {}

    def describe(self, candidate: Candidate) -> str:
        """The settings that a user has to make, in words."""
        return describe_candidate(candidate, self.context)

    def steps(self, candidate: Candidate) -> Iterable[tuple[str, KnobValue]]:
        """Knobs with other values that `explain` compares the candidate with."""
        return ()

    def expected(self, candidate: Candidate) -> dict[str, Any]:
        """Settings that the live engine must read back of the run (`TrialSpec.expected`).

        Raises:
            RenderError: A template or the base configuration does not render.
        """
        return {}

    def ranks(self, candidate: Candidate) -> RankSettings:
        """Settings with which the candidate's ranks start."""
        return RankSettings()

    @abstractmethod
    def files(self, candidate: Candidate) -> dict[str, str]:
        """Configuration files of the candidate: path below `config/` -> text.

        Raises:
            RenderError: A template or the base configuration does not render.
        """

    def ladder(self) -> Iterable[Sequence[Candidate]]:
        """The ladder of a careful user: rungs, the first choice first.

        Each candidate of a rung needs more memory than the one before, and is faster.
        """
        return ()

    def check_here(self, candidates: Sequence[Candidate]) -> None:  # noqa: B027
        """See on this machine, before any trial, that what the job trains takes its candidates.

        Raises:
            JobError: It does not.
        """

    def changes_training(self, candidates: Sequence[Candidate]) -> NDArray[np.bool_]:
        """Which candidates train other numbers than the job's, by `Knob.changes_training`."""
        knobs = self.context.knobs
        found = answers_of(candidates, lambda one: bool(changing_knobs(one, knobs)))
        return np.array(found.distinct, np.bool_)[found.which]

    def no_files(self) -> str:
        """Why no file can be made for the job, though it is predicted; empty: files are made."""
        return ""

    def preparation(self, candidates: Sequence[Candidate]) -> tuple[str, ...]:
        """The command that builds, on a node, what the trials of some candidates load there.

        Returns:
            A module and its arguments, as `python -m` takes them; empty: there is nothing to
            build. The command says what it does, a line at a time; if it fails, its last line says
            why, and how to mend it.
        """
        return ()

    def edits_in_words(self, candidate: Candidate) -> Sequence[str]:
        """What a user changes of their own command and files for a candidate, a line each.

        Empty where the job has no command of the user's, or nothing is to change.
        """
        return ()

    def needs(self, candidate: Candidate) -> Sequence[str]:
        """Packages that the nodes of a candidate must have, with their releases, in words."""
        return [
            f"{package.title} {self._environment.release_of(package.name)}".rstrip()
            for package in find_engine(self.name).needed(self._job)
        ]

    def spread_experts(self, candidate: Candidate) -> Mapping[str, Mapping[str, Any]]:
        """Flags that spread the experts of each layer over ranks -> what they change of the job.

        Empty where a candidate spreads them, or no rank gathers all of them.
        """
        return {}

    def lacks(self) -> str:
        """What is not installed here though the engine trains faster with it; empty: nothing."""
        return ""

    def remarks(self) -> Sequence[str]:
        """What is to be said of the user's own command as it runs, a line each."""
        return ()

    def splits_sequences(self) -> Sequence[str]:
        """Flags, in words, with which another engine splits what this one cannot."""
        return ()

    def exported(self, candidate: Candidate) -> Exported:
        """The candidate as exports carry it: what it does not decide is as the user has it.

        Raises:
            RenderError: A template or a file of the user's does not render.
            JobError: A file of the user's is not valid any more.
        """
        return Exported(files=self.files(candidate), overridden=self.overridden(candidate))

    def overridden(self, candidate: Candidate) -> Mapping[str, tuple[Any, Any]]:
        """Keys of the user's base configuration that a knob overrides: key -> (theirs, ours)."""
        return {}

    def not_carried(self, candidate: Candidate, where: object) -> Iterator[str]:
        """What trials of a user's own configuration do not carry of it, a key a line.

        `where` is the file or the command that it is of.
        """
        for key, (value, ours) in self.overridden(candidate).items():
            instead = "without it" if ours is None else f"with {ours!r}"
            yield f"{where}: has {key}={value!r}, and its trials run {instead}"

    def baseline(self, path: Path) -> tuple["Engine", Candidate]:
        """A user's own configuration as a candidate, with the engine that renders it as it is.

        Raises:
            RenderError: The file cannot be read.
            JobError: It trains something else than the job, or the engine reads no such files.
        """
        raise JobError.of("engines.no_baseline", path=path, engine=self.name)

    @abstractmethod
    def plans(self, candidates: Sequence[Candidate], *, needs_shape: bool = True) -> Plans:
        """Candidates as columns of the cost model, in their order.

        Args:
            candidates: At least one; legal ones of the job, or reduced forms of such.
            needs_shape: Whether the model's sizes are read; a trace does without.

        Raises:
            FleetError: The accelerator is in no table.
            JobError: The model's sizes cannot be seen, or there is no candidate.
        """


class EnginePlugin(ABC):
    """A training engine by name; made without arguments, and cheap to make."""

    name: str
    knobs: Catalogue
    """The closed list of its knobs, in an order in which a knob comes after those it looks at."""
    predicted: tuple[str, ...]
    """Knobs whose values the cost model tells apart by more than its error."""
    dialect: str
    """Name of the dialect that hands its configurations out where nobody names one."""
    packages: tuple[EnginePackage, ...] = ()
    """Packages that a trial needs; planning does without."""
    no_trace: str = ""
    """Why the memory of its ranks cannot be traced; empty: it can."""
    is_driven: bool = False
    """Whether its trials can be run: a package offers its driver inside the ranks (entry points of
    the group `autotune.drivers`); else its candidates are planned, not tried."""
    lays_out: bool = False
    """Whether it lays a job out itself (`Engine.layouts`) where nobody names a space."""
    ladder_in_words: str = "the first candidate that runs"
    """What the ladder of a search's baseline looks for."""
    config_file: str
    """Name of the file that holds a candidate, below a trial's `CONFIG_DIR`."""
    advice: AdviceRules = COMMON
    """Advice for each bound of a trial, in the order in which it is given."""
    saves_memory: Sequence[tuple[str, KnobValue, str]] = ()
    """Knobs that save memory, each with the value that saves none, and the change in words, where
    `{space}` is the key that names a space: told where no trial fitted and none had another
    value."""

    def knob_of(self, key: str) -> str:
        """The knob that governs a dotted key of the configuration file; empty: none does.

        By default each knob is a key of its own.
        """
        return key if key in self.knobs else ""

    def unused_savings(self, tried: Collection[Candidate]) -> list[str]:
        """Changes of `saves_memory`, in words, that none of the candidates makes."""
        return [
            change.format(space=flag("space"))
            for knob, neutral, change in self.saves_memory
            if all(candidate.get(knob, neutral) == neutral for candidate in tried)
        ]

    def needed(self, job: Job) -> Sequence[EnginePackage]:
        """The packages that a job's trials need; fewer where it brings the engine itself."""
        return self.packages

    def read_command(
        self, command: Sequence[str], folder: Path, *, is_named: bool
    ) -> CommandJob | None:
        """The job of a command that a user starts in a folder, if its words tell it.

        None: it is none of the engine's, or only a run of it tells what it trains.

        Args:
            command: Its words.
            folder: Where it is started.
            is_named: Whether the user says that it is of this engine.

        Raises:
            JobError: It is the engine's, and cannot be searched.
        """
        return None

    def ranks_of_command(self, command: Sequence[str], folder: Path) -> tuple[int | None, int]:
        """Ranks that a command starts and their nodes, by its words and its files.

        Ranks are None where they do not say; nodes are then 1.
        """
        return None, 1

    def updates_on_host(self, knobs: Mapping[str, KnobValue]) -> bool:
        """Whether the optimizer of a candidate with these knobs runs on the host."""
        return False

    def takes_gradients(self, knobs: Mapping[str, KnobValue]) -> bool:
        """Whether each gradient goes into buffers of the engine's own as soon as it is there.

        A trace leaves those out, since the cost model counts them; else gradients stay until the
        step.
        """
        return False

    def rank_variables(self, accelerator: str, given: Mapping[str, str]) -> dict[str, str]:
        """Variables, beside those given, with which ranks on this node find what was built."""
        return {}

    def compiled(self, accelerator: str) -> Compiled:
        """Names of what `build` has built for an accelerator, and of what is missing."""
        return Compiled()

    def build(  # noqa: B027
        self,
        accelerator: str,
        note: Callable[[str], None],
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        """Build once what every trial loads, and say what is built, a line at a time.

        Args:
            accelerator: `cpu` or `cuda`.
            note: Takes a line.
            on_progress: Takes how far it is instead, where a terminal shows it in place.

        Raises:
            FleetError: A build failed; the message names its log.
        """

    @abstractmethod
    def bind(self, job: Job, environment: Environment) -> Engine:
        """The engine of a job.

        Raises:
            FleetError: The accelerator is in no table, and the engine needs its entry.
            RenderError: A template or the base configuration cannot be used.
            JobError: The job is none that the engine trains.
        """


def find_engine(name: str, *, where: str = "") -> EnginePlugin:
    """An installed engine by its name; `where` is the flag or key that named it.

    Raises:
        JobError: There is none of that name.
    """
    if name == BOTH:
        raise JobError(
            f"{where or 'engine'}: {name!r}: only a search takes both, one after the other",
            f"name one of {', '.join(plugin_names('engine'))}",
        )
    found: EnginePlugin = load_plugin("engine", name, where=where)
    return found


def known_releases(engine: str, environment: Environment) -> list[tuple[str, str]]:
    """Title and release of each package of an engine whose release an environment says.

    Nodes that are only described have none of Megatron Core, nor have those of unlike releases.
    """
    packages = find_engine(engine).packages
    found = [(package.title, environment.release_of(package.name)) for package in packages]
    return [(title, release) for title, release in found if release]


def installed_engines() -> list[EnginePlugin]:
    """All engines that are installed, by their names.

    Raises:
        JobError: One cannot be loaded.
    """
    return [find_engine(name) for name in plugin_names("engine")]


def check_installed(plugin: EnginePlugin, job: Job) -> None:
    """See that a job's trials can start on this machine.

    Raises:
        FleetError: A package that they need is missing.
    """
    for package in plugin.needed(job):
        if version_of(package.name) is None:
            raise not_installed(package.name)


def bind_engine(job: Job, environment: Environment) -> Engine:
    """The engine that a job names, for that job.

    Raises:
        JobError: There is none of that name, or it does not train the job.
        RenderError: A template or the base configuration cannot be used.
    """
    return find_engine(job.engine).bind(job, environment)
