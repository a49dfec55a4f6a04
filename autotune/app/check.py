"""`check`: read a configuration with what goes with it, judge it, write the fix."""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from autotune.base.errors import JobError, RenderError
from autotune.base.flags import flag
from autotune.base.names import did_you_mean
from autotune.base.user_text import read_text
from autotune.check import CheckReport, NotADsConfigError, Source, check, read_all
from autotune.check.fixes import parse_chosen
from autotune.check.ignored import known_rules
from autotune.check.run import CheckRun, Unread
from autotune.check.targets import targets_of
from autotune.devices.hardware import Environment, cpu_precisions, version_of
from autotune.engines.deepspeed.rules.releases import NEWEST_READ
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.engines.deepspeed.sources.kinds import NotFollowedError, UnknownNameError
from autotune.engines.deepspeed.sources.launch import read_launch
from autotune.engines.deepspeed.sources.layout import ACCELERATORS
from autotune.engines.deepspeed.sources.reading import may_be_meant
from autotune.engines.launches.files import SHELL_SUFFIXES, may_launch
from autotune.engines.megatron.flags import known_release, release_of

if TYPE_CHECKING:
    from autotune.engines.megatron.launched import MegatronLaunch

_MOST_ACCELERATORS = 1_000_000
"""Limit above any machine there is: more is a slip of the key."""
_NO_FILE = "<dict>"
"""Name of a configuration that stands in no file."""


@dataclass(frozen=True, kw_only=True)
class CheckFlags:
    """Arguments of `autotune.check` that are about the files."""

    world: int | None = None
    launch: str | None = None
    accelerate: Path | None = None
    consumer: str | None = None
    accelerator: str | None = None
    deepspeed_version: str | None = None
    megatron_release: str | None = None
    megatron_path: Path | None = None
    gpu: str | None = None
    choose: Sequence[str] = ()
    ignore: Sequence[str] = ()

    @cached_property
    def on_gpu(self) -> dict[str, Any]:
        """The fields of a launch that the kind of GPU says; a JobError where it is not known."""
        from autotune.engines.megatron import launched  # as in `_launches`

        return {} if self.gpu is None else launched.on_gpu(self.gpu, where=flag("gpu"))

    def check(self) -> None:
        """Raise a JobError where a flag is not one of its values."""
        flags = (
            ("accelerator", self.accelerator, ACCELERATORS),
            ("consumer", self.consumer, tuple(Consumer)),
        )
        for name, value, known in flags:
            if value is not None and value not in known:
                guess = did_you_mean(value, known, most=1)
                one_of = ", ".join(known)
                raise JobError(f"{flag(name)} {value} is not known", f"{guess}say one of {one_of}")
        if self.world is not None and not 1 <= self.world <= _MOST_ACCELERATORS:
            raise JobError.of("app.world_out_of_range", world=self.world, most=_MOST_ACCELERATORS)
        if self.deepspeed_version is not None:
            try:
                Version(self.deepspeed_version)
            except InvalidVersion as error:
                raise JobError.of(
                    "app.no_version", deepspeed_version=self.deepspeed_version
                ) from error
        _ = self.gpu and self.on_gpu  # refuses an unknown name
        if self.megatron_release is not None:
            known_release(self.megatron_release, where=flag("megatron_release"))
        known_rules(self.ignore, flag("ignore"))
        if self.launch is not None:
            read_launch(self.launch)


