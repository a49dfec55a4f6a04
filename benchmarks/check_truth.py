"""How often `check` is wrong, against DeepSpeed, Trainer and accelerate as they are installed.

    python -m benchmarks.check_truth --n 2000 --seed 1

Mutants of the project's own configurations (`mutants.py`) are judged by `check`, then really
initialized and trained for two steps on the CPU (`live_engine.py`). A false alarm is one that
`check` would not let run, and that runs as the file says; a miss is one that `check` passes, and
that raises, or runs with another stage, batch, clipping, optimizer, precision or offload than it
says, and no finding names that key.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from autotune.app.check import CheckFlags, check_file
from autotune.base.errors import AutotuneError
from autotune.base.yaml_file import parse_yaml
from autotune.check import CheckReport
from autotune.engines.deepspeed.extensions import build
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.engines.deepspeed.rules.sections import CANONICAL
from autotune.engines.deepspeed.sources.consumers import Consumer
from benchmarks.mutants import HERE, SCRIPT_FILE, TRAINER_SCRIPT, Mutant, mutants

LIVE_ENGINE = Path(__file__).with_name("live_engine.py")
EXTENSIONS = ("CPULionBuilder", "CPUAdagradBuilder")
"""Compiled for minutes once, for optimizers that few use."""
CONSUMERS = ("deepspeed", "trainer", "accelerate")
FALSE_ALARM, MISS, CRASH, OTHER_WORD = "false alarm", "miss", "crash", "other word"
AGREED, LEFT_OUT = "agreed", "left out"
WRONG = (FALSE_ALARM, MISS, CRASH)
"""What counts as wrong; `other word`: would raise was said of what runs otherwise."""
_OF_THE_MACHINE = (
    "ModuleNotFoundError: No module named",
    "RuntimeError: FP8 is not available on this machine",
)
"""What is not installed here: no file states it."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What `check` says of a mutant."""

    would_run: bool
    findings: tuple[str, ...]
    """Consequence, rule, message and fix of each."""
    at: tuple[str, ...] = ()
    """Keys and sections, dotted, that findings are about, but for values that are converted."""
    crash: str = ""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A mutant, what was said of it, and what happened."""

    mutant: Mutant
    said: Said
    error: str | None
    """The engine's; None: it ran."""
    reads: Mapping[str, Any]
    differs: tuple[str, ...]
    """What the live engine holds other than the file says."""
    word: str
    seconds: float
    trace: tuple[str, ...] = ()


def judge(mutant: Mutant) -> Said:
    """What `check` says, in a folder with the mutant's files."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        for name, text in mutant.files.items():
            Path(name).write_text(text, encoding="utf-8")
        if mutant.launch is not None:
            Path(SCRIPT_FILE).write_text(TRAINER_SCRIPT, encoding="utf-8")
        try:
            reports = check_of(mutant)
        except AutotuneError as error:
            return Said(would_run=False, findings=(f"raised file {error.message}",))
        except Exception as error:
            crash = f"{type(error).__name__}: {error}"
            return Said(would_run=True, findings=(), crash=crash)
        told = [one.violation for report in reports for one in report.found if not one.after_fix]
        return Said(
            would_run=not any(report.is_refused(fixed=False) for report in reports),
            findings=tuple(
                f"{one.consequence} {one.rule} {one.message}; {one.fix}" for one in told
            ),
            at=tuple(key for one in told if one.consequence != "converted" for key in one.at),
        )


def check_of(mutant: Mutant) -> list[CheckReport]:
    """The reports on a mutant's files, which lie in the working folder.

    As the engine is made to believe that every processor computes in fp16, so is the check.
    """
    is_told = mutant.consumer == Consumer.DEEPSPEED  # of the others, files and lines tell
    is_counted = mutant.consumer == Consumer.ACCELERATE or mutant.launch is not None
    flags = CheckFlags(
        world=None if is_counted else mutant.world,
        launch=mutant.launch,
        consumer=mutant.consumer if is_told else None,
        accelerator="cpu",
    )
    with mock.patch("autotune.devices.hardware.cpu_has_fp16", return_value=True):
        return check_file(Path(mutant.named), flags)


def ask_engine(
    asked: Sequence[Mutant], folder: Path, extensions: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Run every mutant; name -> answer."""
    jobs, answers = folder / "jobs.json", folder / "answers.jsonl"
    jobs.write_text(json.dumps([job_of(mutant) for mutant in asked]))
    build("cpu", lambda line: print(line, file=sys.stderr), nvme=False)
    environment = {
        **os.environ,
        **extensions_environment("cpu"),
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "PYTHONPATH": str(HERE),
    }
    with (folder / "server.log").open("w") as log:
        subprocess.run(
            [sys.executable, str(LIVE_ENGINE), str(jobs), str(answers), *extensions],
            env=environment,
            stdout=log,
            check=True,
        )
    return {answer["id"]: answer for answer in map(json.loads, answers.read_text().splitlines())}


