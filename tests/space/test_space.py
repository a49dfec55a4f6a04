import dataclasses
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from autotune import DEFAULT_ENGINE
from autotune.base.data import data_folder, shipped_spaces
from autotune.base.errors import JobError
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.job.model import load_model
from autotune.record.tried import recorded
from autotune.report.knobs_page import tried_on
from autotune.space import grid as grid_module
from autotune.space.grid import grid_rows
from autotune.space.knob import Context, knobs_of
from autotune.space.knobs import canonical
from autotune.space.space_file import load_space
from tests import site_pages
from tests.cases import data_beside
from tests.record_space_schema import schema, schema_text

DATA = data_beside(__file__)

REPOSITORY = Path(__file__).resolve().parents[2]
CONTEXT = Context(
    model=load_model("tiny-llama").shape,
    world=2,
    global_batch=16,
    precision="fp32",
    accelerator="cpu",
)


@pytest.fixture
def written(tmp_path):
    def write(knobs, head="name: mine\n"):
        path = tmp_path / "mine.yaml"
        path.write_text(f"{head}knobs:\n  {knobs}\n", encoding="utf-8")
        return str(path)

    return write


def values(path, knob="micro_batch"):
    return load_space(path, KNOBS).domains[knob].values


@pytest.mark.cases("text", "expected")
def test_values_can_be_written_in_several_ways(written, text, expected):
    assert values(written(text)) == tuple(expected)


@pytest.mark.cases("text", "message", "hint")
def test_a_bad_value_names_the_file_the_knob_and_what_is_legal(written, text, message, hint):
    path = written(text)
    with pytest.raises(JobError) as caught:
        load_space(path, KNOBS)
    assert path in caught.value.message
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *DATA["NO_SPACES"],
        ("knobs: " + "[" * 60 + "]" * 60, "deeper than 50 levels"),
        ("[" * 5000, "deeper than 50 levels"),
        (f"name: a\nknobs: {{tp: [{'9' * 10000}]}}", "not valid YAML"),
    ],
)
def test_what_is_no_space_is_refused(tmp_path, text, message):
    path = tmp_path / "space.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(JobError) as caught:
        load_space(str(path), KNOBS)
    assert str(path) in caught.value.message
    assert message in caught.value.message
    assert caught.value.hint


def test_aliases_cannot_explode(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(JobError, match="its aliases make more of it"):
        load_space(str(path), KNOBS)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobError, match="is no text: byte 1"):
        load_space(str(path), KNOBS)
    path.write_bytes(b"#" * 2_000_000)
    with pytest.raises(JobError, match="larger than"):
        load_space(str(path), KNOBS)


def test_an_unknown_space_names_the_nearest_shipped_one():
    with pytest.raises(JobError) as caught:
        load_space("zer", KNOBS)
    assert "did you mean zero?" in caught.value.hint
    assert "smoke, zero, zero_offload" in caught.value.hint


def test_a_condition_may_name_a_knob_that_comes_later_or_is_not_searched(written):
    path = written(
        "zero.stage: {values: [0, 3], when: {recompute: full}}\n"
        "  recompute: [none, full]\n"
        "  micro_batch: {values: [1, 2], when: {tp: 1}}"
    )
    shown = {
        (c["recompute"], c["zero.stage"], c["micro_batch"])
        for c in grid_rows(load_space(path, KNOBS), CONTEXT)
    }
    assert shown == {
        ("none", 0, 1), ("none", 0, 2), ("full", 0, 1), ("full", 0, 2), ("full", 3, 1),
        ("full", 3, 2),
    }  # fmt: skip


def test_a_knob_is_tried_after_those_that_let_it_act(written):
    """Whatever these wait for themselves: the list of knobs has a `when` of its own."""
    path = written(
        "zero.stage: 2\n"
        "  offload.optimizer: {values: [none, cpu], when: {zeropp.quantized_weights: false}}\n"
        "  zeropp.quantized_weights: [false]\n"
        "  zenflow: {values: [none, sequential], when: {compile: none}}\n"
        "  zenflow.topk_ratio: [0.1, 0.2]\n"
        "  compile: [none]"
    )
    space = load_space(path, KNOBS)
    assert list(space.domains)[-3:] == ["compile", "zenflow", "zenflow.topk_ratio"]
    context = dataclasses.replace(CONTEXT, optimizer="adamw")
    shown = {(c.get("zenflow"), c.get("zenflow.topk_ratio")) for c in grid_rows(space, context)}
    assert {("sequential", 0.1), ("sequential", 0.2)} <= shown


def test_the_grid_has_every_run_once(written):
    path = written(
        "zero.stage: [0, 1]\n"
        "  micro_batch: [1, 2]\n"
        "  reduce_bucket_size: [100000, 5e8, 6e8]\n"
        "  stage3.prefetch_bucket_size: [0, 1000]"
    )
    found = list(grid_rows(load_space(path, KNOBS), CONTEXT))
    # Stage 0 has no bucket; at stage 1 the two large ones hold all gradients alike.
    assert len(found) == 2 * (1 + 2)
    assert len({c.hash for c in found}) == len(found)
    assert {(c.world, c.global_batch) for c in found} == {(2, 16)}


