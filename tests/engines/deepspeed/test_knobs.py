import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import JobError
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.knobs.situation import stages
from autotune.job.model import load_model
from autotune.space.candidate import format_value
from autotune.space.knob import Context
from autotune.space.knobs import canonical, explain, knob_named, parse_settings

LLAMA = load_model("tiny-llama").shape
ELEMENTS = LLAMA.n_params


def context(**changes):
    given = {
        "model": LLAMA,
        "world": 4,
        "global_batch": 32,
        "precision": "bf16",
        "accelerator": "cuda",
    }
    return Context(**{**given, **changes})


CONTEXTS = st.builds(
    context,
    world=st.integers(1, 8),
    precision=st.sampled_from(["bf16", "fp16", "fp32"]),
    accelerator=st.sampled_from(["cpu", "cuda"]),
    model=st.sampled_from([load_model(name).shape for name in ("tiny-llama", "tiny-mixtral")]),
    base=st.just({})
    | st.fixed_dictionaries({"zero.stage": st.integers(0, 3), "overlap_comm": st.booleans()}),
)


def values_of(knob):
    if knob.kind == "bool":
        return st.booleans()
    if knob.name == "gloo.interfaces":
        return st.sampled_from([*knob.choices, "lo", "lo,lo", "eth0,eth1"])
    if knob.pattern:
        return st.sampled_from(knob.choices) | st.integers(2, 9999).map("every_{}".format)
    if knob.choices:
        return st.sampled_from(knob.choices)
    if knob.kind == "float":
        return st.floats(knob.minimum, knob.maximum)
    if knob.maximum < LLAMA.largest_param or knob.minimum > 16:  # no count of elements
        return st.integers(knob.minimum, min(knob.maximum, 10**10))
    # Around the points where this model saturates, and far from them.
    near = st.integers(max(knob.minimum, ELEMENTS - 2), ELEMENTS + 2)
    near |= st.integers(LLAMA.largest_param - 1, LLAMA.largest_param + 1)
    return near | st.integers(knob.minimum, 16) | st.integers(knob.minimum, 10**10)


MAPPINGS = st.fixed_dictionaries({}, optional={n: values_of(k) for n, k in KNOBS.items()})


@given(values=MAPPINGS, context=CONTEXTS)
def test_the_canonical_form_of_the_canonical_form_is_itself(values, context):
    once = canonical(values, context)
    assert canonical(once, context) == once


@given(values=MAPPINGS, context=CONTEXTS, shuffled=st.permutations(list(KNOBS)))
def test_the_order_in_which_knobs_are_named_does_not_matter(values, context, shuffled):
    reordered = {name: values[name] for name in shuffled if name in values}
    assert list(canonical(reordered, context).items()) == list(canonical(values, context).items())


@given(values=MAPPINGS, context=CONTEXTS)
def test_naming_the_default_is_the_same_run_as_not_naming_it(values, context):
    stage = values.get("zero.stage", context.base.get("zero.stage", 0))
    spelled = {
        name: knob.default_for({"zero.stage": stage})
        for name, knob in KNOBS.items()
        if name not in values and name not in context.base
    }
    assert canonical({**spelled, **values}, context) == canonical(values, context)


@given(values=MAPPINGS, context=CONTEXTS)
def test_every_canonical_value_is_legal(values, context):
    for name, value in canonical(values, context).items():
        assert KNOBS[name].check(value, where="test") == value


@given(values=MAPPINGS, context=CONTEXTS)
def test_what_is_explained_is_exactly_what_changed(values, context):
    settled = canonical(values, context)
    changed = {name for name, value in values.items() if settled.get(name) != value}
    assert explain(values, context).keys() == changed


@given(values=MAPPINGS)
def test_settings_come_back_from_the_text_they_are_shown_as(values):
    texts = [f"{name}={format_value(value)}" for name, value in values.items()]
    assert parse_settings(texts, KNOBS) == values
    if texts:
        assert parse_settings([" ".join(texts)], KNOBS) == values, "as reports print them"


def same_run(first, second, **changes):
    return canonical(first, context(**changes)) == canonical(second, context(**changes))


@pytest.mark.cases("stage", "knob", "one", "other")
def test_a_knob_without_effect_at_a_stage_is_none_there(stage, knob, one, other):
    assert same_run({"zero.stage": stage, knob: one}, {"zero.stage": stage, knob: other})


@pytest.mark.cases("stage", "knob", "one", "other")
def test_a_knob_with_an_effect_at_a_stage_keeps_its_values_apart(stage, knob, one, other):
    assert not same_run({"zero.stage": stage, knob: one}, {"zero.stage": stage, knob: other})


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_buckets_saturate_at_all_gradients_of_a_rank(stage):
    def bucket(size):
        return {"zero.stage": stage, "reduce_bucket_size": size}

    assert same_run(bucket(ELEMENTS), bucket(ELEMENTS + 1))
    assert not same_run(bucket(ELEMENTS - 1), bucket(ELEMENTS))
    assert canonical(bucket(10**9), context())["reduce_bucket_size"] == ELEMENTS


