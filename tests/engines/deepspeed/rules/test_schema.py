"""Findings about keys and values: one for each key, with what would mend that key alone."""

import pytest

from autotune.base.nested import Unknown, merge
from autotune.engines.deepspeed.rules import judge
from autotune.engines.deepspeed.rules.sections import as_read
from autotune.space.rule import UnknownFactError
from tests.counting import calls_of
from tests.engines.deepspeed.rules.cases import NEWEST, setup


def found(config, **case):
    return judge(setup(config, **case))


@pytest.mark.cases("config", "findings")
def test_each_key_has_a_finding_of_its_own(config, findings):
    told = [
        {
            **{"rule": one.rule, "level": one.level, "at": list(one.at), "changes": one.changes},
            "message": one.message,
            "choices": [choice.changes for choice in one.choices],
        }
        for one in found(config)
    ]
    assert len(told) == len(findings)
    assert all(asked.items() <= one.items() for asked, one in zip(findings, told, strict=True))


@pytest.mark.cases("config", "level", "changes")
def test_a_value_weighs_as_much_as_deepspeed_makes_of_it(config, level, changes):
    violations = found(config)
    if level is None:
        assert violations == []
        return
    assert [one.level for one in violations] == [level]
    if changes is not None:
        assert violations[0].changes == changes


@pytest.mark.cases("config", "changes")
def test_a_key_in_the_wrong_place_moves_with_its_value_and_no_other_goes(config, changes):
    plain = setup(config)
    stageless = {
        name: v for name, v in plain.ds_config.items() if name in config or "zero" not in name
    }
    (violation,) = judge(plain.with_config(stageless))
    assert violation.changes == changes
    assert violation.choices[-1].changes


@pytest.mark.parametrize("value", [{"enabled": False}, {}, None, False])
def test_a_feature_that_is_gone_and_off_just_goes(value):
    plain = setup()
    (violation,) = judge(plain.with_config({**plain.ds_config, "amp": value}))
    assert violation.changes == {"amp": None}


def test_a_value_of_another_type_reads_as_what_deepspeed_takes_it_for():
    config = {
        "zero_optimization": {"stage": "3", "sub_group_size": "auto", "reduce_scatter": "maybe"},
        "gradient_clipping": 1.0,
    }
    read = as_read(config, NEWEST)
    assert read["gradient_clipping"] == 1.0
    zero = read["zero_optimization"]
    assert zero["stage"] == 3
    assert "sub_group_size" not in zero
    assert zero.get("sub_group_size") is None
    assert list(zero) == ["stage", "reduce_scatter"]
    assert isinstance(dict(zero.items())["reduce_scatter"], Unknown)
    with pytest.raises(UnknownFactError):
        zero.get("reduce_scatter")
    assert as_read({"gradient_clipping": 1.0}, NEWEST) == {"gradient_clipping": 1.0}


def test_a_file_of_keys_that_nobody_knows_is_judged_at_once():
    config = {f"key_{at}_of_many": at for at in range(100_000)}
    violations = []
    assert calls_of(lambda: violations.extend(found(config))) < 30 * 100_000  # 10 of a key today
    assert len(violations) == 1
    assert violations[0].message.startswith("100000 keys of the file are none of DeepSpeed's")
    assert violations[0].message.endswith("and 99970 more")


@pytest.mark.cases("config", "acting")
def test_what_is_never_used_raises_nothing(config, acting):
    """Unless something makes it act; null: nothing does."""
    assert [one.level for one in found(config)] == ["warning"]
    if acting is not None:
        assert "error" in [one.level for one in found(merge(config, acting))]


@pytest.mark.parametrize("section", ["optimizer", "scheduler"])
def test_parameters_of_no_type_are_not_read(section):
    other = "SGD" if section == "optimizer" else "WarmupLR"
    for kind, levels in ((None, {"warning"}), (other, {"error"})):
        config = {section: {"type": kind, "params": 5}}
        read = [one for one in found(config) if one.at == (f"{section}.params",)]
        assert {one.level for one in read} == levels


@pytest.mark.parametrize("value", [2**70, 1e30])
def test_a_whole_number_may_be_large(value):
    """Python computes with it, and so does DeepSpeed."""
    from deepspeed.runtime.config import DeepSpeedConfig

    assert DeepSpeedConfig({"train_batch_size": value}).train_micro_batch_size_per_gpu == value
    told = [one for one in found({"train_batch_size": value}) if one.level == "error"]
    assert "schema.top_level_value" not in [one.rule for one in told]


def test_a_degree_that_is_read_before_it_is_converted():
    """`initialize` compares it with 0, and only then does a class of its own convert it."""
    for text in ("2", "auto"):
        (error,) = [
            one
            for one in found({"tensor_parallel": {"autotp_size": text}})
            if one.level == "error"
        ]
        assert error.at == ("tensor_parallel.autotp_size",)


def test_a_monitor_without_its_package_is_a_note(monkeypatch):
    for is_there, levels in ((False, ["note"]), (True, [])):
        monkeypatch.setattr(
            "autotune.engines.deepspeed.rules.surroundings.is_importable",
            lambda _, is_there=is_there: is_there,
        )
        assert [one.level for one in found({"wandb": {"enabled": True}})] == levels
