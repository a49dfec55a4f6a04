"""Faults that somebody else brings: jobs and secrets."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autotune.app.consent import agree_to_job
from autotune.base.errors import JobError
from autotune.job.origin import is_inside
from tests.chaos import planted
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, must

_JOB: dict[str, Any] = {"model": "gpt2", "seq_len": 8, "global_batch": 2, "world": 2}
_DEEDS: dict[str, dict[str, Any]] = {
    "a factory": {"model": "evil:build"},
    "a factory in a package": {"model": "evil.deep.models:build"},
    "a model's folder": {"model": "./model"},
    "templates": {"templates": "t"},
    "a baseline": {"baseline": "/etc/shadow"},
    "a base configuration": {"base_config": "../ds.json"},
    "accelerators": {"accelerators": "a.yaml"},
    "lengths": {"lengths": "l.csv"},
    "a histogram": {"lengths": {"histogram": "l.csv"}},
    "a disk": {"nvme_path": "/"},
}


def faults() -> Iterator[Fault]:
    """All of them."""
    for subject, cases, inject in (
        ("job of somebody else", _DEEDS, _deed),
        ("secret in a configuration", planted.SECRETS, planted.plant),
    ):
        for number, case in enumerate(cases):
            yield Fault(
                name=f"{subject}: {case}",
                inject=functools.partial(inject, case),
                in_short=number == 0,
            )
    for subject, name, inject_one in (
        ("job of somebody else", "through a link", _linked),
        ("job of somebody else", "one's own, which everybody may write", _anybodys),
    ):
        yield Fault(name=f"{subject}: {name}", inject=inject_one, in_short=False)


def _deed(case: str, ground: Ground) -> None:
    job = ground.folder() / "job.yaml"
    job.write_text(json.dumps({**_JOB, **_DEEDS[case]}))
    _must_ask(job)


def _linked(ground: Ground) -> None:
    job, here = ground.folder() / "job.yaml", ground.folder()
    job.write_text(json.dumps({**_JOB, **_DEEDS["a factory"]}))
    link = here / "job.yaml"
    link.symlink_to(job)
    must(not is_inside(link, here), "a link is taken for a file of one's own")
    _must_ask(job)


def _anybodys(ground: Ground) -> None:
    job = ground.folder() / "job.yaml"
    job.write_text(json.dumps({**_JOB, **_DEEDS["a factory"]}))
    must(is_inside(job, job.parent), "one's own file is none")
    job.chmod(0o666)
    must(not is_inside(job, job.parent), "a file that everybody may write is taken for one's own")
    _must_ask(job)


def _must_ask(job: Path) -> None:
    """See that a job is refused with nobody there, and read when somebody agrees."""
    said: list[str] = []
    agree = functools.partial(agree_to_job, job, {}, is_trusted=False, say=said.append)
    _refused(JobError, lambda: agree(ask=None), "--trust-job")
    must(said == [], f"something was done: {said}")
    _refused(JobError, lambda: agree(ask=lambda _: False), "not trusted")
    must(agree(ask=lambda _: True), "an agreed job is not read")


def _refused(kind: type[Exception], call: Callable[[], object], said: str) -> None:
    try:
        call()
    except kind as error:
        must(said in str(error), f"the reason is another: {error}")
    else:
        must(False, "it was believed")
