from pathlib import Path

import pytest

from autotune.base.errors import RenderError
from autotune.base.templates import Templates, canonical_json
from tests.chaos.mutations import NO_FILES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def render(folder: Path, text: str, **values: object) -> dict[str, object]:
    (folder / "t.json.j2").write_text(text)
    return Templates(folder).json("t.json.j2", values)


def test_values_become_json(folder):
    text = '{"a": {{ a | tojson }}, "b": {{ b | tojson }}, "c": {{ c | tojson }}}'
    found = render(folder, text, a=True, b={"z": 1.5, "y": None}, c='</"\n')
    assert found == {"a": True, "b": {"z": 1.5, "y": None}, "c": '</"\n'}


def test_an_undefined_variable_is_named_with_its_line(folder):
    with pytest.raises(RenderError) as caught:
        render(folder, '{\n"a": 1,\n"b": {{ absent | tojson }}\n}')
    assert "t.json.j2, line 3" in caught.value.message
    assert "'absent' is undefined" in caught.value.message


@pytest.mark.parametrize("text", ['{"a": {{ a }}}', '{"a": "{{ a ~ 1 }}"}'])
def test_a_value_that_nothing_encodes_is_refused(folder, text):
    with pytest.raises(RenderError, match=r"line 1: the value .*\| tojson"):
        render(folder, text, a=True)


@pytest.mark.cases("text", "message")
def test_a_result_that_is_no_sound_object_is_refused(folder, text, message):
    with pytest.raises(RenderError, match=r"template t\.json\.j2") as caught:
        render(folder, text)
    assert message in caught.value.message


def test_a_syntax_error_names_template_and_line(folder):
    with pytest.raises(RenderError, match=r"template t.json.j2, line 2: "):
        render(folder, "{\n{% if %}\n}")


def test_an_error_in_an_included_template_names_that_one(folder):
    (folder / "inner.j2").write_text("\n{{ gone | tojson }}")
    with pytest.raises(RenderError, match=r"inner.j2, line 2: 'gone' is undefined"):
        render(folder, '{"a": {% include "inner.j2" %}}')


@pytest.mark.cases("escape")
def test_the_sandbox_holds(folder, escape):
    with pytest.raises(RenderError):
        render(folder, f'{{"a": {escape}}}', f=canonical_json)


def test_a_macro_and_an_overridden_block_may_carry_encoded_values(folder):
    (folder / "parent.j2").write_text(
        '{% macro line(v) %}"a": {{ v | tojson }}{% endmacro %}'
        '{ {{ line(a) }}{% block more %}, "b": {{ a | tojson }}{% endblock %} }'
    )
    text = '{% extends "parent.j2" %}{% block more %}{{ super() }}, "c": 3{% endblock %}'
    assert render(folder, text, a=1) == {"a": 1, "b": 1, "c": 3}


def test_a_shell_word_is_quoted(folder):
    (folder / "t.sh.j2").write_text("echo {{ a | sh }}")
    assert Templates(folder).text("t.sh.j2", {"a": "x; rm -rf $HOME"}) == (
        "echo 'x; rm -rf $HOME'"
    )


def test_a_number_of_things_is_counted_and_a_word_of_the_template_is_prose(folder):
    text = '{{ a | count("rank") }}, {{ b | count("rank") }}, {{ b | count("batch", "batches") }}'
    (folder / "t.md.j2").write_text(text)
    assert Templates(folder).text("t.md.j2", {"a": 1, "b": 2}) == "1 rank, 2 ranks, 2 batches"
    with pytest.raises(RenderError, match="undefined"):
        Templates(folder).text("t.md.j2", {"a": 1})


def test_the_users_folder_comes_first_and_the_shipped_one_still_serves(folder):
    (folder / "launch").mkdir()
    (folder / "launch" / "README.md.j2").write_text("mine")
    templates = Templates(folder)
    assert templates.text("launch/README.md.j2", {}) == "mine"
    assert "torch.distributed.run" in templates.text(
        "launch/launch.sh.j2",
        {
            **{"world": 2, "n_nodes": 1, "per_node": 2, "accelerator": "cpu", "variables": []},
            **{"script": "train.py", "packages": ["deepspeed"]},
        },
    )


def test_a_missing_template_says_where_it_was_looked_for(folder):
    with pytest.raises(RenderError, match=r"no/such.j2: not found in .*templates"):
        Templates(folder).text("no/such.j2", {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{% for i in range(10**12) %}x{% endfor %}", "Range too big"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "it is nested too deeply"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "it is nested too deeply"),
    ],
)
def test_the_limit_that_ended_a_template_is_named(folder, text, reason):
    with pytest.raises(RenderError, match=reason) as error:
        render(folder, text)
    assert "t.json.j2" in error.value.message
    assert error.value.hint


@pytest.mark.parametrize("kind", [kind for kind in NO_FILES if kind != "nothing"])
def test_a_template_that_is_no_file_is_not_passed_over(tmp_path, kind):
    """The shipped one of that name would be a silent surprise."""
    path = tmp_path / "launch" / "launch.sh.j2"
    path.parent.mkdir()
    NO_FILES[kind](path)
    if kind == "an empty file":
        assert Templates(tmp_path).text("launch/launch.sh.j2", {}) == ""
        return
    with pytest.raises(RenderError, match=r"template launch/launch\.sh\.j2"):
        Templates(tmp_path).text("launch/launch.sh.j2", {})


@pytest.mark.parametrize("name", ["../secret.j2", "a/../../secret.j2", "/etc/passwd"])
def test_a_template_lies_in_its_folder(tmp_path, name):
    (tmp_path / "secret.j2").write_text("secret")
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "t.j2").write_text(f"{{% include {name!r} %}}")
    with pytest.raises(RenderError, match="template"):
        Templates(folder).text("t.j2", {})
