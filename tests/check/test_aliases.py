"""YAML with anchors: read, and written only beside what is shared."""

import yaml

from autotune.app.check import write_fix
from tests.cases import data_beside
from tests.check.files import checked, messages, rules, write

DATA = data_beside(__file__)

SHARED = """\
common: &common
  train_batch_size: 2
  gradient_cliping: 1.0
small:
  deepspeed:
    <<: *common
    zero_optimization: &zero {stage: 1, overlap_com: true}
"""


def test_what_is_merged_in_is_judged_where_it_is_used(tmp_path):
    report = checked(write(tmp_path, SHARED, "a.yaml"))
    places = {found.violation.at[0]: found.place.line for found in report.found}
    assert places == {"gradient_cliping": 5, "zero_optimization.overlap_com": 7}


def test_a_fix_of_what_is_shared_is_told_and_not_written(tmp_path):
    report = checked(write(tmp_path, SHARED, "a.yaml"))
    assert "alias" in report.not_edited
    assert not write_fix(report)
    assert "rename gradient_cliping" in messages(report, "schema.unknown_top_level_key")


def test_a_fix_beside_an_alias_is_written(tmp_path):
    text = (
        "sizes: &sizes {train_batch_size: 2}\n"
        "deepspeed:\n"
        "  <<: *sizes  # of all\n"
        "  zero_optimization:\n"
        "    stage: 1\n"
        "    overlap_com: true  # twice as fast\n"
    )
    path = write(tmp_path, text, "a.yaml")
    assert write_fix(checked(path))
    assert path.read_text() == text.replace("overlap_com:", "overlap_comm:")
    assert rules(checked(path)) == []


def test_an_alias_in_place_of_a_value_is_not_overwritten(tmp_path):
    text = "rate: &rate 16.5\ndeepspeed: {train_batch_size: 2, zero_optimization: *rate}\n"
    path = write(tmp_path, text, "a.yaml")
    write_fix(checked(path))
    assert yaml.safe_load(path.read_text())["rate"] == 16.5
    assert path.read_text() == text


def test_a_stage_at_the_top_of_a_yaml_is_moved(tmp_path):
    text = "train_micro_batch_size_per_gpu: 1\nstage: 2  # for the large one\nname: mine\n"
    path = write(tmp_path, text, "a.yaml")
    assert "belongs to zero_optimization" in messages(
        checked(path), "schema.unknown_top_level_key"
    )
    assert write_fix(checked(path))
    assert yaml.safe_load(path.read_text()) == {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2},
        "name": "mine",
    }
    assert "# for the large one" in path.read_text()
    path.write_text(text.replace("stage: 2", "stage: train"))
    assert rules(checked(path)) == []  # an application's


DOCUMENTS = DATA["DOCUMENTS"]