@pytest.mark.parametrize("name", ["communication", "cpu", "lossy", "zeropp"])
def test_what_the_grid_has_is_canonical(name):
    found = list(grid_rows(load_space(name, KNOBS), CONTEXT))
    assert len({c.hash for c in found}) == len(found)
    for candidate in found:
        assert canonical(candidate.values, CONTEXT) == candidate.values


def test_a_grid_that_is_too_large_is_refused(written, monkeypatch):
    monkeypatch.setattr(grid_module, "MOST_COMBINATIONS", 50)
    path = written("micro_batch: {range: [1, 60, 1]}\n  zero.stage: [0, 1]")
    with pytest.raises(JobError, match=r"50 combinations: zero\.stage 2 x micro_batch 60"):
        list(grid_rows(load_space(path, KNOBS), CONTEXT))


def test_shipped_spaces_are_named_as_their_files():
    assert {"smoke", "zero", "zero_offload"} <= set(shipped_spaces(DEFAULT_ENGINE))
    for name in shipped_spaces(DEFAULT_ENGINE):
        space = load_space(name, KNOBS)
        assert space.name == name
        assert space.description


def test_the_smoke_space_stays_small():
    assert 8 <= len(list(grid_rows(load_space("smoke", KNOBS), CONTEXT))) <= 20


def test_the_published_schema_is_up_to_date():
    published = (data_folder("search_spaces") / "schema.json").read_text(encoding="utf-8")
    assert published == schema_text(), (
        "python -m tests.record_space_schema > search_spaces/schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(json.loads(published))


@pytest.mark.parametrize("name", shipped_spaces("megatron"))
def test_spaces_of_megatron_have_a_schema_of_their_own(name):
    folder = data_folder("search_spaces")
    published = (folder / "megatron.schema.json").read_text(encoding="utf-8")
    assert published == schema_text("megatron"), (
        "python -m tests.record_space_schema megatron > search_spaces/megatron.schema.json"
    )
    space = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(space, json.loads(published))
    assert load_space(name, knobs_of("megatron"), "megatron").name == name
    with pytest.raises(JobError, match="engine megatron"):
        load_space(name, KNOBS, DEFAULT_ENGINE)


@pytest.mark.parametrize("name", shipped_spaces(DEFAULT_ENGINE))
def test_shipped_spaces_pass_the_published_schema(name):
    text = (data_folder("search_spaces") / f"{name}.yaml").read_text(encoding="utf-8")
    jsonschema.validate(yaml.safe_load(text), schema(KNOBS))


@pytest.mark.cases("knobs")
def test_the_schema_refuses_what_the_loader_refuses(knobs, tmp_path):
    space = {"name": "mine", "knobs": knobs}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(space, schema(KNOBS))
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(space), encoding="utf-8")
    with pytest.raises(JobError):
        load_space(str(path), KNOBS)


GUIDE = (REPOSITORY / "docs" / "spaces.md").read_text(encoding="utf-8")
KNOBS_PAGE = site_pages.knobs()


def test_the_guides_example_is_a_space(tmp_path):
    example = re.search(r"```yaml\n(name: .*?)```", GUIDE, re.DOTALL)[1]
    path = tmp_path / "mine.yaml"
    path.write_text(example, encoding="utf-8")
    assert load_space(str(path), KNOBS).domains["reduce_bucket_size"].values == (
        50_000_000,
        500_000_000,
    )
    jsonschema.validate(yaml.safe_load(example), schema(KNOBS))


@pytest.mark.parametrize("engine", ["deepspeed", "megatron"])
def test_every_knob_is_in_the_documentation(engine):
    assert [name for name in knobs_of(engine) if f"### `{name}`\n" not in KNOBS_PAGE] == []


def test_the_documentation_tells_what_a_knob_was_tried_on():
    for name, knob in KNOBS.items():
        _, _, entry = KNOBS_PAGE.partition(f"### `{name}`\n")
        entry = entry.partition("###")[0]
        assert f"- acts: {knob.scope}\n" in entry, name
        assert f"- tried on: {tried_on(knob, recorded())}\n" in entry, name
        assert knob.source, name
        assert all(value in knob.choices or value is True for value in knob.needs_cuda), name


def test_what_the_base_configuration_sets_decides_whether_a_knob_is_tried(written):
    path = written(
        "stage3.prefetch_bucket_size: [0, 1000]\n"
        "  reduce_bucket_size: {values: [1000, 2000], when: {micro_batch: 2}}"
    )
    base = {"zero.stage": 3, "micro_batch": 2}
    found = list(grid_rows(load_space(path, KNOBS), dataclasses.replace(CONTEXT, base=base)))
    tried = {(c["stage3.prefetch_bucket_size"], c["reduce_bucket_size"]) for c in found}
    assert tried == {(0, 1000), (0, 2000), (1000, 1000), (1000, 2000)}


@pytest.mark.cases("text", "said")
def test_what_only_yaml_1_1_knows_is_refused(written, text, said):
    with pytest.raises(JobError, match=said):
        load_space(written(text), KNOBS)
