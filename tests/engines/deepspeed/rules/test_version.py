"""Version gates, as a table: which release of DeepSpeed takes which key."""

import pytest

from autotune.engines.deepspeed.rules import judge
from autotune.engines.deepspeed.rules.version import removed_later
from tests.cases import data_beside
from tests.engines.deepspeed.rules.cases import setup

DATA = data_beside(__file__)

RELEASES = ("0.18.6", "0.19.6", "0.19.7", "0.19.8", "0.20.0")
GATES = DATA["GATES"]
NEW = DATA["NEW"]
"""Key -> a value, and the last release read that lacks it."""


def config_with(dotted, value):
    section, _, name = dotted.rpartition(".")
    if not section:
        return {name: value}
    stage = {"stage": 1} if section == "zero_optimization" else {}
    return {section: {name: value} | stage}


def order(release):
    return tuple(map(int, release.split(".")))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("key", "refused_from"), GATES.items())
def test_removed_keys(key, refused_from, release):
    violations = judge(setup(config_with(key, {}), version=release))
    if order(release) < order(refused_from):
        assert violations == []
    else:
        (violation,) = violations
        assert violation.rule == "version.removed_key"
        assert all(part in violation.message for part in (key, refused_from, release))


@pytest.mark.parametrize("release", ["0.16.9", *RELEASES])
@pytest.mark.parametrize(("key", "value", "absent"), [(k, *v) for k, v in NEW.items()])
def test_keys_that_a_release_does_not_have_yet(key, value, absent, release):
    violations = judge(setup(config_with(key, value), version=release))
    if order(release) > order(absent):
        assert violations == []
    else:
        assert [v.rule for v in violations] == ["version.missing_key"]
        assert key in violations[0].message


@pytest.mark.parametrize("kind", ["OneBitAdam", "ZeroOneAdam", "OneBitLamb"])
def test_removed_optimizers(kind):
    config = {"optimizer": {"type": kind}}
    assert judge(setup(config, version="0.19.6", accelerator="cuda")) == []
    for release in ("0.19.7", "0.19.8"):
        assert [v.rule for v in judge(setup(config, version=release))] == [
            "version.removed_optimizer"
        ]


def test_a_local_version_counts_as_its_release():
    assert judge(setup({"nebula": {}}, version="0.19.6+cu128")) == []
    assert judge(setup({"nebula": {}}, version="0.19.8.post1+g0abc"))


@pytest.mark.cases("release", "refused")
def test_sequences_are_split_since_ulysses_takes_a_model(release, refused):
    config = {"sequence_parallel_size": 2}
    found = [v.rule for v in judge(setup(config, sp_by_script=2, version=release))]
    assert ("sequence.release" in found) is refused
    assert "sequence.release" not in [v.rule for v in judge(setup(config, version=release))]


@pytest.mark.parametrize(("release", "refused"), [("0.19.2", True), ("0.19.3", False)])
def test_experts_at_stage_3_came_later(release, refused):
    experts = {"architecture": "mixtral", "n_experts": 4, "experts_per_token": 2}
    spread = {"expert_parallel": {"enabled": True, "autoep_size": 2}}
    rules = {}
    for stage in (2, 3):
        config = spread | {"zero_optimization": {"stage": stage}}
        found = judge(setup(config, model=experts, version=release))
        rules[stage] = [v.rule for v in found]
    assert "experts.stage_3" not in rules[2]
    assert ("experts.stage_3" in rules[3]) is refused


@pytest.mark.parametrize("release", ["0.19.2", "0.19.3"])
def test_a_silent_file_clips_as_its_release_does(release):
    experts = {"architecture": "mixtral", "n_experts": 4, "experts_per_token": 2}
    spread = {"expert_parallel": {"enabled": True, "autoep_size": 2}}
    pipeline = [v.rule for v in judge(setup({}, pp=2, version=release))]
    mixture = [v.rule for v in judge(setup(spread, model=experts, version=release))]
    clips = release == "0.19.3"
    assert ("pipeline.clipping_at_stage_0" in pipeline) is clips
    assert ("experts.clipping_at_stage_0" in mixture) is clips


@pytest.mark.cases("config", "named")
def test_what_later_releases_removed_is_named_where_it_acts(config, named):
    assert list(removed_later(config, "0.18.9")) == named
    assert list(removed_later(config, "0.19.8")) == []
