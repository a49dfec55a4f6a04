"""One call of a search, from a terminal or from Python: what it asks, plans, runs and returns."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.app.consent import agree_to_job
from autotune.app.kinds import WHOLE, BudgetShare, Rounds
from autotune.app.own_baseline import not_carried
from autotune.app.own_script import open_command_session, study_name
from autotune.app.pages import compare_studies
from autotune.app.run import SearchEnding
from autotune.app.run import search as run
from autotune.app.session import (
    Session,
    both_engines,
    find_far_place,
    obtained_fleet,
    open_session,
    plan_search,
    read_job,
)
from autotune.app.steering import prospect
from autotune.app.worth import run_ladder
from autotune.base.errors import JobError, NothingFeasibleError
from autotune.cost.knowledge import file_for
from autotune.devices.hardware import Environment
from autotune.fleet.options import NO_OPTIONS, FleetOptions
from autotune.report.compare.kinds import leading_kinds
from autotune.search.base import Observer, Snapshot
from autotune.search.plan import Plan


@dataclass(frozen=True, kw_only=True)
class SearchCall:
    """What somebody asks of a search, in the words of the command's flags."""

    flags: Mapping[str, Any]
    """Keys of the job; they come before the file's."""
    job_file: Path | None = None
    agreed: Mapping[str, Any] | None = None
    """What that file held when the user was asked about it."""
    command: Sequence[str] = ()
    """The user's own training command; empty: the job says what is trained."""
    results: Path
    """Folder of all studies."""
    fleet: str = "local"
    options: FleetOptions = NO_OPTIONS
    fresh: bool = False
    """Whether an old study is set aside."""
    dry_run: bool = False
    """Whether to end with the plan."""
    force: bool = False
    """Whether to search even where no trial is predicted to succeed."""
    trust_job: bool = False
    """Whether a job from outside this folder may run and read what it names."""
    with_ladder: bool = False
    """Whether a gain is explained change by change."""
    metrics_file: Path | None = None
    knowledge: Path | None = None
    """File of what earlier studies taught; None: the one in the user's cache."""
    no_knowledge: bool = False
    is_one: bool = False
    """Whether only one search may come of it, of one engine and on one kind of device."""
    study_ending: str = ""
    """See `open_session`."""
    is_first: bool = True
    """Whether it is the first of its call: what holds for all of them is said with it."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Whoever calls a search, and what they are told and asked; by default nothing."""

    say: Callable[[str], None] = lambda _: None
    """Told what is worth a line."""
    trust: Callable[[str], bool] | None = None
    """Asked whether a job is to be trusted; None: nobody is there to answer."""
    ask_for_nodes: Callable[[str], None] | None = None
    """Told what is asked of a cluster, before it is; may raise. None: it is said."""
    show_plan: Callable[[Plan], None] = lambda _: None
    """Shown each search before it runs."""
    confirm: Callable[[bool], bool] = lambda is_hopeful: is_hopeful
    """Asked to run what was shown, and told whether any trial is predicted to succeed. Raises
    where somebody says no; without anybody to ask, what is hopeless does not run."""
    watch: Callable[[Session], AbstractContextManager[Observer]] = field(
        default=lambda _: nullcontext(Silent())
    )
    """Makes what is shown the search."""


