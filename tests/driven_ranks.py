"""Ranks that train the cases of a test, by a driver of its own."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.engines.deepspeed.extensions import build
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from tests import forked_children

REPOSITORY = Path(__file__).resolve().parent.parent


def train_cases(
    driver: str,
    cases: list[dict[str, Any]],
    folder: Path,
    *,
    world: int = 2,
    nvme: bool = False,
    timeout_s: float = 200,
) -> list[list[Any]]:
    """Train the cases one after the other in one set of ranks.

    Args:
        driver: Module of a driver, as of `tests.rank_driver`.
        cases: As the driver reads them.
        folder: For both files.
        world: Ranks.
        nvme: Whether the extension that swaps is built as well.
        timeout_s: Time for all of them.

    Returns:
        The answers of all ranks to each case.
    """
    build("cpu", lambda _: None, nvme=nvme)
    variables = {**extensions_environment("cpu"), "LOCAL_SIZE": str(world)}
    return ask_driver(
        "deepspeed", driver, cases, folder, str(world), timeout_s=timeout_s, variables=variables
    )


def ask_driver(
    engine: str,
    driver: str,
    cases: list[dict[str, Any]],
    folder: Path,
    *arguments: str,
    timeout_s: float,
    variables: Mapping[str, str],
) -> list[Any]:
    """Answers of a driver to its cases, in a process that has the engine's code at once."""
    asked, answered = folder / "cases.json", folder / "answers.json"
    asked.write_text(json.dumps(cases))
    named = filter(None, [os.environ.get("PYTHONPATH")])  # another release may lie there
    paths = {"PYTHONPATH": os.pathsep.join([*named, str(REPOSITORY)])}
    request = {
        "module": driver,
        "arguments": [str(asked), str(answered), *arguments],
        "variables": {**os.environ, **forked_children.OF_RANKS, **paths, **variables},
    }
    address = forked_children.forker(engine)["address"]
    done = forked_children.ask(request, timeout_s=timeout_s, address=address)
    assert done.returncode == 0, done.stderr[-4000:]
    answers: list[Any] = json.loads(answered.read_text())
    assert len(answers) == len(cases)
    return answers
