"""Files to check, and what is said of them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.check import CheckReport, check, read
from autotune.check.fixes import parse_chosen
from autotune.engines.deepspeed.rules.plain import environment
from tests.engines.deepspeed.rules.cases import NEWEST

AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
}
"""What Hugging Face's examples look like."""


def write(folder: Path, content: Any, name: str = "ds_config.json") -> Path:
    path = folder / name
    text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
    path.write_text(text, encoding="utf-8")
    return path


def checked(
    path: Path,
    *,
    accelerator: str = "cuda",
    version: str = NEWEST,
    chosen: Sequence[str] = (),
    **how: Any,
) -> CheckReport:
    where = environment(accelerator=accelerator, version=version)
    return check(read(path, **how), where, [parse_chosen(text) for text in chosen])


def all_chosen(path: Path, **how: Any) -> CheckReport:
    """The report after the first choice of every question."""
    chosen: list[str] = []
    while questions := checked(path, chosen=chosen, **how).questions:
        chosen.append(f"{questions[0].violation.rule}={questions[0].options[0].number}")
    return checked(path, chosen=chosen, **how)


def rules(report: CheckReport) -> list[str]:
    return [found.violation.rule for found in report.found]


def messages(report: CheckReport, rule: str) -> str:
    return "\n".join(
        f"{one.violation.message}; {one.violation.fix}"
        for one in report.found
        if one.violation.rule == rule
    )
