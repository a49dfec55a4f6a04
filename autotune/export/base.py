"""A configuration to hand out, and the protocols of its writers: dialects and launchers.

A dialect writes the files of one consumer, a launcher what starts them. Both are plug-ins, found
by name under the entry-point groups `autotune.dialects` and `autotune.launchers`.
"""

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from autotune.base.errors import JobError, RenderError
from autotune.base.files import write_text
from autotune.base.templates import Templates
from autotune.base.user_text import read_text
from autotune.contract import (
    ContractError,
    EngineSettings,
    Identity,
    Layout,
    Measure,
    Role,
    TrialSpec,
    Workload,
)
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine
from autotune.job.job import Job
from autotune.record.answer import Speedup, Standing
from autotune.record.guard import GuardVerdict
from autotune.record.soak import SoakResult, digest_of
from autotune.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class Handout:
    """A configuration to hand out, with everything that an export may state of it."""

    engine: str
    job: Job
    candidate: Candidate
    environment: Environment
    """Environment in which its figures were measured, or in which it was rendered."""
    files: Mapping[str, str] = field(default_factory=dict)
    exported: Mapping[str, str] = field(default_factory=dict)
    """The same files, with what nobody tuned as the user's own file has it."""
    workload: Workload
    """Workload of a trial of it."""
    layout: Layout
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that neither of them holds, and that the training needs."""
    variables: Mapping[str, str] = field(default_factory=dict)
    study: str | None = None
    study_flags: str = ""
    """The flags by which a command finds that study."""
    figures: Standing | None = None
    """None: rendered, not tried."""
    baseline: Standing | None = None
    """The baseline that it was compared with; None: it was not."""
    is_substitute: bool = False
    """Whether that is another baseline than was asked for, since the platform ended that."""
    gain: Speedup | None = None
    """Gain over the baseline; None where there is no confirmed one."""
    guard: GuardVerdict | None = None
    """What the convergence guard says of it; None: the guard was off."""
    claim: str = ""
    """What it is where it is no proven gain, such as the baseline, in words; its README's title
    begins with it. Empty: it is proven, or from no study."""
    change: str = ""
    """What it changes in the study's baseline, in words; empty: there is none."""
    soak: SoakResult | None = None
    """A soak of this configuration; None: it was not soaked."""
    prediction: Mapping[str, Any] | None = None
    """Prediction of the cost model; None: it was not asked."""
    overridden: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Keys of the user's configuration that do not run as written: key -> (user's value, ours)."""
    carried: Collection[str] = ()
    """Keys of the configuration of a user's command that its trial saw arrive from their files."""
    hosts: Sequence[str] = ()
    """Names of the nodes on which its figures were measured, as their fleet reaches them; empty:
    they are this machine's, or nobody's."""
    is_described: bool = False
    """True if the fleet was only described: what is installed there is not known."""
    untried: str = ""
    """Settings that no recorded run has tried on such hardware, in words; empty: none."""
    release: str = ""
    """Release of the consumer that `--to` names; empty: the dialect chooses."""
    folder: Path = Path()
    """Folder of the export."""

    @property
    def per_node(self) -> int:
        """Ranks of a node: its devices, or the next fewer of which whole nodes make the world."""
        world = self.candidate.world
        return max(n for n in range(1, self.environment.n_devices + 1) if world % n == 0)

    @property
    def n_nodes(self) -> int:
        """Machines that the world takes."""
        return self.candidate.world // self.per_node


@dataclass(frozen=True, kw_only=True)
class Left:
    """What a file cannot carry."""

    what: str
    place: str
    """Where it belongs."""

    def __str__(self) -> str:
        return f"{self.what}: {self.place}"


@dataclass(frozen=True, kw_only=True)
class Patched:
    """A file of a user's, and what it is to hold."""

    path: Path
    before: str
    after: str
    diff: str
    """The change as a unified diff, secrets masked; empty where there is none."""
    changes: Sequence[str]
    left: Sequence[Left]
    """What it cannot carry, and where that belongs; of a shell file or code, all of it."""
    is_by_hand: bool
    """Whether it is a shell file or code, of which is told what to change."""

    @property
    def is_changed(self) -> bool:
        return self.before != self.after

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": str(self.path),
            "diff": self.diff,
            "changes": list(self.changes),
            "left": [{"what": one.what, "place": one.place} for one in self.left],
        }

    def write(self) -> None:
        """Write it in place of the file that was read.

        Raises:
            RenderError: The folder cannot be written to, or the file changed meanwhile.
        """
        path = self.path.resolve()
        if read_text(path) != self.before:
            raise RenderError(f"{self.path}: changed since its diff was made", "run it again")
        write_text(
            path, self.after, error=RenderError, hint="check the folder", makes_folder=False
        )