def job_of(mutant: Mutant) -> dict[str, Any]:
    """What `live_engine.py` reads."""
    return {"id": mutant.name, **asdict(mutant)}


def compare(mutant: Mutant, said: Said, answer: Mapping[str, Any]) -> Verdict:
    """The word for a mutant."""
    error, reads = answer["error"], answer.get("reads") or {}
    differs = tuple(differences(mutant, reads)) if error is None else ()
    return Verdict(
        mutant=mutant,
        said=said,
        error=error,
        reads=reads,
        differs=differs,
        word=_word(said, error, differs),
        seconds=answer["seconds"],
        trace=tuple(answer.get("trace", ())),
    )


def _word(said: Said, error: str | None, differs: Sequence[str]) -> str:
    if said.crash:
        return CRASH
    if error is not None:
        if error.startswith(("memory:", "hung", "not built:", *_OF_THE_MACHINE)):
            return LEFT_OUT
        return MISS if said.would_run else AGREED
    if not said.would_run:
        return OTHER_WORD if differs else FALSE_ALARM
    return MISS if any(not _is_told(one, said) for one in differs) else AGREED


def _is_told(difference: str, said: Said) -> bool:
    """Whether a finding names the key, or is about a section that it lies in."""
    key = difference.partition("=")[0]
    told = " ".join(one for one in said.findings if not one.startswith("converted"))
    is_inside = any(f"{key}.".startswith(f"{place}.") for place in said.at)
    return is_inside or re.search(rf"\b{key.rpartition('.')[2]}\b", told) is not None


def differences(mutant: Mutant, reads: Mapping[str, Any]) -> Iterator[str]:
    """Keys, dotted, whose value the live engine does not hold, as `key=said, runs x`."""
    if "stage" not in reads:
        return
    config = config_of(mutant)
    for key, held in _held(reads).items():
        value = _at(config, key)
        if value is None or isinstance(value, (bool, dict, list)) or value == "auto":
            continue
        number = _number(value)
        if number is not None and number != held:
            yield f"{key}={value!r}, runs {held!r}"
    yield from _precision(config, reads, mutant.consumer)
    yield from _devices(config, reads)
    yield from _optimizer(config, reads)


def config_of(mutant: Mutant) -> dict[str, Any]:
    """What the files state, as a ds_config; empty where they cannot be read."""
    with contextlib.suppress(ValueError, AutotuneError):
        if mutant.consumer == "deepspeed" or mutant.arguments:
            return _section(json.loads(mutant.files["ds_config.json"]))
        outer = parse_yaml(mutant.files[mutant.named], Path(mutant.named))
        if mutant.consumer == "trainer":
            inner = outer.get("deepspeed")
            text = mutant.files.get(inner) if isinstance(inner, str) else None
            return _section(inner if text is None else json.loads(text))
        section = _section(outer.get("deepspeed_config"))
        named = section.get("deepspeed_config_file")
        if isinstance(named, str) and named in mutant.files:
            return _section(json.loads(mutant.files[named]))
        return _of_accelerate(section, outer.get("mixed_precision"))
    return {}


def _of_accelerate(section: Mapping[str, Any], precision: Any) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": section.get("zero_stage")}
    for kind in ("optimizer", "param"):
        if (device := section.get(f"offload_{kind}_device")) is not None:
            zero[f"offload_{kind}"] = {"device": device}
    said: dict[str, Any] = {
        "zero_optimization": zero,
        "gradient_clipping": section.get("gradient_clipping"),
        "gradient_accumulation_steps": section.get("gradient_accumulation_steps"),
    }
    if precision in ("bf16", "fp16"):
        said[precision] = {"enabled": True}
    return said


