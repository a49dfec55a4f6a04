"""Searches as somebody asks for them, from a terminal or from Python: planned, agreed to, run."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from autotune.app.consent import agree_to_job
from autotune.app.gate import reference_of
from autotune.app.own_script import open_command_session, study_name
from autotune.app.run import search
from autotune.app.session import (
    both_engines,
    find_place,
    obtained_fleet,
    open_session,
    plan_search,
    read_job,
)
from autotune.app.steering import prospect
from autotune.app.worth import run_ladder
from autotune.base.errors import JobError, NothingFeasibleError
from autotune.base.flags import flag, switch
from autotune.base.text import Ask, Say
from autotune.contract import Origin
from autotune.devices.hardware import Environment
from autotune.fleet.options import NO_OPTIONS, FleetOptions
from autotune.job.job import JobText, given_keys
from autotune.record.answer import SearchAnswer
from autotune.record.worth import Ladder
from autotune.search.base import Observer
from autotune.search.plan import Plan
from autotune.search.session import Session

Found = tuple[SearchAnswer, Ladder | None]
"""The answer of a search; and what each change to the best is worth, where that was asked for."""


def run_searches(
    flags: Mapping[str, Any],
    *,
    results: Path,
    watch: Callable[[Session], AbstractContextManager[Observer]],
    command: Sequence[str] = (),
    job_file: Path | None = None,
    fleet: str = "local",
    options: FleetOptions = NO_OPTIONS,
    fresh: bool = False,
    dry_run: bool = False,
    force: bool = False,
    trust_job: bool = False,
    with_ladder: bool = False,
    knowledge: Path | None = None,
    is_one: bool = False,
    say: Say = lambda _: None,
    ask: Ask | None = None,
    ask_for_nodes: Say | None = None,
    show_plan: Callable[[Plan], None] = lambda _: None,
    confirm: Callable[[bool], bool] = lambda is_hopeful: is_hopeful,
) -> list[Found]:
    """Run the searches that somebody asks for, or go on with them: mostly one.

    There is one for each kind of device or engine where that is asked for. An interrupted one is
    the last. Of a dry run there are none. Arguments and errors are those of `autotune.search`.

    Besides:
        flags: Keys of the job; they come before the file's.
        watch: Makes what is shown a search.
        dry_run: Whether to end with the plan.
        is_one: Whether only one search may come of it, of one engine and on one kind of device.
        say: Told what is worth a line, once.
        ask: Asked whether a job is to be trusted; None: nobody is there to answer.
        ask_for_nodes: Told what is asked of a cluster, before it is; may raise. None: it is said.
        show_plan: Shown each search before it runs.
        confirm: Asked to run what was shown, and told whether any trial is predicted to succeed.
            Raises where somebody says no; without anybody to ask, what is hopeless does not run.
    """
    say = _once(say)
    if command and job_file is not None:
        raise JobError.of("app.job_beside_command")
    text = None
    if not command:
        text = agree_to_job(job_file, flags, is_trusted=trust_job, say=say, ask=ask)
    begins_anew = fresh and not command  # a command's study is set aside before it runs
    found: list[Found] = []
    with obtained_fleet(fleet, options, say=say, agree=ask_for_nodes or say) as held:

        def open_one(wanted: Mapping[str, Any], taken: FleetOptions, ending: str) -> Session:
            on: dict[str, Any] = {"results": results, "fleet": held, "options": taken}
            if command:
                return open_command_session(command, wanted, fresh=fresh, note=say, **on)
            return open_session(text, wanted, study_ending=ending, **on)

        def run_one(session: Session, taken: FleetOptions) -> Found | None:
            is_named = bool(command) or "model" in given_keys(text, session.place.flags)
            for remark in _remarks(session, is_named=is_named):
                say(remark)
            expected = prospect(session, fresh=begins_anew, knowledge=knowledge)
            if not dry_run and session.study.folder.exists():
                session.study.lock()  # whoever cannot have it is told before the plan
                session.study.unlock()
            show_plan(plan_search(session, expected, fresh=begins_anew))
            if dry_run:
                return None
            is_hopeful = expected is None or not expected.problem or force
            runs = session.place.origin is Origin.MEASURED  # else there is no price to agree to
            if not (confirm(is_hopeful) if runs else is_hopeful) and expected is not None:
                raise NothingFeasibleError(
                    expected.problem, f"{expected.nearest}; or {switch('force')}"
                )
            with watch(session) as observer:
                answer = search(session, observer, fresh=begins_anew, knowledge=knowledge)
            if with_ladder and answer.nothing_to_explain:
                say(f"no ladder: {answer.nothing_to_explain}")
            if not with_ladder or answer.nothing_to_explain:
                return answer, None
            return answer, run_ladder(answer.study, note=say, fleet=held, options=taken)

        for of_kind, taken in _of_each_kind(flags, text, command, held, options, is_one=is_one):
            engines = [(dict(of_kind), "")] if command else both_engines(text, of_kind)
            if is_one and len(engines) > 1:
                names = " and ".join(str(wanted["engine"]) for wanted, _ in engines)
                raise JobError.of("app.both_engines", names=names)
            for wanted, ending in engines:
                one = run_one(open_one(wanted, taken, ending), taken)
                if one is not None:
                    found.append(one)
                    if one[0].interrupted:
                        return found
    return found


def answer_as_dict(answer: SearchAnswer, ladder: Ladder | None) -> dict[str, Any]:
    """What `search --json` prints: the answer, what a gate needs, and perhaps the ladder."""
    reference = reference_of(answer.study)
    data = {**answer.to_dict(), "reference": reference and asdict(reference)}
    return data if ladder is None else {**data, "ladder": asdict(ladder)}


def _once(say: Say) -> Say:
    """Says no line twice: a command's first run and several searches have the same remarks."""
    lines: set[str] = set()

    def say_once(line: str) -> None:
        if line not in lines:
            lines.add(line)
            say(line)

    return say_once


def _of_each_kind(
    flags: Mapping[str, Any],
    text: JobText | None,
    command: Sequence[str],
    fleet: str,
    options: FleetOptions,
    *,
    is_one: bool,
) -> Iterator[tuple[Mapping[str, Any], FleetOptions]]:
    """Flags and options for each kind of device; a study is named after job and kind."""
    if not options.is_of_each_kind:
        yield flags, options
        return
    if is_one:
        raise JobError.of("app.each_kind", options=options)
    place = find_place(fleet, None, {}, replace(options, kind=""))
    kinds: dict[str, Environment] = {}
    for environment in place.node_environments():
        kinds.setdefault(environment.device_name, environment)
    for kind, environment in kinds.items():
        name = flags.get("study")
        if name is None and command:
            name = study_name(command, os.getcwd())
        elif name is None:
            name = read_job(text, flags, environment)[0].study
        study = f"{name}-{re.sub(r'[^a-z0-9]+', '-', kind.lower()).strip('-')}"
        yield {**flags, "study": study}, replace(options, kind=f"={kind}")


def _remarks(session: Session, *, is_named: bool) -> Iterator[str]:
    """What to know before the plan: whose model it is, and what its figures will be worth."""
    if not is_named:
        yield (
            f"no {flag('model')} is given: the built-in {session.job.model.name} is tuned. For "
            "your own "
            "training: autotune search -- torchrun train.py --deepspeed ds.json"
        )
    if session.users is not None:
        engine, candidate = session.users
        yield from engine.not_carried(candidate, session.job.baseline)
    yield from session.place.remarks(session.job.world)
