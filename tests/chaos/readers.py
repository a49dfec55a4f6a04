"""Everybody who reads a file that a user or a trial writes, with valid files to break."""

import contextlib
import functools
import io
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from autotune.app.check import CheckFlags, check_file
from autotune.app.gate import job_of, read_reference, reference_of, session_of
from autotune.app.studies import state_of
from autotune.base.errors import JobError
from autotune.contract import (
    NODE_FILE,
    CollectiveCalls,
    NodeReport,
    Outcome,
    Phase,
    RankDiagnosis,
    RankReport,
    Surroundings,
    TrialResult,
    to_dict,
)
from autotune.engines.deepspeed.ds_config_file import knobs_of, read_ds_config
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.export.door import export_handout, handout_of, read_export
from autotune.fleet.collect import collect
from autotune.fleet.reports import exit_codes, read_node_report
from autotune.fleet.transports.local import Here
from autotune.job import model
from autotune.job.job import Job, make_job, read_job_file
from autotune.record.soak import read_soak
from autotune.record.study import Study
from autotune.record.table import load_table
from autotune.report.story import read_story
from autotune.report.terminal.study import print_report
from autotune.search.trial_spec import MEASURE
from autotune.space.grid import grid_rows
from autotune.space.knob import Context
from autotune.space.space_file import load_space
from tests.cases import data_beside
from tests.chaos.attacks import ATTACKS
from tests.chaos.job_readers import make_reader_of_others
from tests.chaos.mutations import dump_json, dump_yaml, mutate
from tests.chaos.reader import Reader, at, broken, json_reader
from tests.chaos.table_readers import make_table_readers
from tests.jobs import CPU, TINY, canonical_candidate, tiny_job
from tests.report.diagnosed import diagnosed, split_of
from tests.report.test_terminal import exportable, finished
from tests.trials import spec

DATA = data_beside(__file__)

JOB = DATA["JOB"]
SPACE = DATA["SPACE"]
DS_CONFIG = DATA["DS_CONFIG"]
ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "deepspeed_config": {"zero_stage": 3, "offload_optimizer_device": "cpu"},
    "mixed_precision": "bf16",
    "num_machines": 1,
    "num_processes": 2,
}
LAUNCH = DATA["LAUNCH"]
_SHELL = (
    *("A=", "A+=(", "$A", "${A[@]}", "${A:-4}", "$((", "))", "$(", "(", ")", "{", "}", "<(", "<"),
    *("'", '"', "`", "\\", "\n", " ", " if ", " [ ", " ] ", " then ", " else ", "\nfi\n", " do "),
    *(" case $1 in ", "\nesac\n", " export ", " bash -c ", " eval ", "<<EOF\n", "EOF\n", "2>&1"),
    *("&&", "||", ";", "|", "#", "-7 % 3", "0 ", "-1 ", "9" * 25, " model.micro_batch_size="),
    *(" torchrun ", " pretrain_gpt.py ", " --num-layers ", " --micro-batch-size 1 ", " t*2|t "),
    *(" --tensor-model-parallel-size ", " --pipeline-model-parallel-layout ", " train.py "),
)
"""What a shell reads otherwise than text, and words of a launch."""
SOAK = DATA["SOAK"]


def make_readers(folder: Path, *, report_every: int = 5) -> list[Reader]:
    """All of them, each in a folder of its own below `folder`.

    Args:
        folder: Where they read.
        report_every: Of so many broken files of a study one is reported on, which takes long.
    """
    # A factory or an unknown architecture is built by a process of its own, which is not read.
    model._probe = _not_built
    job = tiny_job(folder)
    recorded = {name: finished(folder / name, diagnosed) for name in ("spec", "result", "state")}
    return [
        _yaml("job", folder, JOB, _read_job),
        _yaml("space", folder, SPACE, functools.partial(_read_space, job)),
        json_reader("ds_config", folder, DS_CONFIG, functools.partial(_read_ds_config, job)),
        json_reader("check", folder, DS_CONFIG, _check),
        _yaml("check accelerate", folder, ACCELERATE, _check),
        _launch(folder),
        json_reader("model config", folder, TINY, lambda path: model.load_model(str(path))),
        _lengths(folder),
        _template(folder, job),
        _export(folder, job, "settings.json"),
        _export(folder, job, "ds_config.json"),
        json_reader("soak.json", folder, SOAK, _read_soak, name="soak.json"),
        json_reader("reference", folder, _reference(folder), _read_reference),
        *(
            _of_study(name, recorded[name], path, report_every)
            for name, path in (
                ("spec", "trials/0001/spec.json"),
                ("result", "trials/0001/result.json"),
                ("state", "study.json"),
            )
        ),
        _report(folder),
        _codes(folder),
        _node_report(folder),
        *make_table_readers(folder),
        make_reader_of_others(folder),
    ]


