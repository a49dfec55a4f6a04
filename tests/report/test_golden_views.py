"""What a terminal of 80 and of 160 columns shows, frozen."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import autotune
from autotune.app.pages import compare_studies
from autotune.app.studies import explain_trial, state_of, studies
from autotune.contract import TrialResult, TrialSpec
from autotune.doctor import Level, Remark
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.job.published import find_presets
from autotune.report.explain.script import ProposedChange, ScriptDiagnosis, describe_script
from autotune.report.story import read_story
from autotune.report.terminal.doctor import print_remarks
from autotune.report.terminal.live import draw
from autotune.report.terminal.study import print_explanation, print_report
from autotune.report.terminal.tables import SettingsCell, print_facts, print_parts, print_told
from autotune.search.base import Stage
from autotune.space.candidate import format_value
from tests import snapshots
from tests.report import samples
from tests.report.diagnosed import diagnosed
from tests.report.test_terminal import finished
from tests.search.scripted import ok, realistic
from tests.search.test_worth import measured, walk

PREDICTED: dict[str, Any] = {
    **{"model": "llama-3.2-1b", "seq_len": 2048, "global_batch": 32, "world": 2, "gpu": "H100"},
    "space": "smoke",
}


def report(console: Console) -> None:
    print_report(console, read_story(finished(Path("results"))))


def live(console: Console) -> None:
    console.print(draw(samples.snapshot(), samples.CONTEXT, samples.SPEED))


def comparing(console: Console) -> None:
    racing = dataclasses.replace(
        samples.snapshot(), stage=Stage.CONFIRM, comparison=samples.comparison()
    )
    console.print(draw(racing, samples.CONTEXT, samples.SPEED))


def ladder(console: Console) -> None:
    climbed, _ = walk(Path("results"), measured)
    assert climbed is not None
    print_told(console, "ladder", {"ladder": climbed})


def compare(console: Console) -> None:
    def slower(spec: TrialSpec) -> TrialResult:
        rate = 0.9 if spec.identity.knobs["zero.stage"] == 1 else 1.0
        result = realistic(spec)
        if result.samples_per_s is None:
            return result
        return ok(spec, rate * result.samples_per_s, peak=result.peak_memory_bytes or 0)

    for name, behave in (("first", realistic), ("second", slower)):
        finished(Path("results"), behave, trials=4).folder.rename(Path("results", name))
    print_parts(console, compare_studies(["first", "second"], Path("results")).parts())


def status(console: Console) -> None:
    finished(Path("results"), trials=4)
    killed = finished(Path("other"), trials=4)
    killed.write_state({**killed.read_state(), "answer": None})
    killed.folder.rename(Path("results", "killed"))
    folder = Path("results")
    print_told(console, "states", {"states": [state_of(one) for one in studies(folder)]})


def plan(console: Console) -> None:
    autotune.plan(**PREDICTED, top=4, what_if="gpu=H200", no_knowledge=True).show(console)


def explain(console: Console) -> None:
    autotune.explain("zero.stage=1 micro_batch=4", **PREDICTED, no_knowledge=True).show(console)


def estimate(console: Console) -> None:
    autotune.estimate("zero.stage=1 micro_batch=4", **PREDICTED, no_knowledge=True).show(console)


def check(console: Console) -> None:
    config = {"zero_optimization": {"stage": 9, "overlap_com": True}}
    autotune.check(config, deepspeed_version="0.19.8").show(console)


def doctor(console: Console) -> None:
    found = (
        Remark(level=Level.OK, subject="python", message="3.11.9"),
        Remark(
            level=Level.WARN,
            subject="memlock",
            message="a process may pin 8 MiB: offload with pin_memory and InfiniBand may fail",
            fix="ulimit -l unlimited (containers: --ulimit memlock=-1), or pin_memory: false",
        ),
    )
    print_remarks(console, found)


def knobs(console: Console) -> None:
    shown = ("zero.stage", "micro_batch", "offload.optimizer", "reduce_bucket_size")
    values = {"knobs": [KNOBS[name] for name in shown], "is_wide": console.width >= 120}
    print_told(console, "knobs", {**values, "spelled": format_value})


def trial(console: Console) -> None:
    study = finished(Path("results"), diagnosed, trials=40)
    print_explanation(console, explain_trial(study, 0))


def diagnose(console: Console) -> None:
    study = finished(Path("results"), diagnosed, trials=4)
    result = study.trials()[0].result
    assert result is not None
    said = ScriptDiagnosis(
        command="torchrun --nproc-per-node 2 train.py --deepspeed ds_config.json",
        study="results/train",
        framework="trainer",
        model="GPT2LMHeadModel",
        settings={
            **{"n_params": 834_304, "n_params_frozen": 0, "precision": "bf16"},
            **{"optimizer": "AdamW", "tokens_per_sample": 64, "micro_batch": 4},
            **{"grad_accum": 1, "world": 2, "global_batch": 8},
        },
        origins={"zero.stage": "ds_config.json", "micro_batch": "argument micro_batch"},
        result=result,
        row={"samples_per_s": 18.5, "tokens_per_s": 1184.0, "tflops_per_device": 0.0031},
        memory_bytes={"params": 1.6e6, "optimizer": 9.5e6, "context": 1e8, "host": 4e6},
        explanation=explain_trial(study, 0),
        remarks=("zero_optimization.overlap_com: unknown; did you mean overlap_comm?",),
        changes=(
            ProposedChange(
                settings="host_allocator=keep",
                edits=("environment: MALLOC_TRIM_THRESHOLD_=-1",),
                **{"gain": 1.8, "gain_low": 1.1, "gain_high": 2.9},
                **{"peak_memory_bytes": 2e9, "peak_memory_low_bytes": 1.5e9},
                peak_memory_high_bytes=2.6e9,
            ),
        ),
        search="autotune search -- torchrun --nproc-per-node 2 train.py",
    )
    print_facts(console, describe_script(said))


def models(console: Console) -> None:
    values = {"models": find_presets("llama"), "width": console.width}
    print_told(console, "models", values)


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize(
    "view",
    [
        report,
        live,
        comparing,
        ladder,
        compare,
        status,
        plan,
        explain,
        estimate,
        check,
        doctor,
        models,
        knobs,
        trial,
        diagnose,
    ],
    ids=lambda view: view.__name__,
)
def test_a_view_is_frozen(view, width, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    view(Console(file=out, width=width, color_system=None, _environ={"TERM": "xterm"}))
    text = "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
    assert max(map(len, text.splitlines())) <= width
    snapshots.check(f"terminal/{view.__name__}-{width}.txt", text)


def test_a_setting_that_is_too_wide_breaks_after_its_name() -> None:
    out = io.StringIO()
    console = Console(file=out, width=30, color_system=None, _environ={"TERM": "xterm"})
    console.print(SettingsCell("zero.stage=0 optimizer.implementation=torch_fused"))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines == ["zero.stage=0", "optimizer.implementation=", "torch_fused"]