def check_files(names: Sequence[str], flags: CheckFlags, *, fix: bool = False) -> CheckRun:
    """Judge files, folders and patterns of files, or standard input (`-`); `fix` writes the fixes.

    Raises:
        JobError: A flag is not one of its values, or a name stands for no file.
    """
    flags.check()
    reports: list[CheckReport] = []
    unread: list[Unread] = []
    others: list[Path] = []
    not_followed: list[Unread] = []
    launched: set[Path] = set()
    targets = targets_of(names)
    if flags.choose and len(targets) > 1:
        raise JobError.of("app.choice_of_several", flags=flags, n_targets=len(targets))
    checked = {target.path.resolve() for target in targets}
    used: set[tuple[Path, tuple[str, ...]]] = set()
    for target in targets:
        path = target.path
        if (is_meant := target.is_named) and len(targets) > 1:
            from autotune.export.door import MARKER_FILE  # loads the job: most calls go without

            # Of an export's own `folder/*` nobody means what lies beside its configuration.
            is_meant = not (path.parent / MARKER_FILE).is_file()
        if path.resolve() in launched and not is_meant:
            continue  # it was judged as its launch uses it
        try:
            found = check_file(path, flags, fix=fix, checked=checked, used=used)
        except (JobError, RenderError) as error:
            one = Unread(path=path, error=error)
            if is_meant:
                unread.append(one)
            elif (
                type(error) is NotADsConfigError or path.suffix == ".md" or not may_be_meant(path)
            ):
                others.append(path)
            else:
                is_open = isinstance(error, NotFollowedError | UnknownNameError)
                (not_followed if is_open else unread).append(one)
            continue
        reports += found
        failed = (error for report in found for error in report.source.failed_launches)
        unread += [Unread(path=path, error=error) for error in failed]
        if path.suffix in SHELL_SUFFIXES:
            launched |= {one.resolve() for report in found for one in report.source.files}
    return CheckRun(
        reports=reports,
        unread=unread,
        others=others,
        not_followed=not_followed,
        is_one_file=len(targets) == 1 and targets[0].is_named,
    )


def check_config(config: Mapping[str, Any], flags: CheckFlags) -> CheckRun:
    """Judge one configuration that stands in no file.

    Raises:
        JobError: A flag is not one of its values, or the configuration holds what is no JSON.
    """
    flags.check()
    try:
        text = json.dumps(config, indent=2)
    except (TypeError, ValueError) as error:
        raise JobError.of("app.dict_is_no_json", error=error) from error
    path = Path(_NO_FILE)
    try:
        reports = [_judged(source, flags) for source in _read(path, flags, text=text)]
    except (NotADsConfigError, RenderError) as error:
        unread = Unread(path=path, error=error)
        return CheckRun(reports=[], unread=[unread], is_one_file=True)
    return CheckRun(reports=reports, is_one_file=True)


def check_file(
    path: Path,
    flags: CheckFlags,
    *,
    fix: bool = False,
    checked: Container[Path] = (),
    used: set[tuple[Path, tuple[str, ...]]] | None = None,
) -> list[CheckReport]:
    """Judge the configurations of one file.

    Args:
        path: The file.
        flags: What is said of it.
        fix: Whether to write the fixes.
        checked: Files that are checked themselves, resolved: a fix may be written into one,
            though another file names it.
        used: Configurations that launches use, which are added: the fix for one more launch is not
            written, as it may break the first.

    Raises:
        RenderError: A file cannot be read, or its folder not be written to.
        NotADsConfigError: It holds no DeepSpeed configuration.
        JobError: What the launch line or another file says is not one of its values.
    """
    is_asked = may_launch(path) or (flags.launch is not None and path.suffix == ".py")
    launches = _launches(path, flags) if is_asked else []
    try:
        sources = _read(path, flags)
    except (JobError, RenderError) as error:
        if any(launch.is_megatrons for launch in launches):
            return _of_launches(launches, flags)
        if not isinstance(error, NotADsConfigError):
            raise
        if launches := launches if is_asked else _launches(path, flags):  # settings, too
            return _of_launches(launches, flags)
        raise _of_megatron(error) from error
    if not any(source.has_deepspeed for source in sources):
        launches = launches if is_asked else _launches(path, flags)
    if launches:
        lines = {_line_of(one): one.is_megatrons for one in launches}
        # Those of a file alone are its own arguments; of some lines nobody is sure.
        sure = [lines.get(one.launch_at[1]) if one.launch_at else False for one in sources]
        judged = zip(sources, sure, strict=True)
        sources = [s for s, yes in judged if not yes and (yes is None or s.has_deepspeed)]
    reports: list[CheckReport] = []
    for number in range(len(sources)):
        source = sources[number]
        place = (source.path.resolve(), source.at)
        is_checked = place[0] in checked and (used is None or place not in used)
        if used is not None and source.path != source.asked:
            used.add(place)
        report = _judged(replace(source, is_checked=is_checked), flags)
        reports.append(report)
        if fix and write_fix(report) and number + 1 < len(sources):
            sources = _read(path, flags)  # the text of the others has moved
    return [*reports, *_of_launches(launches, flags)] if launches else reports