def _read_job(path: Path) -> Job:
    return make_job(read_job_file(path), where=str(path))


def _read_space(job: Job, path: Path) -> None:
    context = Context.of(job, CPU)
    space = load_space(str(path), context.knobs)
    for _ in itertools.islice(grid_rows(space, context), 500):
        pass


def _read_ds_config(job: Job, path: Path) -> None:
    config, _ = read_ds_config(path)
    knobs_of(config, path)
    engine = DeepSpeedEngine(replace(job, base_config=path), CPU)
    with contextlib.suppress(JobError):
        DeepSpeedEngine(job, CPU).baseline(path)
    engine.files(canonical_candidate(job, micro_batch=1))


def _check(path: Path) -> None:
    check_file(path, CheckFlags(world=2, accelerator="cpu", deepspeed_version="0.19.8"))


def _read_soak(path: Path) -> None:
    read_soak(path.parent)


def _reference(folder: Path) -> dict[str, Any]:
    """What `search --json` says for `compare --against`."""
    found = reference_of(exportable(folder / "of a reference"))
    assert found is not None
    return {"origin": "measured", "reference": asdict(found)}


def _read_reference(path: Path) -> None:
    found = read_reference(str(path), path.parent)
    job = job_of(str(path), found, lambda _: None)
    session_of(str(path), found, job, Here(found.environment, {}), Study(path.parent, "gate"))


def _read_study(study: Study, reports: Iterator[bool], _: Path) -> None:
    """As a search, `table` and `status` do; and in turns as `report`."""
    study.read()
    load_table(study.folder)
    state_of(study)
    if next(reports):
        console = Console(file=io.StringIO(), width=80, color_system=None)
        print_report(console, read_story(study))


def _yaml(reader: str, folder: Path, data: Any, read: Callable[[Path], object]) -> Reader:
    # LoRA asks a process of its own; without it the rest of the job is read.
    seed = dump_yaml({k: v for k, v in data.items() if k != "finetune"}).encode()
    whole = dump_yaml(data).encode()
    return Reader(
        name=reader,
        path=at(folder, reader, "file.yaml"),
        seed=seed,
        read=read,
        mutate=lambda draw: mutate(draw.choice((seed, seed, whole)), draw, dump_yaml),
    )


def _launch(folder: Path) -> Reader:
    def draw_one(draw: random.Random) -> bytes:
        if draw.random() < 0.3:
            return "".join(draw.choices(_SHELL, k=draw.randint(1, 60))).encode()
        text = LAUNCH
        for _ in range(draw.randint(1, 4)):
            at_ = draw.randint(0, len(text))
            text = text[:at_] + draw.choice(_SHELL) + text[at_ + draw.choice((0, 0, 1, 9)) :]
        return text.encode()

    path = at(folder, "check launch", "train.sh")
    return Reader(
        name="check launch", path=path, seed=LAUNCH.encode(), read=_check, mutate=draw_one
    )


def _lengths(folder: Path) -> Reader:
    seed = b"length,count\n16,5\n64,12\n"
    path = at(folder, "lengths", "lengths.csv")
    job = {**JOB, "lengths": str(path)}
    del job["finetune"]

    def draw_one(draw: random.Random) -> bytes:
        text = mutate(json.dumps(list(seed.decode().splitlines())).encode(), draw, _dump_lines)
        return text if draw.random() < 0.5 else seed + text

    return Reader(
        name="lengths",
        path=path,
        seed=seed,
        read=lambda _: make_job(job, where="job.yaml"),
        mutate=draw_one,
    )


def _dump_lines(data: Any) -> str:
    return "\n".join(map(str, data)) if isinstance(data, list) else str(data)


