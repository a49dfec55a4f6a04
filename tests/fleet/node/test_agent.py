"""An agent ends what its keeper has adopted, once no trial runs whose it might be."""

import os
import subprocess

import pytest

from autotune.fleet.node import agent


@pytest.mark.parametrize(
    ("has_keeper", "runs", "ends"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_orphans_without_a_mark_end_when_no_trial_runs(has_keeper, runs, ends, monkeypatch):
    orphan = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
    asked = []

    def children_of(pid: int) -> list[int]:
        asked.append(pid)
        return [os.getpid(), orphan.pid]

    monkeypatch.setattr(agent, "children_of", children_of)
    line = agent.Answers(os.open(os.devnull, os.O_WRONLY))
    served = agent.Agent(line, keeper=4711 if has_keeper else None)
    if runs:
        served._running["a trial"] = None  # type: ignore[assignment]
    try:
        served._end_strangers()
        assert asked == ([4711] if ends else [])
        if ends:
            assert orphan.wait() == -9
        assert (orphan.poll() is None) is not ends
    finally:
        orphan.kill()
        orphan.wait()
