"""One run of a user's own command: where its time and memory go, and what would change that."""

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.app.own_script import adopt_first_run, open_command_session, own_candidate
from autotune.app.run import begin_study
from autotune.app.steering import steer
from autotune.app.studies import explain_trial
from autotune.base.errors import JobError, StudyError
from autotune.base.flags import flag, switch
from autotune.base.text import Say
from autotune.base.units import format_bytes
from autotune.contract import KnobValue, Role
from autotune.cost.constants import constants_of
from autotune.cost.predict import predict
from autotune.cost.problem import has_shape
from autotune.engines.base import Engine
from autotune.engines.launches.line import in_short
from autotune.fleet.options import NO_OPTIONS, FleetOptions
from autotune.job.observed import Observed
from autotune.record.table import write_table
from autotune.report.candidates.ranking import MEMORY_PARTS
from autotune.report.explain.script import ProposedChange, ScriptDiagnosis
from autotune.report.explain.trial import Explanation
from autotune.report.story import read_story
from autotune.search.history import History
from autotune.search.interrupt import Interrupt
from autotune.search.runner import Runner
from autotune.search.session import Session, model_of
from autotune.search.steering import Steering
from autotune.search.trial_spec import Run
from autotune.space.candidate import Candidate
from autotune.space.knobs import describe_difference

_Changes = dict[tuple[tuple[str, KnobValue], ...], ProposedChange]
_PARTS = tuple(name.removesuffix("_bytes") for name in (*MEMORY_PARTS, "host_bytes"))
"""Parts of memory that are named: those of the peak of a device, and what lies on the host."""
N_CHANGES = 5
"""Changes that are named: those with the largest predicted gain."""


def diagnose(
    command: Sequence[str],
    flags: Mapping[str, Any],
    *,
    results: Path,
    fresh: bool,
    note: Say,
    fleet: str = "local",
    options: FleetOptions = NO_OPTIONS,
    typed: Mapping[str, Any] | None = None,
) -> ScriptDiagnosis:
    """Run a command as it is for a few steps, and say what it does.

    A study of the command that is there already answers without a run. Arguments and errors are
    those of `open_command_session`; `typed` is how the user named the fleet and its options.
    """
    session = open_command_session(
        command, flags, results=results, fleet=fleet, options=options, fresh=fresh, note=note
    )
    study, job, script = session.study, session.job, session.job.script
    if script is None:  # its arguments tell what it trains: it is the job's baseline
        assert job.baseline is not None
        engine, baseline = session.engine.baseline(job.baseline)
        origins, remarks = {}, tuple(engine.not_carried(baseline, "your command"))
    else:
        engine, baseline = session.engine, own_candidate(session)
        origins, remarks = script.origins, tuple(engine.remarks())
    study.lock()
    try:
        if not study.next_number():
            begin_study(session, note)
            study.update_state(model=model_of(session))
            if script is None:
                _run_own(session, engine, baseline, note)
            else:
                adopt_first_run(session)
            write_table(study)
        if script is not None and not study.next_number():
            raise _other_limit(session, script)
    finally:
        study.unlock()
    notes: list[str] = []
    steering = steer(session, notes.append, None, searches=False)
    history = session.history_to_resume()
    first = next((t for t in history.trials if t.candidate_hash == baseline.hash), None)
    result = None if first is None else first.result
    if result is None and script is not None:
        result = script.measured
    if result is None:
        raise StudyError.of("app.command_not_run", study=study, fresh=switch("fresh"))
    explanation = None
    try:
        explanation = explain_trial(study, 0 if first is None else first.number)
    except StudyError as error:
        notes.append(error.message)
    changes, table = _Changes(), read_story(study).table[:1]
    if steering is not None and result.step_time_s:
        # What disturbs the run, and what the model misses everywhere, is no gain of any change.
        scaled = steering.scaled_to(baseline, result.step_time_s)
        changes = _changes(session, scaled, history, baseline)
    return ScriptDiagnosis(
        command=in_short(command),
        study=str(study.folder),
        framework=engine.name if script is None else script.framework,
        model=job.model.name,
        settings=_settings(session, baseline),
        origins=origins,
        result=result,
        row=json.loads(table.to_json(orient="records", date_format="iso"))[0],
        memory_bytes=_memory_of(session, baseline),
        explanation=explanation and _without_slower(explanation, changes),
        remarks=remarks,
        is_predicted=steering is not None,
        changes=_best_of(changes),
        notes=tuple(notes),
        search=_search_command(command, {**flags, "results": results, **(typed or {})}),
    )