def _template(folder: Path, job: Job) -> Reader:
    from autotune.base.data import data_folder

    name = "deepspeed/ds_config.json.j2"
    shipped = (data_folder("templates") / name).read_text(encoding="utf-8")
    path = at(folder, "template", name)
    theirs = replace(job, templates=folder / "template")
    candidate = canonical_candidate(job, micro_batch=1)

    def draw_one(draw: random.Random) -> bytes:
        at = draw.randrange(len(shipped))
        match draw.randrange(4):
            case 0:
                return (shipped[:at] + draw.choice(ATTACKS) + shipped[at:]).encode()
            case 1:
                return draw.choice(ATTACKS).encode()
            case 2:
                end = at + draw.randrange(60)
                return (shipped[:at] + shipped[end:]).encode()
            case _:
                return mutate(json.dumps(DS_CONFIG).encode(), draw, dump_json)

    return Reader(
        name="template",
        path=path,
        seed=shipped.encode(),
        read=lambda _: DeepSpeedEngine(theirs, CPU).files(candidate),
        mutate=draw_one,
    )


def _export(folder: Path, job: Job, name: str) -> Reader:
    """A file of an export, as `soak --from` reads it."""
    out = folder / f"export {name}"
    export_handout(
        handout_of(
            canonical_candidate(job, micro_batch=1),
            engine=DeepSpeedEngine(job, CPU),
            job=job,
            environment=CPU,
        ),
        out,
        to="deepspeed",
    )
    path = out / name
    return broken(
        f"export {name}",
        path,
        path.read_bytes(),
        lambda _: read_export(out, CPU, measure=MEASURE),
    )


def _of_study(name: str, study: Study, file: str, report_every: int) -> Reader:
    path = study.folder / file
    reports = (number % report_every == 0 for number in itertools.count())
    read = functools.partial(_read_study, study, reports)
    return broken(name, path, path.read_bytes(), read)


def _report(folder: Path) -> Reader:
    trial = folder / "reports"
    path = at(folder, "reports/ranks", "00.json")
    report = RankReport(
        rank=0,
        pid=7,
        phase=Phase.TEARDOWN,
        ended_at_s=2.0,
        phases_s={"import": 1.0},
        warmup_step_times_s=[0.1, 0.1],
        step_times_s=[0.1] * 6,
        losses=[4.0] * 8,
        memory_bytes={"peak": 10, "private_data": 10},
        host_construction_bytes=5,
        read_back={"stage": 1},
        versions={"torch": "2.13.0"},
        memory_samples=[{"elapsed_s": 1.0, "peak": 10.0}],
        checkpoint={"steps": 3.0, "seconds": 0.5},
        cpu_s=0.5,
        measured_s=0.6,
        surroundings=Surroundings(
            cores=[0], elapsed_s=0.6, busy_s=0.5, stolen_s=0.0, throttled_s=0.1
        ),
        diagnosis=RankDiagnosis(
            steps=2,
            split=split_of(communication=0.2),
            calls=[
                CollectiveCalls(
                    name="all_reduce", message_bytes=4096, group_size=2, seconds=[0.1, 0.2]
                )
            ],
            problem="profiler: cut short",
        ),
    )
    seed = json.dumps(to_dict(report)).encode()
    return broken("rank report", path, seed, lambda _: _collected(trial))


def _codes(folder: Path) -> Reader:
    path = at(folder, "codes/ranks", "exit_00.json")
    seed = b'{"0": 1, "1": -9}'
    return broken("exit codes", path, seed, lambda _: exit_codes(folder / "codes", 0))


def _node_report(folder: Path) -> Reader:
    trial = folder / "nodes"
    path = at(folder, "nodes/ranks", NODE_FILE.format(node=0))
    report = NodeReport(
        exit_codes={"0": -9},
        launcher_code=1,
        stopped_ranks=[1],
        oom_killed=True,
        undrained_bytes=7,
        driver_error="lost",
        environment={"NCCL_DEBUG": "INFO"},
    )
    seed = json.dumps(to_dict(report)).encode()
    return broken("node report", path, seed, lambda _: _collected(trial))


def _collected(trial: Path) -> str:
    """The text of what a trial came to, which has to be JSON."""
    asked = spec(world=1, dp=1)
    seen = TrialResult.of(asked.identity, Outcome.LAUNCH, started_at_s=1.0, wall_s=2.0)
    return json.dumps(to_dict(collect(asked, trial, seen, [read_node_report(trial, 0)])))


def _not_built(source: dict[str, Any], *, where: str) -> dict[str, Any]:
    raise JobError(f"model: {where}: is not built here", "give it a closed form")
