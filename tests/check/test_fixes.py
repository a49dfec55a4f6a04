"""The fix: it loses nothing, settles at once, and leaves to the user what is theirs."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.base.errors import JobError
from autotune.base.nested import look_up
from autotune.base.yaml_file import parse_yaml
from autotune.check.fixes import is_same
from tests.cases import data_beside
from tests.check.files import AUTO, all_chosen, checked, rules, write

DATA = data_beside(__file__)

PLAIN: dict[str, Any] = DATA["PLAIN"]
TRAINERS = AUTO | {"zero_optimization": {"stage": 2, "overlap_comm": True}}
WORLD = 8

KEPT = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_clipping", "bf16", "fp16")
"""Keys that decide what is trained; the optimizer and the stage besides."""


def leaves(value: Any, at: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping):
        return [leaf for name, inner in value.items() for leaf in leaves(inner, (*at, name))]
    return [(at, value)]


def meant(value: Any) -> str:
    """A value but for its type and spelling."""
    if isinstance(value, list):
        return str([meant(one) for one in value])
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return str(float(value.strip().lower() == "true"))
    try:
        return str(float(value))
    except (TypeError, ValueError):
        return str(value).strip().lower()


def lost(before: Any, after: Any) -> Counter[str]:
    """Values that are gone; a device stands for the switch that it takes the place of."""
    kept = Counter(meant(value) for _, value in leaves(after))
    for path, value in leaves(before):
        if path[-1].startswith("cpu_offload") and path not in dict(leaves(after)):
            kept[meant(value)] += 1
        if path[-1].endswith("accumulation_steps"):
            kept[meant(value)] += 1
    return Counter(meant(value) for _, value in leaves(before)) - kept


# Mutations: each takes a configuration of its own and changes it.


def misspelt(config: dict[str, Any], draw: Any) -> None:
    section = draw(st.sampled_from([config, config.get("zero_optimization"), config.get("bf16")]))
    if isinstance(section, dict) and section:
        name = draw(st.sampled_from(sorted(section)))
        at = draw(st.integers(0, len(name) - 1))
        section[name[:at] + name[at + 1 :]] = section.pop(name)


def at_the_top(config: dict[str, Any], draw: Any) -> None:
    zero = config.get("zero_optimization")
    if isinstance(zero, dict) and zero:
        name = draw(st.sampled_from(sorted(zero)))
        config.setdefault(name, zero.pop(name))


def of_another_type(config: dict[str, Any], draw: Any) -> None:
    path, value = draw(st.sampled_from(leaves(config)))
    section = config
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = draw(
        st.sampled_from([str(value), f" {value} ", str(value).lower(), [value], {"a": value}])
        if not isinstance(value, bool)
        else st.sampled_from([int(value), str(value), str(value).lower(), float(value)])
    )


def somebody_elses(config: dict[str, Any], draw: Any) -> None:
    config[draw(st.sampled_from(["lr", "model", "_note", "app", "zz"]))] = draw(
        st.sampled_from([1, "two", [1, 2], {"a": {"b": 1}, "c": None}, True, None])
    )
    zero = config.get("zero_optimization")
    if isinstance(zero, dict):
        zero[draw(st.sampled_from(["backend", "x", "mode"]))] = draw(st.sampled_from([7, "y"]))


def legacy(config: dict[str, Any], draw: Any) -> None:
    kind = draw(
        st.sampled_from(["bfloat16", "cpu_offload", "curriculum", "amp", "norm", "rename"])
    )
    zero = config.get("zero_optimization")
    if kind == "bfloat16" and "bf16" in config:
        config["bfloat16"] = config.pop("bf16")
    elif kind == "cpu_offload" and isinstance(zero, dict):
        if draw(st.booleans()):
            zero.pop("offload_optimizer", None)
        zero["cpu_offload"] = draw(st.booleans())
    elif kind == "curriculum":
        config["curriculum_learning"] = {
            "enabled": draw(st.booleans()),
            "curriculum_type": "seqlen",
            "min_difficulty": 8,
            "max_difficulty": 1024,
            "schedule_type": "fixed_linear",
            "schedule_config": {"total_curriculum_step": 60_000, "difficulty_step": 8},
        }
    elif kind == "amp":
        config["amp"] = {"enabled": True, "opt_level": "O1"}
    elif kind == "norm" and isinstance(config.get("optimizer"), dict):
        params = config["optimizer"].get("params")
        if isinstance(params, dict):
            params["max_grad_norm"] = 0.3
            if draw(st.booleans()):
                config.pop("gradient_clipping", None)
    elif isinstance(config.get("optimizer"), dict):
        config["optimizer"]["type"] = draw(st.sampled_from(["adamw", "OneBitAdam", "Adm", "Lion"]))


def another_number(config: dict[str, Any], draw: Any) -> None:
    name = draw(st.sampled_from(list(PLAIN)[:4]))
    config[name] = draw(st.sampled_from([0, 1, 3, 8, 16, 16.0, 48, 96, -1, None, "auto"]))


def without(config: dict[str, Any], draw: Any) -> None:
    config.pop(draw(st.sampled_from(sorted(config))))


MUTATIONS = (
    *(misspelt, at_the_top, of_another_type, somebody_elses, legacy, another_number, without),
)


@st.composite
def mutants(draw: Any) -> dict[str, Any]:
    config = json.loads(json.dumps(draw(st.sampled_from([PLAIN, TRAINERS]))))
    for mutate in draw(st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=4)):
        if config:
            mutate(config, draw)
    return config


def hold(path, before, *, world, folder):
    """What must be so of the fix of a file, whatever stands in it."""
    report = checked(path, world=world)
    if report.fixed_text is None:
        assert not report.is_written(fixed=True)
        return
    after = parsed(path, report.fixed_text)
    assert not lost(before, after)
    for name in KEPT:
        if name in before and name in after:
            assert is_same(before[name], after[name]) or isinstance(before[name], Mapping), name
    for dotted in ("optimizer.type", "zero_optimization.stage", "bf16.enabled", "fp16.enabled"):
        said = look_up(before, dotted)
        assert said is None or is_same(said, look_up(after, dotted)), dotted
    if not report.passes:
        assert not report.is_written(fixed=True)
        return
    again = checked(write(folder, report.fixed_text, f"again{path.suffix}"), world=world)
    assert again.fixed_text is None, again.diff
    assert again.passes


def parsed(path, text):
    return parse_yaml(text, path) if path.suffix == ".yaml" else json.loads(text)


COMMON = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@COMMON
@given(config=mutants(), world=st.sampled_from([None, WORLD]))
def test_a_fix_of_json_loses_nothing_and_settles_at_once(tmp_path, config, world):
    hold(write(tmp_path, config), config, world=world, folder=tmp_path)


@settings(parent=COMMON, max_examples=25)
@given(config=mutants(), data=st.data())
def test_what_is_chosen_settles_at_once_too(tmp_path, config, data):
    path = write(tmp_path, config)
    questions = checked(path, world=WORLD).questions
    if not questions:
        return
    question = data.draw(st.sampled_from(questions))
    option = data.draw(st.sampled_from(question.options))
    answer = f"{question.violation.rule}={option.number}"
    report = checked(path, world=WORLD, chosen=[answer])
    assert report.fixed_text is not None
    again = checked(write(tmp_path, report.fixed_text, "again.json"), world=WORLD)
    assert again.fixed_text is None, again.diff
    left = [one for question in again.questions for one in question.options]
    assert option.changes not in [one.changes for one in left]


@COMMON
@given(config=mutants(), flow=st.sampled_from([True, False, None]), within=st.booleans())
def test_a_fix_of_yaml_does_the_same_with_every_comment_kept(tmp_path, config, flow, within):
    data = {"learning_rate": 1.0, "deepspeed": config, "seed": 1} if within else config
    lines = yaml.safe_dump(data, default_flow_style=flow, sort_keys=False).splitlines()
    text = "# head\n" + "".join(
        f"{line}  # {at}\n" if not flow and not line.endswith(("|", ">")) else f"{line}\n"
        for at, line in enumerate(lines)
    )
    path = write(tmp_path, text, "mutant.yaml")
    before = parsed(path, text)
    report = checked(path, world=WORLD)
    if report.fixed_text is not None:
        comments = Counter(line.partition("# ")[2] for line in text.splitlines())
        after = Counter(line.partition("# ")[2] for line in report.fixed_text.splitlines())
        assert not comments - after - Counter({"": len(lines)})
    hold(path, before, world=WORLD, folder=tmp_path)


def fixed(tmp_path, config, *, world=WORLD, **how):
    """The configuration after what --fix does alone, whether or not that is enough."""
    report = checked(write(tmp_path, config), world=world, **how)
    return config if report.fixed_text is None else json.loads(report.fixed_text)


def options(report) -> list[str]:
    return [option.words for question in report.questions for option in question.options]


BATCH = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 16}


@pytest.mark.cases("before", "after")
def test_what_belongs_elsewhere_is_moved_with_its_value(tmp_path, before, after):
    assert fixed(tmp_path, {"train_batch_size": 8} | before) == {"train_batch_size": 8} | after


@pytest.mark.cases("config", "said")
def test_what_takes_a_value_away_or_trains_another_thing_is_a_choice(tmp_path, config, said):
    report = checked(write(tmp_path, {"train_batch_size": 8} | config), world=WORLD)
    assert report.fixed_text is None
    assert said in options(report)


def test_a_choice_is_taken_by_its_number_and_settles_the_file(tmp_path):
    path = write(tmp_path, BATCH)
    for number, after in (
        (1, BATCH | {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}),
        (2, BATCH | {"train_batch_size": 128}),
    ):
        report = checked(path, world=WORLD, chosen=[f"batch.product={number}"])
        assert report.passes
        assert json.loads(report.fixed_text) == after
        again = checked(write(tmp_path, report.fixed_text, "again.json"), world=WORLD)
        assert (rules(again), again.fixed_text) == ([], None)


@pytest.mark.parametrize(("number", "off"), [(1, "fp16"), (2, "bf16")])
def test_two_precisions_are_a_choice_with_a_number(tmp_path, number, off):
    path = write(tmp_path, PLAIN | {"fp16": {"enabled": True}})
    assert checked(path).fixed_text is None
    report = checked(path, chosen=[f"precision.fp16_and_bf16={number}"])
    after = json.loads(report.fixed_text)
    assert [name for name in ("fp16", "bf16") if not after[name]["enabled"]] == [off]
    assert report.passes


@pytest.mark.cases("chosen", "said")
def test_a_choice_that_is_none_is_named(tmp_path, chosen, said):
    path = write(tmp_path, BATCH)
    with pytest.raises(JobError, match=said):
        checked(path, world=WORLD, chosen=chosen)


def test_two_keys_that_claim_one_place_are_left(tmp_path):
    config = {"train_batch_size": 8, "gradient_cliping": 1.0, "gradient_clippin": 0.5}
    report = checked(write(tmp_path, config), world=WORLD)
    assert report.fixed_text is None
    assert len(options(report)) >= 2


def test_every_choice_leads_on(tmp_path):
    """What is chosen is written, and is not asked again."""
    config = PLAIN | {"amp": {"enabled": True}, "zero_optimization": {"stage": 1, "backend": 1}}
    report = all_chosen(write(tmp_path, config), world=WORLD)
    assert report.passes
    assert report.questions == ()


@pytest.mark.cases("name", "text", "after")
def test_yaml_is_mended_where_it_stands(tmp_path, name, text, after):
    path = write(tmp_path, text, name)
    report = checked(path)
    assert (report.fixed_text, report.not_edited) == (after, "")


def test_accelerates_section_is_mended_in_its_own_words(tmp_path):
    text = "# mine\ndeepspeed_config:\n  offload_param_device: cpu  # big\n  zero_stage: 2\n"
    report = all_chosen(write(tmp_path, text, "accelerate.yaml"))
    assert report.fixed_text == "# mine\ndeepspeed_config:\n  # big\n  zero_stage: 2\n"


@pytest.mark.cases("config")
@pytest.mark.parametrize("zero", [{}, {"zero_optimization": {"stage": 2}}])
def test_an_auto_that_comes_to_its_place_tells_the_reader_at_once(tmp_path, config, zero):
    """With the "auto" in its place the file is Trainer's: what that refuses is mended, too."""
    before = {"train_micro_batch_size_per_gpu": 1} | config | zero
    report = checked(write(tmp_path, before))
    assert report.source.consumer == "trainer"
    assert report.passes, report.left
    again = checked(write(tmp_path, report.fixed_text, "again.json"))
    assert (again.source.consumer, again.fixed_text) == ("trainer", None), again.diff
    autos = [value for _, value in leaves(json.loads(report.fixed_text)) if value == "auto"]
    assert autos == ["auto"]


def test_a_number_that_was_text_is_written_as_it_is_wanted(tmp_path):
    before = {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "5e8"},
    }
    report = checked(write(tmp_path, before))
    assert '"reduce_bucket_size": 500000000' in report.fixed_text
    assert "500000000.0" not in report.fixed_text


def test_no_choice_leads_back_to_what_was_there(tmp_path):
    seen: list[str] = []
    config: dict[str, Any] = {
        "optimizer": {"type": "Muon", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 3, "zero_quantized_gradients": True},
        "train_micro_batch_size_per_gpu": 1,
    }
    while (text := json.dumps(config)) not in seen:
        seen.append(text)
        report = checked(write(tmp_path, config), world=4)
        option = next((one for it in report.questions for one in it.options), None)
        if option is None:
            break
        reply = f"{report.questions[0].violation.rule}={option.number}"
        chosen = checked(write(tmp_path, config), world=4, chosen=[reply])
        config = json.loads(chosen.fixed_text or text)
    assert report.passes
