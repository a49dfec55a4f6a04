"""`autotune.check`: what is wrong with a configuration, as a value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from autotune.app.api.calls import each_of
from autotune.app.check import CheckFlags, check_config, check_files
from autotune.base.errors import JobError
from autotune.base.flags import called
from autotune.check.run import CheckRun
from autotune.report.check.text import print_run
from autotune.report.shown import Shown


@dataclass(frozen=True, kw_only=True, repr=False)
class Checked(Shown[CheckRun]):
    """What was found in some configurations."""

    fix: bool
    strict: bool

    @property
    def passes(self) -> bool:
        """Whether all of them would run; with `strict` also whether nothing is warned of."""
        return not self.value.exit_code(fixed=self.fix, strict=self.strict)

    @property
    def findings(self) -> list[dict[str, Any]]:
        """One per thing that is wrong: file, rule, level, line, message, fix, consequence."""
        return [
            {"file": str(report.source.path), **found.to_dict()}
            for report in self.value.reports
            for found in report.found
        ]

    @property
    def fixed(self) -> list[str | None]:
        """The text of each configuration after the fix; None where nothing changes."""
        return [report.fixed_text for report in self.value.reports]


def check(
    *files: str | Path | Mapping[str, Any],
    world: int | None = None,
    accelerate: str | Path | None = None,
    launch: str | None = None,
    consumer: str | None = None,
    accelerator: str | None = None,
    deepspeed_version: str | None = None,
    megatron_release: str | None = None,
    megatron_path: str | Path | None = None,
    gpu: str | None = None,
    fix: bool = False,
    choose: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    strict: bool = False,
) -> Checked:
    """Say what is wrong with configurations, as `autotune check` does.

    Args:
        files: Files, folders or patterns; or one configuration as a dict.
        world: Accelerators of the run; None: as files and line say.
        accelerate: The accelerate YAML that goes with them.
        launch: The line that starts the training.
        consumer: Who reads them: `deepspeed`, `trainer` or `accelerate`; None: as files say.
        accelerator: Where they will run: `cuda` or `cpu`.
        deepspeed_version: The release; None: the installed one.
        megatron_release: The release, for a launch of Megatron-LM.
        megatron_path: A checkout of Megatron-LM, whose own checks are asked.
        gpu: Its GPUs, such as `A100`, for a launch of Megatron-LM.
        fix: Whether to write the fixes into the files.
        choose: Choices to take, `RULE=N` each.
        ignore: Rules to leave out, such as `zero.*`.
        strict: Whether a warning fails, too.

    Raises:
        JobError: A flag is not one of its values. A file that is not there is in `value.unread`.

    Example:
        >>> found = autotune.check({"bf16": {"enabled": True}, "fp16": {"enabled": True}})
        >>> found.passes
        False
    """
    flags = CheckFlags(
        world=world,
        launch=launch,
        accelerate=None if accelerate is None else Path(accelerate),
        consumer=consumer,
        accelerator=accelerator,
        deepspeed_version=deepspeed_version,
        megatron_release=megatron_release,
        megatron_path=None if megatron_path is None else Path(megatron_path),
        gpu=gpu,
        choose=each_of(choose),
        ignore=each_of(ignore),
    )
    found = _found(files, flags, fix=fix)

    def show(console: Console) -> None:
        with called("check"):  # it is shown when the call is over
            print_run(console, found, fixed=fix, quiet=False, strict=strict)
        for one in found.unread:
            console.print(Text(str(one)))

    return Checked(
        value=found,
        show=show,
        data=lambda: found.to_dicts(fixed=fix),
        fix=fix,
        strict=strict,
    )


def _found(
    files: Sequence[str | Path | Mapping[str, Any]], flags: CheckFlags, *, fix: bool
) -> CheckRun:
    names = [str(file) for file in files if not isinstance(file, Mapping)]
    configs = [file for file in files if isinstance(file, Mapping)]
    if not configs and names:
        return check_files(names, flags, fix=fix)
    if len(configs) != 1 or names:
        raise JobError.of("app.files_and_dicts", n_names=len(names), n_configs=len(configs))
    if fix:
        raise JobError.of("app.dict_without_file")
    return check_config(configs[0], flags)
