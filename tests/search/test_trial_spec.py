"""From a run to its spec: which trials start warm."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.contract import Role, Start, TrialSpec
from autotune.engines.base import RankSettings
from autotune.search.trial_spec import Run, make_spec
from autotune.space.candidate import Candidate
from tests.search.scripted import ENVIRONMENT, ScriptedEngine, candidate, make

JOB = make()
ONE = candidate(JOB, zero__stage=1, micro_batch=2)


class Compiling(ScriptedEngine):
    """Its candidates compile at their start."""

    def ranks(self, candidate: Candidate) -> RankSettings:
        return RankSettings(may_start_warm=False)


def spec_of(run: Run, **changes: Any) -> TrialSpec:
    asked = {"engine": ScriptedEngine(JOB), "environment": ENVIRONMENT, **changes}
    return make_spec(run, study="any", number=0, job=JOB, **asked)


@pytest.mark.parametrize("role", [Role.BASELINE, Role.SEARCH])
def test_trials_of_cpu_ranks_start_warm(role):
    assert spec_of(Run(candidate=ONE, role=role)).measure.start is Start.WARM


@pytest.mark.parametrize(
    ("run", "changes"),
    [
        (Run(candidate=ONE, role=Role.CONFIRM, confirm_round=0), {}),
        (Run(candidate=ONE, role=Role.SEARCH, retry_of=3), {}),
        (Run(candidate=ONE, role=Role.SEARCH), {"engine": Compiling(JOB)}),
        (
            Run(candidate=ONE, role=Role.SEARCH),
            {"environment": replace(ENVIRONMENT, accelerator="xpu")},
        ),
    ],
    ids=["the claim", "after a fault", "compiled", "on an accelerator that nobody forked on"],
)
def test_torchrun_starts_what_the_claim_rests_on_and_what_is_read_at_a_start(run, changes):
    assert spec_of(run, **changes).measure.start is Start.COLD
