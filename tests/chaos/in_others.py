"""Faults of others' files: secrets in them, and text that acts where it is shown."""

import functools
import io
import json
from collections.abc import Iterator
from dataclasses import replace

from autotune.base.templates import Templates
from autotune.base.text import csv_text
from autotune.contract import RESULT_FILE, SPEC_FILE, Role, read_json, write_json
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.export.door import write_export
from autotune.job import model
from autotune.record.study import Study
from autotune.record.table import load_table, write_table
from autotune.report.page.page import render_page
from autotune.report.results.study import read_report
from autotune.report.terminal.console import SafeConsole
from autotune.report.terminal.markdown import render_markdown
from autotune.report.terminal.study import print_report
from autotune.search.trial_spec import Run, make_spec
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, must
from tests.jobs import CPU, TINY, tiny_job
from tests.report.diagnosed import diagnosed
from tests.report.test_terminal import finished

_PLANTED = "Zq7xV2mK9pLwZq7xV2mK"

SECRETS = {
    "a token of Hugging Face": f"hf_{_PLANTED}",
    "a token of GitHub": f"ghp_{_PLANTED}{_PLANTED}",
    "a key of AWS": f"AKIA{_PLANTED.upper()}",
    "a web token": f"eyJhbGciOiJIUzI1NiJ9.{_PLANTED}.{_PLANTED}",
    "a private key": f"-----BEGIN PRIVATE KEY-----\n{_PLANTED}\n-----END PRIVATE KEY-----",
    "an address with a password": f"postgres://me:{_PLANTED}@host/db",
    "an address with a token": f"https://host/path?token={_PLANTED}",
    "a header": f"Authorization: Bearer {_PLANTED}",
    "a command line": f"run.py --api-key {_PLANTED} --lr 1",
    "a random text": f"{_PLANTED}bN4cT8",
}
"""What it is -> a value that shows that it is one, under any name."""

NAMES = ("pwd", "pass", "bearer", "cookie", "dsn", "apiKey", "private-key", "db.password", "sas")
"""Names under which any text is one."""

ACTING = {
    "an escape sequence": "\x1b[2Jgone",
    "a control code of 8 bits": "\x9b2Jgone",
    "a line of its own": "ok\ntrial 7: ok",
    "the other direction": "\u202eko",
    "what nobody sees": "o\u200bk",
    "markup": "<script>alert(1)</script> [a](http://b) | c",
    "a formula": "=cmd|' /C calc'!A0",
}
"""What it is -> evidence of a trial."""


def faults() -> Iterator[Fault]:
    """All of them."""
    for what, value in SECRETS.items():
        yield Fault(
            name=f"secret: {what}",
            inject=functools.partial(_secret, "note", value),
            in_short=what == "a token of Hugging Face",
        )
    for name in NAMES:
        yield Fault(
            name=f"secret: under {name}", inject=functools.partial(_secret, name, "me" * 4)
        )
    for what, text in ACTING.items():
        yield Fault(
            name=f"text that acts: {what}",
            inject=functools.partial(_acting, text),
            in_short=what == "an escape sequence",
        )


def _secret(name: str, value: str, ground: Ground) -> None:
    """It stands in no file of a trial or an export, wherever a user's file holds it."""
    folder = ground.folder()
    job = tiny_job(folder)
    hidden = {name: value, "list": [[value]] if name == "note" else [{name: value}]}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "wandb": {"enabled": True, **hidden},
        "application": {"deep": hidden},
        "flops_profiler": {"enabled": False, **hidden},
        "aio": hidden,
    }
    own, theirs = folder / "own.json", folder / "config.json"
    own.write_text(json.dumps(config), encoding="utf-8")
    theirs.write_text(json.dumps({**TINY, **hidden, "deep": hidden}), encoding="utf-8")
    job = replace(job, model=model.load_model(str(theirs)), base_config=own)
    engine = DeepSpeedEngine(job, CPU)
    candidate = next(iter(next(iter(engine.ladder()))))
    spec = make_spec(
        Run(candidate=candidate, role=Role.SEARCH),
        study="s",
        number=0,
        job=job,
        engine=engine,
        environment=CPU,
    )
    study = Study(folder / "results", "s")
    study.trials_folder.mkdir(parents=True)
    files = engine.files(candidate)
    study.write_spec(spec, files)
    study.write_state({"job": hidden})
    write_export(
        folder / "results" / "best", {**files, "README.md": json.dumps(hidden)}, marker={}
    )
    secret = _PLANTED if _PLANTED in value or _PLANTED.upper() in value else value
    for path in (folder / "results").rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            must(secret not in text and secret.upper() not in text, f"{path.name} holds it")


def _acting(text: str, ground: Ground) -> None:
    """It is shown as text by everything that shows a study."""
    study = finished(ground.folder(), diagnosed)
    path = study.trial_folder(1) / RESULT_FILE
    result = read_json(path)
    write_json(path, {**result, "outcome": "crash", "evidence": text})
    must((study.trial_folder(1) / SPEC_FILE).exists(), "the record is another one")
    report, frame = read_report(study), load_table(study.folder)
    out = io.StringIO()
    print_report(
        SafeConsole(file=out, width=200, force_terminal=True, color_system=None),
        report,
        details=True,
    )
    shown = {
        "terminal": out.getvalue(),
        "Markdown": render_markdown(report),
        "CSV": csv_text(frame),
        "page": render_page(report, frame, Templates(None)),
    }
    write_table(study)
    for where, told in shown.items():
        for bad in ("\x1b[2J", "\x9b", "\u202e", "\u200b", "\ntrial 7"):
            must(bad not in told, f"{where} shows {bad!r} as it is")
    must("<script>alert" not in shown["page"], "the page holds an element of others")
    must(",=cmd" not in shown["CSV"], "a cell is a formula")
