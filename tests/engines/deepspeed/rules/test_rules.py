"""What holds for every rule: its witnesses break it alone, and no configuration makes it raise."""

import json
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.deepspeed import rules
from autotune.engines.deepspeed.rules import ALL_RULES, judge
from autotune.engines.deepspeed.rules.base import Setup, changed
from autotune.engines.deepspeed.rules.plain import environment
from autotune.engines.deepspeed.rules.sections import SECTIONS
from autotune.engines.deepspeed.rules.witnesses import witnesses_of
from tests.cases import data_beside
from tests.counting import calls_of
from tests.engines.deepspeed.rules.cases import NEWEST, setup, setup_of, witnesses

DATA = data_beside(__file__)
_KEYS = sorted({name for section in SECTIONS.values() for name in section.keys} | {"nonsense"})
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.sampled_from([10**400, -(10**400)]),
    st.sampled_from(["auto", "cpu", "nvme", "fp16", "bf16", "AdamW", "SGD", "", "two"]),
)
_CONFIGS = st.dictionaries(
    st.sampled_from(_KEYS),
    st.recursive(
        _SCALARS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(_KEYS), inner, max_size=5)
        ),
        max_leaves=12,
    ),
    max_size=8,
)


def test_rule_names_are_unique():
    names = [rule.name for rule in ALL_RULES]
    assert len(set(names)) == len(names)
    for rule in ALL_RULES:
        first = witnesses_of(rule.name)[0]
        assert rule.consequence == first.consequence
        assert rule.source


def test_every_row_of_witnesses_is_of_a_rule():
    rows = json.loads(files(rules).joinpath("witnesses.json").read_text(encoding="utf-8"))
    assert list(rows) == [rule.name for rule in ALL_RULES]


def test_a_key_says_nothing_that_nobody_reads():
    sections = json.loads(files(rules).joinpath("keys.json").read_text(encoding="utf-8"))
    read = {"type", "one_of", "list_of", "any_case", "minimum", "maximum", "is_raw", "no_bool"}
    read |= {"auto", "null", "absent_through", "removed_in", "why_removed"}
    for path, section in sections.items():
        for name, row in section["keys"].items():
            assert isinstance(row, str) or row.keys() <= read, (path, name)


def test_a_witness_breaks_its_rule_alone():
    wrong = {}
    for name, rule, witness in witnesses():
        found = judge(setup_of(witness.broken, version=witness.deepspeed or NEWEST))
        expected = sorted(filter(None, (rule.name, witness.beside)))
        is_alone = sorted(one.rule for one in found) == expected
        if not is_alone or not all(one.message and one.fix for one in found):
            wrong[name] = found
    assert not wrong


def test_the_repaired_witness_is_legal():
    found = {
        name: _judged(setup_of(witness.repaired, version=witness.deepspeed or NEWEST), witness)
        for name, _, witness in witnesses()
    }
    assert not {name: broken for name, broken in found.items() if broken}


def test_the_fix_for_machines_makes_every_rule_silent():
    """Or there is none, and the rule says what somebody has to choose."""
    for name, rule, witness in witnesses():
        broken = setup_of(witness.broken, version=witness.deepspeed or NEWEST)
        (violation,) = _judged(broken, witness)
        for choice in violation.choices:
            chosen = replace(broken, ds_config=changed(broken.ds_config, choice.changes))
            assert rule.name not in [one.rule for one in judge(chosen)], name
        assert violation.consequence == witness.consequence, name
        assert violation.changes or violation.fix, name
        if violation.changes:
            after = replace(broken, ds_config=changed(broken.ds_config, violation.changes))
            assert _judged(after, witness) == [], name


def _judged(judged, witness):
    """Violations but for that which all cases of the kind have."""
    return [violation for violation in judge(judged) if violation.rule != witness.beside]


def test_the_plain_setup_is_legal():
    assert judge(setup()) == []


@given(
    config=_CONFIGS,
    world=st.integers(1, 8),
    tp=st.integers(1, 4),
    pp=st.integers(1, 2),
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    recompute=st.one_of(st.sampled_from(["none", "full", "every_2"]), st.text(max_size=9)),
    version=st.sampled_from(["0.16.0", "0.19.6", NEWEST, "1.0.0+cpu", "unknown"]),
    accelerator=st.sampled_from(["cpu", "cuda"]),
    known=st.booleans(),
)
def test_no_configuration_makes_a_rule_raise(
    config, world, tp, pp, precision, recompute, version, accelerator, known
):
    plain = setup(precision=precision)
    violations = judge(
        Setup(
            ds_config=config,
            ranks=world,
            tp=tp,
            pp=pp,
            global_batch=4 if known else None,
            seq_len=16 if known else None,
            recompute=recompute,
            precision=precision,
            model=plain.model if known else None,
            supports_tp=known,
            supports_recompute=known,
            environment=environment(version=version, accelerator=accelerator),
        )
    )
    assert all(violation.message and violation.fix for violation in violations)


@pytest.mark.parametrize(
    ("rule", "config"),
    [
        ("schema.top_level_value", {"gradient_clipping": 10**400}),
        ("schema.section_value", {"zero_optimization": {"allgather_bucket_size": 10**400}}),
    ],
)
def test_a_number_that_no_float_holds_is_refused_by_name(rule, config):
    assert [violation.rule for violation in judge(setup(config))] == [rule]


@pytest.mark.parametrize("config", [{1: 2}, {"zero_optimization": {None: 3}}, {"fp16": [1]}])
def test_keys_that_are_no_text_are_refused_by_name(config):
    assert judge(setup(config))


def test_judging_a_legal_setup_is_little_work():
    """A lattice judges tens of thousands; benchmarks/lattice_speed.py says how long each takes."""
    first, second = (setup(DATA["LEGAL"], precision="bf16", global_batch=4) for _ in range(2))
    assert not judge(first)
    assert calls_of(lambda: judge(second)) < 3000  # 900 today