def test_a_split_model_saturates_earlier_but_never_below_what_a_rank_holds():
    def bucket(shape, tp):
        split = {"zero.stage": 1, "tp": tp, "reduce_bucket_size": 10**12}
        return canonical(split, context(model=shape, world=8))["reduce_bucket_size"]

    # Elements per rank as DeepSpeed 0.19.8 split this shape over two ranks: 393344.
    measured = dataclasses.replace(
        LLAMA,
        n_layers=2,
        hidden=128,
        ffn_hidden=352,
        n_heads=4,
        n_kv_heads=4,
        vocab=1000,
        max_seq_len=512,
        tied_embeddings=False,
        n_params=658048,
    )
    assert 393344 <= bucket(measured, 2) < 658048
    llama_7b = load_model("llama-2-7b").shape
    assert 1 / 8 <= bucket(llama_7b, 8) / llama_7b.n_params < 1.3 / 8
    mixtral = load_model("tiny-mixtral").shape
    assert bucket(mixtral, 2) == mixtral.n_params


@pytest.mark.cases("chosen", "changes", "knob", "value")
def test_a_knob_settles(chosen, changes, knob, value):
    """null: it does not act."""
    assert canonical(chosen, context(**changes)).get(knob) == value


def test_recomputing_more_seldom_than_there_are_layers_is_the_first_layer_alone():
    n_layers = LLAMA.n_layers
    assert same_run({"recompute": f"every_{n_layers}"}, {"recompute": "every_999"})
    assert not same_run({"recompute": f"every_{n_layers - 1}"}, {"recompute": "every_999"})
    single = dataclasses.replace(LLAMA, n_layers=1)
    assert canonical({"recompute": "every_3"}, context(model=single))["recompute"] == "full"


def test_a_pipeline_saturates_at_its_largest_stage():
    model = load_model("llama-3-8b").shape
    where = context(model=model, world=16)
    chosen = {"zero.stage": 1, "pp": 8, "reduce_bucket_size": 10**10}

    def folded(**knobs):
        return canonical({**chosen, **knobs}, where)

    largest = max(size for size, _ in stages(model, 8))
    assert folded()["reduce_bucket_size"] == largest < model.n_params // 4
    assert folded(pp=1)["reduce_bucket_size"] == model.n_params
    longest = max(n for _, n in stages(model, 8))
    assert folded(recompute="every_8") == folded(recompute="every_32")
    assert folded(recompute="every_32")["recompute"] == f"every_{longest}"
    assert folded(recompute=f"every_{longest - 1}") != folded(recompute="every_32")


def test_a_name_that_is_no_knob_is_refused():
    with pytest.raises(JobError, match=r"'zero\.stag' is not a knob"):
        canonical({"zero.stag": 2}, context())


@pytest.mark.cases("setting", "message", "hint")
def test_a_bad_setting_names_what_is_legal(setting, message, hint):
    with pytest.raises(JobError) as caught:
        parse_settings([setting], KNOBS)
    assert setting in caught.value.message
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_knob_set_twice_is_refused():
    with pytest.raises(JobError, match="already set to 1"):
        parse_settings(["tp=1", "tp=2"], KNOBS)


def test_counts_are_read_as_people_write_them():
    settings = ["reduce_bucket_size=5e8", "overlap_comm=True", "recompute=every_12", "tp = 2"]
    assert parse_settings(settings, KNOBS) == {
        "reduce_bucket_size": 500_000_000,
        "overlap_comm": True,
        "recompute": "every_12",
        "tp": 2,
    }


def test_a_number_that_no_float_holds_is_refused():
    with pytest.raises(JobError, match="out of range"):
        KNOBS["reduce_bucket_size"].check(10**400, where="space.yaml")
    with pytest.raises(JobError, match="is not a number"):
        KNOBS["offload.ratio"].check(10**400, where="space.yaml")


@pytest.mark.parametrize("value", [True, None, [2], {"a": 1}, b"2"])
def test_a_value_of_another_type_is_refused(value):
    with pytest.raises(JobError, match="is not a whole number"):
        KNOBS["zero.stage"].check(value, where="space.yaml")


def test_every_default_is_legal_and_every_knob_is_explained():
    for knob in KNOBS.values():
        for stage in (0, 1, 2, 3):
            default = knob.default_for({"zero.stage": stage})
            assert knob.check(default, where=knob.name) == default
        assert knob.help, knob.name
        assert knob_named(knob.name, KNOBS, where="registry") is knob
        assert not knob.pattern or re.compile(knob.pattern)


def test_at_most_three_knobs_may_have_been_meant_the_likeliest_first():
    knobs = {f"{section}.size": KNOBS["micro_batch"] for section in ("ab", "cd", "ef", "gh")}
    with pytest.raises(JobError) as error:
        knob_named("size", {"sizes": KNOBS["micro_batch"], **knobs}, where="--set")
    assert error.value.hint.startswith("did you mean ab.size or cd.size or ef.size? ")


def test_every_knob_reaches_the_run():
    """By a key of ds_config, by the training script, or by what the ranks start with."""
    by_start = {n for n, k in KNOBS.items() if k.group in ("process", "communication")}
    assert not {n for n, knob in KNOBS.items() if not (knob.key or knob.by_script)} - by_start
