"""The reader of jobs that came from elsewhere."""

from pathlib import Path

from autotune.app.consent import agree_to_job
from autotune.base.errors import JobError
from tests.chaos.reader import Reader, json_reader


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
    return json_reader("job of others", folder, data, _read_job_of_others, name="job.yaml")


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
