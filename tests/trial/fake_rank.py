"""A rank that ends by an exception, for tests of what is done in one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from autotune.contract import TrialSpec
from autotune.trial.reporter import Reporter


class Ended(BaseException):
    """The rank has ended, with everything measured."""


def fake_rank(folder: Path, spec: TrialSpec, **more: Any) -> Any:
    """A rank of a trial in the folder."""
    (folder / "ranks").mkdir()
    return SimpleNamespace(
        folder=folder,
        spec=spec,
        reporter=Reporter(folder, 0, 0.0),
        meter=SimpleNamespace(settle=lambda: None, lift=lambda: None, read=lambda: {"peak": 1}),
        diagnostic_pass=None,
        finish=_finish,
        fail=_fail,
        **more,
    )


def _finish() -> NoReturn:
    raise Ended


def _fail(error: BaseException) -> NoReturn:
    raise error