class Launcher(ABC):
    """One way to start a script on all ranks."""

    @abstractmethod
    def files(self, handout: Handout, script: str, templates: Templates) -> dict[str, str]:
        """Files that start the script with the candidate's world and variables.

        Returns:
            Path below the export folder -> text; what ends in `.sh` is made executable.

        Raises:
            RenderError: A template does not render.
        """

    @abstractmethod
    def usage(self, handout: Handout, script: str, templates: Templates) -> str:
        """How to start it, as Markdown for a README; arguments and errors as of `files`."""


class NodeLauncher(Launcher):
    """One way to start the nodes of a run, such as a cluster's scheduler.

    The script that it starts is the `launch.sh` of the dialect's launcher of ranks: every node
    runs that.
    """


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Files of a launcher for a handout."""

    name: str
    files: Mapping[str, str]
    usage: str


class Dialect(ABC):
    """One consumer's files for a configuration."""

    engines: ClassVar[tuple[str, ...]]
    """Names of the engines whose configurations it writes."""
    has_releases: ClassVar[bool] = False
    """Whether what it writes differs by the consumer's release, which `NAME@RELEASE` names."""
    script: ClassVar[str]
    """Path of the script in its files that a launcher starts. One that ends in `.sh` is sourced,
    and leaves the program to start in the array `PROGRAM`."""
    launcher: ClassVar[str] = "torchrun"
    """Name of the launcher that starts the script where nobody names one, and the ranks of each
    node where that starts nodes; empty: none does, since the consumer starts its own."""
    only_launcher: ClassVar[str] = ""
    """Why no other launcher of ranks can start the script; empty: others can."""

    @abstractmethod
    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        """The files of an export, those of its launcher apart.

        Raises:
            RenderError: A template does not render.
        """

    def patched(
        self, paths: Sequence[Path], handout: Handout, engine: Engine
    ) -> Sequence[Patched]:
        """Files of one training that the user has, with a configuration in them.

        Raises:
            RenderError: A file cannot be read, or its text cannot be changed.
            JobError: A file is none that is patched.
        """
        raise JobError.of("export.not_patched", handout=handout)

    def refusals(
        self, path: Path, *, world: int, environment: Environment
    ) -> Sequence[tuple[str, str]]:
        """What is wrong with a consumer's file as it is written, each with its fix.

        Raises:
            RenderError: It cannot be read.
        """
        return ()

    def read(self, folder: Path, environment: Environment, *, measure: Measure) -> "Subject":
        """An export read back, for a soak of it.

        Raises:
            JobError: The folder holds no such export, or these files are not read back.
        """
        raise JobError.of("export.not_read_back", folder=folder, kind=type(self).__name__)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A configuration to soak."""

    source: str
    folder: Path
    trial: int | None = None
    spec: TrialSpec
    files: dict[str, str]
    preparation: tuple[str, ...]
    """Command that builds what its ranks load: see `Engine.preparation`."""
    n_params: int | None = None
    """None: nobody knows how large a checkpoint will be."""


@contextlib.contextmanager
def reading_export(folder: Path, dialect: str) -> Iterator[None]:
    """Read an export back inside: whatever its files lack is an error of the folder.

    Raises:
        JobError: A file is missing or damaged, or says something that no export does.
    """
    try:
        yield
    except (ContractError, KeyError, TypeError, ValueError) as error:
        raise JobError.of(
            "export.no_export", folder=folder, error=error, dialect=dialect
        ) from error


def subject_of(
    folder: Path,
    settings: Mapping[str, Any],
    files: dict[str, str],
    workload: Workload,
    layout: Layout,
    *,
    engine: str,
    expected: dict[str, Any],
    environment: Environment,
    measure: Measure,
    preparation: tuple[str, ...] = (),
) -> Subject:
    """An export read back, for a soak within the memory that it was tuned for, if that is here.

    Raises:
        KeyError: The settings lack one.
        ValueError: The memory limit is no whole number.
    """
    limit_bytes = settings.get("memory_limit_bytes")
    if limit_bytes is not None:
        limit_bytes = min(whole(settings, "memory_limit_bytes"), environment.device_memory_bytes)
    digest = digest_of(files)[:12]
    spec = TrialSpec(
        identity=Identity(
            study=folder.name, number=0, role=Role.SOAK, candidate_hash=digest, knobs={}
        ),
        layout=layout,
        workload=workload,
        engine=EngineSettings(
            name=engine,
            expected=expected,
            environment=dict(settings["environment_variables"]),
            binds_cores=bool(settings["binds_cores"]),
        ),
        measure=dataclasses.replace(measure, memory_limit_bytes=limit_bytes),
    )
    return Subject(
        source=str(folder), folder=folder, spec=spec, files=files, preparation=preparation
    )


def whole(settings: Mapping[str, Any], name: str, *, least: int = 1) -> int:
    """A setting of an export that is a whole number.

    Raises:
        ValueError: It is none.
    """
    value = settings[name]
    if type(value) is not int or value < least:
        raise ValueError(f"{name}: {str(value)[:60]!r} is not a whole number from {least}")
    return value