class Silent(Observer):
    """An observer that shows nothing."""

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Nothing to do."""

    def on_note(self, note: str) -> None:
        """Nothing to do."""


def run_searches(call: SearchCall, caller: Caller) -> list[SearchEnding]:
    """Run the searches that a call asks for, or go on with them: mostly one.

    There is one for each kind of device or engine where that is asked for. An interrupted one is
    the last. Of a dry run there are none.

    Raises:
        JobError: A flag, the job, the space, the fleet or a file that it names is not valid.
        RenderError: A template or the base configuration does not render.
        StudyError: The results cannot be written there, or another search holds the study.
        FleetError: The devices are not there, or a package that the engine needs.
        NothingFeasibleError: The rules refuse every candidate, or no trial is predicted to
            succeed and nobody wants to try.
    """
    if call.command and call.job_file is not None:
        raise JobError("--job: your command says what it trains", "leave --job out")
    if not call.command:
        agreed = agree_to_job(
            call.job_file,
            call.flags,
            is_trusted=call.trust_job,
            say=caller.say,
            ask=caller.trust,
        )
        call = replace(call, agreed=agreed)
    endings: list[SearchEnding] = []
    agree = caller.ask_for_nodes or caller.say
    with obtained_fleet(call.fleet, call.options, say=caller.say, agree=agree) as held:
        calls = _single_searches(replace(call, fleet=held))
        if call.options.chooses_kind:
            return _run_in_rounds(list(calls), caller)
        for one in calls:
            ending = _run_one(one, caller)
            if ending is not None:
                endings.append(ending)
                if ending.answer.interrupted:
                    break
    return endings


def _single_searches(call: SearchCall) -> Iterator[SearchCall]:
    """The call once for each kind of device and each engine that it asks for."""
    is_first = True
    for of_kind in _of_each_kind(call):
        engines = [(dict(of_kind.flags), "")]
        if not call.command:
            engines = both_engines(call.job_file, of_kind.flags, call.agreed)
        if call.is_one and len(engines) > 1:
            names = " and ".join(str(flags["engine"]) for flags, _ in engines)
            raise JobError(
                f"engine both: that is a search for each of {names}",
                "search once for each, then compare the studies",
            )
        for flags, ending in engines:
            yield replace(of_kind, flags=flags, study_ending=ending, is_first=is_first)
            is_first = False


def _of_each_kind(call: SearchCall) -> Iterator[SearchCall]:
    """The call for each kind of device that it asks for; a study is named after job and kind."""
    if not call.options.is_of_each_kind:
        yield call
        return
    if call.is_one:
        raise JobError(
            f"fleet_option kind={call.options.kind}: that is a search for each kind of device",
            "search once for each, such as with kind==H100, then compare the studies",
        )
    inventory = find_far_place(call.fleet, replace(call.options, kind="")).transport.inventory
    kinds: dict[str, Environment] = {}
    for node in inventory.values():
        kinds.setdefault(node.environment.device_name, node.environment)
    for kind, environment in kinds.items():
        name = call.flags.get("study")
        if name is None and call.command:
            name = study_name(call.command, os.getcwd())
        elif name is None:
            job, _ = read_job(call.job_file, call.flags, environment, agreed=call.agreed)
            name = job.study
        study = f"{name}-{re.sub(r'[^a-z0-9]+', '-', kind.lower()).strip('-')}"
        options = replace(call.options, kind=f"={kind}")
        yield replace(call, flags={**call.flags, "study": study}, options=options)


def _run_in_rounds(calls: Sequence[SearchCall], caller: Caller) -> list[SearchEnding]:
    """Run searches of several kinds with one budget, which goes to the kinds that lead.

    Each kind has a study of its own, since baseline, memory limit and forecast are of one kind
    of device. After a round the better half goes on, with all that are not proven to be behind;
    where none has found anything in its share, all of them.
    """
    rounds = Rounds(len(calls))
    endings: dict[str, SearchEnding] = {}
    hopeless: NothingFeasibleError | None = None
    while calls:
        share = rounds.next(len(calls))
        going: dict[str, SearchCall] = {}
        without: dict[str, SearchCall] = {}
        if not endings and len(calls) > 1:
            caller.say(
                f"one budget for {len(calls)} searches: each gets {share.of_budget:.0%} of it "
                "first, and those that lead get the rest"
            )
        for one in calls:
            try:
                ending = _run_one(one, caller, share)
            except NothingFeasibleError as error:
                caller.say(f"{one.options.kind.removeprefix('=')} is left out: {error.message}")
                hopeless = error
                rounds.give_back()
                continue
            if ending is None:
                continue
            name = ending.answer.study.name
            endings[name] = ending
            if ending.answer.interrupted:
                return list(endings.values())
            if ending.error is None:
                going[name] = replace(one, fresh=False, is_first=False)
            elif isinstance(ending.error, NothingFeasibleError):
                without[name] = replace(one, fresh=False, is_first=False)
        if share.is_last or not (going or without):
            break
        if going:
            for name in without:
                caller.say(f"{name} gets no more trials: nothing ran in its share")
        calls = _leading(going, endings, caller) if going else list(without.values())
        # Each was shown and agreed to when it began.
        caller = replace(caller, show_plan=lambda _: None, confirm=lambda _: True)
    if not endings and hopeless is not None:
        raise hopeless
    return list(endings.values())


def _leading(
    going: Mapping[str, SearchCall], endings: Mapping[str, SearchEnding], caller: Caller
) -> list[SearchCall]:
    """The searches, by study, that go on after a round; says which do not."""
    if len(going) == 1:
        return list(going.values())
    folders = [str(endings[name].answer.study.folder) for name in going]
    kinds = compare_studies(folders, Path(folders[0]).parent).kinds
    leading = [kind.run for kind in leading_kinds(kinds)] if kinds else list(going)
    for name in (study for study in going if study not in leading):
        caller.say(f"{name} gets no more trials; those that lead: {', '.join(leading)}")
    return [going[name] for name in leading]


def _run_one(call: SearchCall, caller: Caller, share: BudgetShare = WHOLE) -> SearchEnding | None:
    """Show the plan of a search, and run it; None: it was only to be shown."""
    lines: list[str] = []  # the first run of a command has remarks of its own

    def tell(line: str) -> None:
        if line not in lines:
            lines.append(line)
            caller.say(line)

    session = _session(call, replace(caller, say=tell))
    if call.is_first:
        for remark in _remarks(session, call):
            tell(remark)
    fresh = call.fresh and not call.command  # a command's study was set aside before it ran
    knowledge = file_for(call.knowledge, is_used=not call.no_knowledge)
    # By the whole budget, which later rounds may give.
    expected = prospect(session, fresh=fresh, knowledge=knowledge)
    job = replace(session.job, budget=share.apply(session.job.budget))
    session = replace(session, job=job)
    if not call.dry_run and session.study.folder.exists():
        session.study.lock()  # whoever cannot have it is told before the plan
        session.study.unlock()
    caller.show_plan(plan_search(session, expected, fresh=fresh))
    if call.dry_run:
        return None
    is_hopeful = expected is None or not expected.problem or call.force
    if not caller.confirm(is_hopeful) and expected is not None:
        raise NothingFeasibleError(expected.problem, f"{expected.nearest}; or --force")
    with caller.watch(session) as observer:
        ending = run(
            session,
            observer,
            fresh=fresh,
            metrics_file=call.metrics_file,
            knowledge=knowledge,
            no_comparison="" if share.is_last else "the best of each kind come first",
        )
    if not (call.with_ladder and share.is_last and ending.answer.has_gain_to_explain):
        return ending
    study = ending.answer.study
    climbed = run_ladder(study, note=tell, fleet=call.fleet, options=call.options)
    return replace(ending, ladder=climbed)


def _remarks(session: Session, call: SearchCall) -> Iterator[str]:
    """What to know before the plan: whose model it is, and what its figures will be worth."""
    if not call.command and "model" not in {**(call.agreed or {}), **session.place.flags}:
        yield (
            f"no --model is given: the built-in {session.job.model.name} is tuned. For your own "
            "training: python -m autotune search -- torchrun train.py --deepspeed ds.json"
        )
    if session.users is not None:
        yield from not_carried(*session.users, session.job.baseline)
    yield from session.place.remarks(session.job.world)


def _session(call: SearchCall, caller: Caller) -> Session:
    if call.command:
        return open_command_session(
            call.command,
            call.flags,
            results=call.results,
            fleet=call.fleet,
            options=call.options,
            fresh=call.fresh,
            note=caller.say,
        )
    return open_session(
        call.job_file,
        call.flags,
        results=call.results,
        fleet=call.fleet,
        options=call.options,
        agreed=call.agreed,
        study_ending=call.study_ending,
    )