def _line_of(launch: "MegatronLaunch") -> int:
    """The line on which the command of a launch begins."""
    lines = launch.text[: launch.start].split("\n")
    while len(lines) > 1 and lines[-2].rstrip().endswith("\\"):
        lines.pop()
    return len(lines)


def _of_launches(launches: Sequence["MegatronLaunch"], flags: CheckFlags) -> list[CheckReport]:
    """The reports of trainings with Megatron's arguments.

    Raises:
        JobError: A choice by number is made, or a checkout cannot be asked.
    """
    from autotune.check.megatron import check_launch  # brings NumPy

    if flags.choose:
        raise JobError.of("app.choice_of_launch", flags=flags)
    environment = _environment(flags.accelerator or "cuda", flags.deepspeed_version)
    given: dict[str, Any] = {"world": flags.world, "ignore": flags.ignore}
    given["checkout"] = flags.megatron_path
    return [check_launch(launch, environment, **given) for launch in launches]


def _launches(path: Path, flags: CheckFlags) -> list["MegatronLaunch"]:
    """The trainings of Megatron-LM's that a file starts; empty: it starts none."""
    if not path.is_file():
        return []
    from autotune.engines.megatron import launched  # reads shells, which most files are not

    named = flags.megatron_release and known_release(
        flags.megatron_release, where=flag("megatron_release")
    )
    if flags.megatron_path is not None:
        named = known_release(release_of(flags.megatron_path), where=flag("megatron_path"))
    found = launched.launches_as_written(
        path,
        installed=version_of("megatron-core") or "",
        named=named,
        line=flags.launch or "",  # in place of the file's own
    )
    return [replace(launch, **flags.on_gpu) for launch in found]


def _of_megatron(error: NotADsConfigError) -> NotADsConfigError:
    """The error about a file that holds arguments of Megatron-LM's, and no training of it."""
    from autotune.engines.megatron.launched import sets_arguments  # as in `_launches`

    path = error.path
    is_followed = type(error) is NotADsConfigError and path.is_file() and may_launch(path)
    if not (is_followed and sets_arguments(read_text(path), path)):
        return error
    return NotADsConfigError(
        path,
        error.kind,
        message=f"{path}: has arguments of Megatron-LM, and starts no training of it",
        hint="name the file that starts the script with these arguments, and may source this one",
    )


def _read(path: Path, flags: CheckFlags, *, text: str | None = None) -> list[Source]:
    return read_all(
        path,
        text=text,
        world=flags.world,
        launch=flags.launch,
        accelerate=flags.accelerate,
        consumer=None if flags.consumer is None else Consumer(flags.consumer),
    )


def _judged(source: Source, flags: CheckFlags) -> CheckReport:
    where = flags.accelerator or source.accelerator or "cuda"
    environment = _environment(where, flags.deepspeed_version)
    return check(source, environment, list(map(parse_chosen, flags.choose)), flags.ignore)


def write_fix(report: CheckReport) -> bool:
    """Write the fixed text in place of the file that was named, aside first, and of no other.

    Returns:
        Whether it was written: not where the file would not run afterwards.

    Raises:
        RenderError: The folder cannot be written to.
    """
    if report.fixed_text is None or not report.is_written(fixed=True):
        return False
    from autotune.base.files import write_text  # with what goes into trials, as most need not

    path = report.source.path.resolve()
    write_text(path, report.fixed_text, error=RenderError, hint="check the folder")
    return True


def _environment(accelerator: str, deepspeed_version: str | None) -> Environment:
    """The environment that it would run in, as far as rules look; they do not look at memory."""
    is_cpu = accelerator == "cpu"
    return Environment(
        accelerator=accelerator,
        n_devices=1,
        device_name="this machine's CPU" if is_cpu else f"any {accelerator} device",
        device_memory_bytes=0,
        peak_flops=None,
        deepspeed_version=deepspeed_version or version_of("deepspeed") or NEWEST_READ,
        torch_version=version_of("torch") or "",
        precisions=cpu_precisions() if is_cpu else ("fp32", "bf16", "fp16"),
        has_deep_ep=True,  # the machine that checks need not be one that trains
    )
