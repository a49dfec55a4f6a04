"""The reader of jobs that came from elsewhere."""

import json
from pathlib import Path

from autotune.app.consent import agree_to_job
from autotune.base.errors import JobError
from tests.chaos.mutations import dump_json, mutate
from tests.chaos.reader import Reader, at


def make_reader_of_others(folder: Path) -> Reader:
    """In a folder of its own below `folder`."""
    data = {
        "model": "evil.models:build",
        "seq_len": 8,
        "space": "./space.yaml",
        "templates": "t",
        "lengths": {"histogram": "l.csv"},
        "nvme_path": "/",
    }
    seed = json.dumps(data).encode()
    return Reader(
        name="job of others",
        path=at(folder, "job of others", "job.yaml"),
        seed=seed,
        read=_read_job_of_others,
        mutate=lambda draw: mutate(seed, draw, dump_json),
    )


def _read_job_of_others(path: Path) -> None:
    """Nobody is there to agree: it is refused, or names nothing to agree to."""
    said: list[str] = []
    try:
        data = agree_to_job(path, {}, is_trusted=False, say=said.append, ask=None)
    except JobError as error:
        if "--trust-job" in error.hint:
            return  # what has to come of the sound one
        raise
    if said or (data is not None and data.get("templates") is not None):
        raise AssertionError(f"done without asking: {said} {data}")
