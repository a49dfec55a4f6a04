"""One configuration each: what is found, how it is mended, what is not judged."""

from typing import Any

import pytest
import yaml

from autotune.base.nested import look_up
from autotune.engines.deepspeed.sources.consumers import Consumer
from tests.check.files import checked, messages, rules, write

LINES = {
    "trainer": "torchrun --nproc_per_node 2 train.py --deepspeed ds_config.json {}",
    "accelerate": "accelerate launch --use_deepspeed --num_processes 2 {} train.py",
}
"""Launch lines by who reads the configuration, with flags."""


def facts_of(report) -> dict[str, Any]:
    """What a row may tell of a report; paths of keys are of findings of the rule named first."""
    source, found = report.source, [one.violation for one in report.found]
    errors = [one for one in found if one.level == "error"]
    return {
        "rules": rules(report),
        "errors": [one.rule for one in errors],
        "errors_at": [at for one in errors for at in one.at],
        "at": [at for one in found for at in one.at if one.rule == found[0].rule],
        "consequences": [one.consequence for one in found],
        "left": [one.rule for one in report.left],
        "fixed": None if report.fixed_text is None else yaml.safe_load(report.fixed_text),
        "diff": report.diff,
        "options": [option.words for one in report.questions for option in one.options],
        "after_fix": [one.after_fix for one in report.found],
        "is_written": report.is_written(fixed=True),
        "can_write": source.can_write,
        "says_not_edited": report.not_edited,
        "exit": report.exit_code(fixed=False),
        "exit_fixed": report.exit_code(fixed=True),
        "world": report.world,
        "world_because": report.world_because,
        "levels": [one.level for one in found],
        "consumer": str(source.consumer),
        "because": source.because,
        "reader": source.reader,
        "accelerator": source.accelerator,
        "per_node": source.per_node,
        "mixed_precision": source.mixed_precision,
        "not_for": source.not_for,
        "path": source.path.name,
        "config": dict(source.config),
        "micro": source.arguments.get("per_device_train_batch_size"),
        "rate": source.arguments.get("learning_rate"),
        "stage": look_up(source.config, "zero_optimization.stage"),
        "unknown": list(report.unknown),
        "open_names": [one.what for one in report.not_judged],
        "open": [[one.what, one.why] for one in report.not_judged],
        "would_run": report.would_run(fixed=False),
    }


@pytest.mark.cases("config", "how", "expected")
def test_what_is_found(tmp_path, config, how, expected):
    lines = [("launch", LINES[who].format(how[who])) for who in LINES if who in how]
    name = how.get("name", "ds_config.json")
    more = {key: how[key] for key in ("launch", "world", "version", "chosen") if key in how}
    if "consumer" in how:
        more["consumer"] = Consumer(how["consumer"])
    for other, content in how.get("others", {}).items():
        write(tmp_path, content, other)
    is_yaml = name.endswith("ml") and not isinstance(config, str)
    path = write(tmp_path, yaml.safe_dump(config) if is_yaml else config, name)
    report = checked(path, **dict(lines), **more)
    plain = {key: value for key, value in expected.items() if key not in ("has", "lacks", "says")}
    facts = facts_of(report)
    assert {key: facts[key] for key in plain} == plain
    assert {*expected.get("has", ())} <= {*rules(report)}
    assert {*rules(report)}.isdisjoint(expected.get("lacks", ()))
    for rule, text in expected.get("says", {}).items():
        assert text in messages(report, rule)
