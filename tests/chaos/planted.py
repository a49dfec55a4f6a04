"""Secrets drawn anew and planted in configurations, as people keep them there."""

import functools
import json
import random
import string
from collections.abc import Callable, Iterator
from typing import Any

from autotune.base.secrecy import scrubbed, scrubbed_text
from autotune.base.yaml_file import dump_yaml
from autotune.contract import Outcome, TrialResult, read_json
from autotune.engines.deepspeed.ds_config_file import read_ds_config
from autotune.job.model import load_model, presets
from autotune.record.study import Study
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, must
from tests.trials import spec

_MIXED = string.ascii_letters + string.digits


def _drawn(length: int, of: str = _MIXED) -> str:
    return "".join(random.choices(of, k=length))


def _word() -> str:
    """A password as people choose them: what shows it is its name alone."""
    return "".join(random.choices("bdfgklmnprst", k=4)) + _drawn(3, string.digits)


_Planted = tuple[Any, str]
"""What stands in a configuration, and what of it nobody may see."""


def _form(begins: str, length: int, of: str = _MIXED) -> Callable[[], _Planted]:
    def plant() -> _Planted:
        # A digit in any case: a few forms are told from words by one.
        core = _drawn(length - 1, of) + "7"
        return f"{begins}{core}", core

    return plant


def _named(around: Callable[[str], Any]) -> Callable[[], _Planted]:
    def plant() -> _Planted:
        word = _word()
        return around(word), word

    return plant


def _key() -> _Planted:
    body = _drawn(64, _MIXED + "+/")
    return f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n", body


_NAMES = ("password", "db_pwd", "hf_token", "wandb_api_key", "Secret")

SECRETS: dict[str, Callable[[], _Planted]] = {
    "a token of Hugging Face": _form("hf_", 34),
    "a token of GitHub": _form("ghp_", 36),
    "a key of AWS": _form("AKIA", 16, string.ascii_uppercase + "234567"),
    "a key of OpenAI": _form("sk-proj-", 40),
    "a key of Slack": _form("xoxb-123456789012-", 24),
    "a token of three parts": _form("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.", 43),
    "a private key": _key,
    "an address with a password": _named(lambda w: f"postgres://me:{w}@host/db"),
    "under a name": _named(lambda w: dict.fromkeys(_NAMES, w)),
    "in a list": _named(lambda w: {"x": [["--api-key", f"{w}"], [f"--api-key={w}"]]}),
    "in a section": _named(lambda w: {"basic": {"password": w}, "a": {"hf_token": w}}),
    "in a key": _named(lambda w: {f"password={w}": 1, f"https://me:{w}@host": 2}),
    "in a command": _named(lambda w: f"train.py --token {w} -x && train.py --api-key={w}"),
    "in a variable": _named(lambda w: ["-e", f"HF_TOKEN={w}", f"export DB_PASS={w}"]),
}


def faults() -> Iterator[Fault]:
    """All of them."""
    for number, case in enumerate(SECRETS):
        yield Fault(
            name=f"secret in a configuration: {case}",
            inject=functools.partial(_plant, case),
            in_short=number == 0,
        )


def _plant(case: str, ground: Ground) -> None:
    """See that a secret comes into nothing that is kept or said, wherever it is planted."""
    secret, core = SECRETS[case]()
    folder = ground.folder()
    for name, told in _told(secret, folder):
        must(core not in told, f"{name} tells it: {told[max(0, told.find(core) - 60) :][:200]}")


def _told(secret: Any, folder: Any) -> Iterator[tuple[str, str]]:
    places = {"a": secret, "b": [[secret]], "c": {"d": {"e": secret}}}
    ds_config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        **places,
    }
    file = folder / "ds_config.json"
    file.write_text(json.dumps(ds_config), encoding="utf-8")
    config, notes = read_ds_config(file)
    yield "a base configuration", json.dumps([config, notes], ensure_ascii=False)

    model = folder / "config.json"
    preset = next(name for name in presets() if name.startswith("gpt2"))
    shape = load_model(preset).source["config"]
    model.write_text(json.dumps({**shape, **places}), encoding="utf-8")
    yield "a model", json.dumps(load_model(str(model)).source, ensure_ascii=False)

    study = Study(folder / "results", "s")
    study.trials_folder.mkdir(parents=True)
    trial = spec()
    written = study.write_spec(trial, {"ds_config.json": json.dumps(ds_config)})
    evidence = f"RuntimeError: {json.dumps(places)}"
    result = TrialResult(
        number=trial.identity.number,
        role=trial.identity.role,
        candidate_hash=trial.identity.candidate_hash,
        outcome=Outcome.CRASH,
        evidence=evidence,
    )
    study.write_result(written, result)
    study.write_state({"answer": None, "said": places})
    for path in sorted((folder / "results").rglob("*.json")):
        yield path.name, json.dumps(read_json(path), ensure_ascii=False)

    # As messages, tracebacks and reports quote what they tell of.
    for name, text in {
        "JSON on one line": json.dumps(places),
        "JSON": json.dumps(places, indent=2),
        "YAML": dump_yaml(places),
        "Python": repr(places),
    }.items():
        yield name, scrubbed_text(text)
    yield "twice", json.dumps(scrubbed(scrubbed(places)))