def _section(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _held(reads: Mapping[str, Any]) -> dict[str, Any]:
    group = reads["group"]
    held = {
        "zero_optimization.stage": reads["stage"],
        "train_batch_size": reads["train_batch_size"],
        "train_micro_batch_size_per_gpu": reads["micro_batch"],
        "gradient_accumulation_steps": reads["grad_accum"],
        "gradient_clipping": reads["clipping"],
    }
    # A scheduler writes both of the others: OneCycle and OneCycleLR also a momentum.
    names = ["weight_decay", "eps", *([] if reads["scheduler"] else ["lr", "momentum"])]
    return held | {f"optimizer.params.{name}": group[name] for name in names if name in group}


def _precision(
    config: Mapping[str, Any], reads: Mapping[str, Any], consumer: str
) -> Iterator[str]:
    said = {
        name: _section(config.get(name)).get("enabled") for name in ("fp16", "bf16", "bfloat16")
    }
    if any(value not in (True, False, None) for value in said.values()):
        return
    on = [name for name, value in said.items() if value]  # 1 is true
    found = CANONICAL[reads["dtype"]]
    if not on and consumer != "deepspeed":
        return  # Trainer's arguments and accelerate's own file decide
    wanted = CANONICAL[on[0]] if on else "fp32"
    if found != wanted:
        yield f"{on[0] if on else 'bf16' if found == 'bf16' else 'fp16'}={on}, runs {found}"


def _devices(config: Mapping[str, Any], reads: Mapping[str, Any]) -> Iterator[str]:
    zero = _section(config.get("zero_optimization"))
    for kind in ("optimizer", "param"):
        device = _section(zero.get(f"offload_{kind}")).get("device")
        if device in ("cpu", "nvme") and not reads[f"{kind}_offload"]:
            yield f"zero_optimization.offload_{kind}={device}, runs none"


def _optimizer(config: Mapping[str, Any], reads: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("optimizer", "scheduler"):
        named = _section(config.get(kind)).get("type")
        if not isinstance(named, str) or not named:
            continue
        held = str(reads[kind]).lower()
        if named.lower().removesuffix("w") not in held:
            yield f"{kind}={named}, runs {reads[kind]}"


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def verdicts(
    asked: Sequence[Mutant], folder: Path, extensions: Sequence[str] = ()
) -> list[Verdict]:
    """Judge and run all of them; `extensions` are built first."""
    said = [judge(mutant) for mutant in asked]
    answers = ask_engine(asked, folder, extensions)
    return [
        compare(mutant, one, answers[mutant.name]) for mutant, one in zip(asked, said, strict=True)
    ]


def judged_again(files: Iterable[Path]) -> list[Verdict]:
    """The mutants of `--json` files judged anew; what the engine did is taken from there."""
    found = []
    for told in (one for file in files for one in json.loads(file.read_text())):
        fields = told["mutant"] | {"arguments": tuple(told["mutant"]["arguments"])}
        mutant = Mutant(**fields)
        found.append(compare(mutant, judge(mutant), told))
    return found


def table(found: Iterable[Verdict], by: str) -> Iterator[str]:
    """A Markdown table of counts by `kind` or `consumer`."""
    columns = (FALSE_ALARM, MISS, CRASH, OTHER_WORD, LEFT_OUT)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    examples: dict[str, str] = {}
    for verdict in found:
        name = getattr(verdict.mutant, by)
        counts[name][verdict.word] += 1
        counts["all"][verdict.word] += 1
        counts[name]["ran"] += verdict.error is None
        counts["all"]["ran"] += verdict.error is None
        if verdict.word in WRONG:
            examples.setdefault(name, verdict.mutant.name)
    yield f"| {by} | mutants | ran | {' | '.join(columns)} | false alarms | misses | example |"
    yield "|---|" + "---:|" * (len(columns) + 4) + "---|"
    for name in [*sorted(counts.keys() - {"all"}), "all"]:
        count = counts[name]
        n = sum(count.values()) - count["ran"]
        compared = max(1, n - count[LEFT_OUT])
        rates = " | ".join(f"{count[word] / compared:.2%}" for word in (FALSE_ALARM, MISS))
        numbers = " | ".join(str(count[column]) for column in columns)
        example = examples.get(name, "")
        yield f"| {name} | {n} | {count['ran']} | {numbers} | {rates} | {example} |"


def shown(verdict: Verdict) -> str:
    """Everything about a verdict."""
    mutant = verdict.mutant
    files = "\n".join(f"--- {name}\n{text.strip()}" for name, text in mutant.files.items())
    outcome = verdict.error or f"ran; differs: {list(verdict.differs)}"
    findings = "\n".join(verdict.said.findings) or "nothing"
    return (
        f"=== {verdict.word}: {mutant.name} ({mutant.consumer}, world {mutant.world}, "
        f"{mutant.kind}, of {mutant.base})\n{files}\n"
        f"arguments: {' '.join(mutant.arguments)}\ncheck: {verdict.said.crash or findings}\n"
        f"engine: {outcome}\n{' < '.join(verdict.trace)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare check with the live engine.")
    parser.add_argument("--n", type=int, default=2000, help="mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--consumer", choices=CONSUMERS, action="append", help="default: all")
    parser.add_argument("--folder", type=Path, help="owner/repository/commit/path of other files")
    parser.add_argument("--json", type=Path, help="write every verdict to this file")
    parser.add_argument(
        "--again", type=Path, nargs="+", help="judge those of --json files again; run nothing"
    )
    parser.add_argument("--show-misses", action="store_true", help="print what is wrong in full")
    flags = parser.parse_args()
    consumers = tuple(flags.consumer or CONSUMERS)
    if flags.again is not None:
        found = judged_again(flags.again)
    else:
        asked = list(mutants(flags.n, flags.seed, consumers=consumers, folder=flags.folder))
        with tempfile.TemporaryDirectory(prefix="check-truth-") as scratch:
            found = verdicts(asked, Path(scratch), EXTENSIONS)
    if flags.json is not None:
        flags.json.write_text(json.dumps([asdict(one) for one in found], indent=1, default=str))
    if flags.show_misses:
        print("\n".join(shown(one) for one in found if one.word in WRONG))
    print("\n".join(table(found, "kind")), end="\n\n")
    print("\n".join(table(found, "consumer")))


if __name__ == "__main__":
    main()
