"""What DeepSpeed's own reader makes of numbers, against that reader."""

import json

import pytest

from autotune.check.numbers_read import as_read
from autotune.engines.deepspeed.sources.consumers import Consumer
from tests.check.files import checked, write

SCHEDULER = {"type": "WarmupLR", "params": {"warmup_num_steps": 5e8}}


@pytest.mark.cases("config")
def test_it_is_what_the_reader_makes(config):
    hjson = pytest.importorskip("hjson")
    assert repr(as_read(config)) == repr(json.loads(json.dumps(hjson.loads(json.dumps(config)))))


def test_what_stays_is_the_same_object():
    config = {"a": {"b": [1, 0.5]}}
    assert as_read(config) is config


def test_what_others_read_is_refused_as_it_is(tmp_path):
    zero = {"stage": 1}
    section = {"train_batch_size": 1, "zero_optimization": zero, "scheduler": SCHEDULER}
    one = write(tmp_path, {"model": 1, "ds_config": section}, "one.json")
    other = write(tmp_path, section, "other.json")
    for report in (checked(one), checked(other, consumer=Consumer.ACCELERATE)):
        levels = {one.violation.rule: one.violation.level for one in report.found}
        assert levels["scheduler.param_value"] == "error"