def _search_command(command: Sequence[str], given: Mapping[str, Any]) -> str:
    words = ["autotune", "search"]
    for name, value in given.items():
        if isinstance(value, bool):
            words.append(switch(name, on=value))
            continue
        for one in value if isinstance(value, list) else [value]:
            if str(one) not in (name, "local"):  # results/ and this machine
                words += [flag(name), str(one)]
    return f"{shlex.join(words)} -- {in_short(command)}"


def _settings(session: Session, baseline: Candidate) -> dict[str, Any]:
    """What a command trains with: as its first run showed it, or its arguments tell it."""
    job, script = session.job, session.job.script
    optimizer = job.optimizer.get("type", "Adam")
    return {
        "world": job.world,
        "micro_batch": baseline.micro_batch,
        "grad_accum": baseline.grad_accum,
        "global_batch": job.global_batch,
        "tokens_per_sample": job.seq_len if script is None or script.has_tokens else None,
        "precision": job.precision,
        "optimizer": str(optimizer) if script is None else script.description.get("optimizer"),
        "n_params": job.model.shape.n_params,
        "n_params_frozen": job.model.shape.n_params_frozen,
    }


def _other_limit(session: Session, script: Observed) -> JobError:
    """The refusal of a first run that had another memory limit than is asked for."""
    asked_bytes = session.job.enforced_limit_bytes(session.environment.device_memory_bytes)
    peak_bytes = script.measured.peak_memory_bytes
    if asked_bytes is not None and peak_bytes is not None and peak_bytes > asked_bytes:
        return JobError.of(
            "app.command_over_limit",
            asked_bytes=format_bytes(asked_bytes),
            peak_bytes=format_bytes(peak_bytes),
        )
    return JobError.of("app.other_memory_limit", fresh=switch("fresh"))


def _run_own(session: Session, engine: Engine, baseline: Candidate, note: Say) -> None:
    """Run the command's own layout as trial 0.

    Raises:
        StudyError: The record cannot be written.
        FleetError: The devices are not there.
    """
    with closing(session.make_fleet()) as fleet:
        fleet.prepare(engine.preparation([baseline]), note)
        runner = Runner(record=session.study, fleet=fleet, interrupt=Interrupt(), note=note)
        spec = session.spec_of(Run(candidate=baseline, role=Role.BASELINE), 0)
        runner.run(spec, engine.files(baseline))


def _changes(
    session: Session, steering: Steering, history: History, baseline: Candidate
) -> _Changes:
    """What is predicted of each change of one knob that fits, with what suits it best."""
    now_s = steering.predict(history, baseline).step_time_s
    limit = steering.objective.allowed_bytes
    found: _Changes = {}
    for place, candidate in enumerate(session.lattice.candidates):
        changed = _changed(baseline, candidate)
        if len(changed) != 1 or not session.lattice.is_legal(place):
            continue
        predicted = steering.predict(history, candidate)
        if limit is not None and predicted.peak_memory_bytes > limit:
            continue
        gain = now_s / predicted.step_time_s
        if changed in found and found[changed].gain >= gain:
            continue
        found[changed] = ProposedChange(
            settings=describe_difference(candidate, baseline, session.engine.context),
            edits=tuple(session.engine.edits_in_words(candidate)),
            gain=gain,
            gain_low=now_s / predicted.step_time_high_s,
            gain_high=now_s / predicted.step_time_low_s,
            peak_memory_bytes=predicted.peak_memory_bytes,
            peak_memory_low_bytes=predicted.peak_memory_low_bytes,
            peak_memory_high_bytes=predicted.peak_memory_high_bytes,
        )
    return found


def _best_of(changes: _Changes) -> tuple[ProposedChange, ...]:
    """Those that are predicted to gain, best first; a gain that shows as 1.00x is none."""
    faster = [change for change in changes.values() if round(change.gain, 2) > 1]
    return tuple(sorted(faster, key=lambda change: -change.gain)[:N_CHANGES])


def _without_slower(explanation: Explanation, changes: _Changes) -> Explanation:
    slower = {key for key, change in changes.items() if change.gain < 1}
    left = [
        a for a in explanation.advice if a.tried is not None or ((a.knob, a.after),) not in slower
    ]
    return replace(explanation, advice=left)


def _changed(baseline: Candidate, candidate: Candidate) -> tuple[tuple[str, KnobValue], ...]:
    """Knobs that act in both and differ; what begins or ceases to act follows from those."""
    shared = baseline.values.keys() & candidate.values.keys()
    return tuple(
        (name, candidate.values[name])
        for name in sorted(shared)
        if baseline.values[name] != candidate.values[name]
    )


def _memory_of(session: Session, baseline: Candidate) -> dict[str, float]:
    if not has_shape(session.job.model.shape):
        return {}
    constants = constants_of(session.environment)
    memory = predict(session.engine.plans([baseline]), constants).memory
    return {part: float(getattr(memory, f"{part}_bytes")[0]) for part in _PARTS}
