"""`check` against the live engine, on mutants of the project's own configurations."""

import json

import pytest
import yaml

from benchmarks.check_truth import (
    AGREED,
    CONSUMERS,
    FALSE_ALARM,
    LEFT_OUT,
    MISS,
    OTHER_WORD,
    WRONG,
    Said,
    compare,
    judge,
    shown,
    table,
    verdicts,
)
from benchmarks.mutants import (
    ACCELERATE_BASE,
    ACCELERATE_FILE,
    CONFIG_FILE,
    TRAINER_ARGUMENTS,
    TRAINER_FILE,
    Mutant,
    mutants,
)
from tests.cases import data_beside

DATA = data_beside(__file__)

SEED = 7
KNOWN: dict[str, str] = {}
"""Mutants of the run below of which `check` is known to say something wrong -> why."""

PASSED, REFUSED = Said(would_run=True, findings=()), Said(would_run=False, findings=("raised x",))
READS = DATA["READS"]


def mutant(text, **other):
    return Mutant(
        **{
            "name": "one",
            "kind": "some",
            "base": "plain",
            "consumer": "deepspeed",
            "world": 1,
            "files": {CONFIG_FILE: text},
            "named": CONFIG_FILE,
            **other,
        }
    )


def word(text, said, error=None, **reads):
    answer = {"error": error, "reads": READS | reads, "seconds": 0.0}
    return compare(mutant(text), said, answer).word


def test_the_same_seed_makes_the_same_mutants():
    first, again = (list(mutants(50, 3, consumers=CONSUMERS)) for _ in range(2))
    assert first == again
    assert first != list(mutants(50, 4, consumers=CONSUMERS))


def test_every_mutant_is_judged_without_a_crash():
    crashes = [
        said.crash for one in mutants(300, SEED, consumers=CONSUMERS) if (said := judge(one))
    ]
    assert [crash for crash in crashes if crash] == []


@pytest.mark.parametrize(
    ("said", "error", "expected"),
    [
        (PASSED, None, AGREED),
        (PASSED, "ValueError: x", MISS),
        (REFUSED, None, FALSE_ALARM),
        (REFUSED, "ValueError: x", AGREED),
        (PASSED, "hung", LEFT_OUT),
    ],
)
def test_what_is_said_is_compared_with_what_happened(said, error, expected):
    assert word('{"train_batch_size": 2}', said, error) == expected


@pytest.mark.cases("text", "reads")
def test_running_otherwise_without_a_word_is_a_miss(text, reads):
    assert word(text, PASSED, **reads) == MISS
    assert word(text, REFUSED, **reads) == OTHER_WORD


def test_running_otherwise_is_no_miss_where_a_finding_names_the_key():
    said = Said(would_run=True, findings=("differs batch.x train_batch_size is 2; mend it",))
    assert word('{"train_batch_size": 4}', said) == AGREED
    assert word('{"train_batch_size": 4, "gradient_clipping": 0.5}', said) == MISS
    section = Said(would_run=True, findings=("ignored x it; mend it",), at=("optimizer",))
    assert word('{"optimizer": {"params": {"lr": 0.2}}}', section) == AGREED
    converted = Said(would_run=True, findings=("converted batch.x train_batch_size; mend it",))
    assert word('{"train_batch_size": 4}', converted) == MISS


def test_the_table_counts_what_was_compared():
    answers = [
        ({"error": None, "reads": READS, "seconds": 1.0}, REFUSED),
        ({"error": "hung", "seconds": 1.0}, PASSED),
        ({"error": None, "reads": READS, "seconds": 1.0}, PASSED),
    ]
    found = [compare(mutant("{}"), said, answer) for answer, said in answers]
    last = list(table(found, "kind"))[-1]
    assert last == "| all | 3 | 2 | 1 | 0 | 0 | 0 | 1 | 50.00% | 0.00% |  |"


TRAINERS = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 1},
}


def kinds():
    """A file of each kind, for those who read it."""
    for name, config in DATA["KINDS"].items():
        yield mutant(json.dumps(config), name=name)
    for name, config in DATA["ACCELERATES"].items():
        section = {"deepspeed_config_file": CONFIG_FILE, "zero3_init_flag": False}
        outer = ACCELERATE_BASE | {"deepspeed_config": section}
        files = {CONFIG_FILE: json.dumps(config), ACCELERATE_FILE: yaml.safe_dump(outer)}
        yield mutant("", name=name, consumer="accelerate", files=files, named=ACCELERATE_FILE)
    for name, fields in DATA["FIELDS"].items():
        outer = ACCELERATE_BASE | {"deepspeed_config": {"zero_stage": 1}} | fields
        files = {ACCELERATE_FILE: yaml.safe_dump(outer)}
        yield mutant("", name=name, consumer="accelerate", files=files, named=ACCELERATE_FILE)
    text = yaml.safe_dump(TRAINER_ARGUMENTS | {"deepspeed": TRAINERS}).replace("0.0003", "3e-4")
    files = {TRAINER_FILE: text}
    yield mutant("", name="3e-4", consumer="trainer", files=files, named=TRAINER_FILE)
    told = TRAINER_ARGUMENTS | {"deepspeed": CONFIG_FILE}
    adam = {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}}
    yield mutant(
        json.dumps(TRAINERS | {"optimizer": adam}),
        name="a default",
        consumer="trainer",
        arguments=[word for name, value in told.items() for word in (f"--{name}", str(value))],
    )


@pytest.mark.thorough
@pytest.mark.real
def test_check_agrees_with_the_engine(tmp_path):
    asked = [*mutants(60, SEED, consumers=CONSUMERS), *kinds()]
    found = verdicts(asked, tmp_path)
    assert sum(one.word == LEFT_OUT for one in found) <= 6
    assert sum(one.error is None for one in found) >= 15
    wrong = [one for one in found if one.word in WRONG and one.mutant.name not in KNOWN]
    assert not wrong, "\n".join(map(shown, wrong))
