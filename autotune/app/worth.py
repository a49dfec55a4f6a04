"""Run the way from a study's baseline to its best one, change by change, and keep what it says."""

from collections.abc import Sequence

from autotune.app.exports import find_chosen
from autotune.app.pages import write_page
from autotune.app.session import find_running_place
from autotune.app.soak import check_accelerator
from autotune.base.errors import JobError, StudyError
from autotune.base.text import Say
from autotune.fleet.base import Place
from autotune.fleet.options import NO_OPTIONS, FleetOptions
from autotune.record.answer import answer_of
from autotune.record.found import write_found
from autotune.record.study import Study
from autotune.record.worth import LADDER_FILE, LADDER_FOLDER, Ladder
from autotune.search.runner import runner_on
from autotune.search.worth import MOST_ROUNDS, ROUNDS, Way, WayRunner
from autotune.space.candidate import Candidate
from autotune.space.knobs import canonical, parse_settings


def run_ladder(
    study: Study,
    *,
    note: Say,
    settings: Sequence[str] = (),
    rounds: int = ROUNDS,
    fleet: str = "local",
    options: FleetOptions = NO_OPTIONS,
) -> Ladder | None:
    """Measure what each change from the baseline to the best configuration is worth.

    The same call again resumes. With `settings`, `knob=value` each, the way leads to the baseline
    with these, not to the best. The fleet is as of `open_session`.

    Returns:
        What it found, also in `ladder.json`; None if the user ended it.

    Raises:
        JobError: Nothing changes, too much does, a setting is none or illegal, or the fleet only
            answers for trials.
        StudyError: There is no baseline or no best one, or another process holds the study.
        FleetError: The devices are not there.
    """
    if not 2 <= rounds <= MOST_ROUNDS:
        raise JobError.of("app.rounds_out_of_range", rounds=rounds, most=MOST_ROUNDS)
    place = find_running_place(fleet, options)
    way = _way(study, place, settings)
    study.lock()
    try:
        with runner_on(
            place,
            way.study,
            world=way.job.world,
            command=way.engine.preparation([way.baseline, way.target]),
            note=note,
        ) as runner:
            target_name = " ".join(settings) or "best"
            found = WayRunner(
                session=way, runner=runner, n_rounds=rounds, target_name=target_name
            ).run()
        if found is not None:
            write_found(study.folder / LADDER_FILE, found)
            write_page(study, study.page_file)
        return found
    finally:
        study.unlock()


def _way(study: Study, place: Place, settings: Sequence[str]) -> Way:
    answer = answer_of(study)
    if answer is None or answer.baseline is None:
        raise StudyError.of("app.no_baseline", study=study)
    start = find_chosen(study, trial=answer.baseline.trial, allow_loss_drift=True)
    handout, engine, context = start.handout, start.engine, start.engine.context
    check_accelerator(handout.environment.accelerator, place.environment)
    if settings:
        values = parse_settings(settings, context.knobs)
        target = Candidate.of(
            canonical({**handout.candidate.values, **values}, context),
            world=handout.job.world,
            global_batch=handout.job.global_batch,
        )
        if violations := engine.judge(target):
            raise JobError(violations[0].message, violations[0].fix)
    else:
        best = find_chosen(study, trial=None if answer.best is None else answer.best.trial)
        target, engine = best.handout.candidate, best.engine
    way = Way(
        job=handout.job,
        place=place,
        engine=engine,
        study=Study(study.folder, LADDER_FOLDER),
        baseline=handout.candidate,
        target=target,
        start_engine=start.engine,
    )
    _ = way.changes  # before anything runs: there may be none
    return way
