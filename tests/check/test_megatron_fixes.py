"""Fixes of launch scripts: what is offered is read back, passes the rules, and settles at once."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.app.check import CheckFlags, check_files
from autotune.check import CheckReport
from autotune.engines.megatron.argument_rules.pipeline import chunks_of
from autotune.engines.megatron.launched import read_launches
from tests.bash_launch import started_by

MODEL = (
    "--num-layers 12 --hidden-size 96 --num-attention-heads 12 --seq-length 64 "
    "--max-position-embeddings 64 --lr 2e-4 --train-iters 5 --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 511"
)
VALUES = {
    "--tensor-model-parallel-size": ("TP", [1, 2, 3, 4, 16]),
    "--pipeline-model-parallel-size": ("PP", [1, 2, 3, 4, 5]),
    "--context-parallel-size": ("CP", [1, 2, 3]),
    "--num-layers-per-virtual-pipeline-stage": ("VPL", [1, 2, 3, 6]),
    "--num-virtual-stages-per-pipeline-rank": ("VP", [1, 2, 3]),
    "--micro-batch-size": ("MBS", [1, 2, 3, 6]),
    "--global-batch-size": ("GBS", [64, 65, 127, 129, 130]),
}
ALWAYS = ("--micro-batch-size", "--global-batch-size")
SWITCHES = [
    *("--sequence-parallel", "--fp16", "--bf16", "--use-distributed-optimizer"),
    *("--overlap-param-gather", "--no-overlap-p2p-communication", "--recompute-activations"),
    *("--account-for-loss-in-pipeline-split", "--overlap-grad-reduse", "--tp-comm-overlap"),
]
RECOMPUTE = [
    "",
    "--recompute-granularity full",
    "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
]


def as_line(words: Sequence[str], values: dict[str, int]) -> str:
    flags = " \\\n    ".join(f"{flag} {value}" for flag, value in values.items())
    return (
        f"torchrun --nproc_per_node 8 pretrain_gpt.py \\\n    {flags} \\\n    {' '.join(words)}\n"
    )


def as_array(words: Sequence[str], values: dict[str, int]) -> str:
    flags = "\n".join(f"  {flag}={value}  # {flag[2:]}" for flag, value in values.items())
    return (
        f"ARGS=(\n{flags}\n)\nARGS+=({' '.join(words)})\n"
        'torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}" 2>&1 | tee log.txt\n'
    )


def as_variables(words: Sequence[str], values: dict[str, int]) -> str:
    names = {flag: VALUES[flag][0] for flag in values}
    sets = "\n".join(f"{names[flag]}={value}" for flag, value in values.items())
    flags = "\n".join(f"  {flag} ${{{name}}}" for flag, name in names.items())
    return (
        f"{sets}\nLAYOUT=(\n{flags}\n)\necho $TP-$GBS\n"
        f'torchrun --nproc_per_node 8 pretrain_gpt.py "${{LAYOUT[@]}}" {" ".join(words)}\n'
    )


def as_text_for_a_shell(words: Sequence[str], values: dict[str, int]) -> str:
    names = {flag: VALUES[flag][0] for flag in values}
    sets = "\n".join(
        f"{names[flag]}=${{{names[flag]}:-{value}}}" for flag, value in values.items()
    )
    flags = " \\\n  ".join(f"{flag} ${name}" for flag, name in names.items())
    return (
        f'#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=8\n{sets}\noptions=" \\\n  '
        f'{flags} \\\n  {" ".join(words)}"\n'
        'srun bash -c "python -u pretrain_gpt.py ${options}"\n'
    )


STYLES = [as_line, as_array, as_variables, as_text_for_a_shell]


@st.composite
def scripts(draw: st.DrawFn) -> str:
    flags = draw(st.sets(st.sampled_from([flag for flag in VALUES if flag not in ALWAYS])))
    chosen = [flag for flag in VALUES if flag in flags or flag in ALWAYS]
    values = {flag: draw(st.sampled_from(VALUES[flag][1])) for flag in chosen}
    switches = draw(st.lists(st.sampled_from(SWITCHES), unique=True, max_size=4))
    words = [MODEL, *switches, *draw(st.sampled_from(RECOMPUTE)).split()]
    return draw(st.sampled_from(STYLES))(words, values)


def checked(path: Path, *, fix: bool = False) -> CheckReport:
    run = check_files([str(path)], CheckFlags(megatron_release="0.16"), fix=fix)
    assert run.unread == [], run.unread[0].error.message
    (report,) = run.reports
    return report


def interleaves(path: Path) -> bool:
    (launch,) = read_launches(path, release="0.16")
    return (chunks_of(launch) or 1) > 1


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(text=scripts())
def test_a_fix_of_a_launch_is_read_back_and_settles_at_once(tmp_path, text):
    path = tmp_path / "run.sh"
    path.write_text(text)
    before = interleaves(path)
    report = checked(path, fix=True)
    assert report.is_written(fixed=True) == (path.read_text() != text)
    if not report.is_written(fixed=True):
        assert report.fixed_text is None or not report.passes
        return
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    again = checked(path)
    assert again.fixed_text is None, again.diff
    assert again.would_run(fixed=False) is not False
    removed = {"megatron.vp.pipeline", "megatron.vp.one_way"}
    if before and removed.isdisjoint(one.violation.rule for one in report.found):
        assert interleaves(path)


PLAIN = {"--micro-batch-size": 1, "--global-batch-size": 64}


def mended(path: Path, style, values: dict[str, int], words: str = "") -> str:
    """What bash gives the training after the fix."""
    path.write_text(style([MODEL, "--bf16", *words.split()], PLAIN | values))
    assert checked(path, fix=True).is_written(fixed=True)
    return " ".join(started_by(path, path.parent).words)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("values", "words", "after"),
    [
        # The nearest batch, and the layout as it was.
        ({"--global-batch-size": 127}, "", {"--global-batch-size": 128}),
        ({"--global-batch-size": 129}, "", {"--global-batch-size": 128}),
        (
            {"--tensor-model-parallel-size": 2, "--global-batch-size": 65},
            "--sequence-parallel",
            {"--tensor-model-parallel-size": 2, "--global-batch-size": 64},
        ),
        # A micro-batch near by changes nothing that is trained.
        (
            {"--micro-batch-size": 3, "--global-batch-size": 64, "--context-parallel-size": 2},
            "",
            {"--micro-batch-size": 4, "--global-batch-size": 64},
        ),
        ({"--tensor-model-parallel-size": 16}, "", {"--tensor-model-parallel-size": 4}),
        # A group of micro-batches that fills no pipeline, or leaves a rest that does not.
        *(
            (
                {"--pipeline-model-parallel-size": 4, "--num-virtual-stages-per-pipeline-rank": 3}
                | {"--micro-batch-size": 2},
                f"--microbatch-group-size-per-virtual-pipeline-stage {group}",
                {"--microbatch-group-size-per-virtual-pipeline-stage": nearest}
                | {"--pipeline-model-parallel-size": 4, "--micro-batch-size": 2},
            )
            for group, nearest in ((3, 4), (15, 16))
        ),
        # The embedding and the loss count as layers.
        (
            {"--pipeline-model-parallel-size": 2},
            "--num-layers 14 --num-virtual-stages-per-pipeline-rank 4",
            {"--pipeline-model-parallel-size": 2, "--account-for-loss-in-pipeline-split": ""},
        ),
    ],
)
def test_the_cheapest_change_keeps_the_layout(tmp_path, style, values, words, after):
    got = mended(tmp_path / "run.sh", style, values, words).replace("=", " ")
    for flag, value in after.items():
        assert f"{flag} {value}".strip() in got


def test_a_flag_goes_whose_value_is_set_above(tmp_path):
    values = {"--pipeline-model-parallel-size": 1, "--num-virtual-stages-per-pipeline-rank": 2}
    for style in STYLES:
        got = mended(tmp_path / "run.sh", style, values)
        assert "--num-virtual-stages-per-pipeline-rank" not in got


def test_two_interleaved_stages_overlap_again(tmp_path):
    values = {"--pipeline-model-parallel-size": 2, "--num-layers-per-virtual-pipeline-stage": 3}
    got = mended(tmp_path / "run.sh", as_line, values, "--no-overlap-p2p-communication")
    assert "--no-overlap-p2p-communication" not in got
    assert "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3" in got


def test_a_change_that_cannot_be_written_is_advice(tmp_path):
    text = as_variables([MODEL, "--bf16"], PLAIN | {"--tensor-model-parallel-size": 16})
    text = text.replace("GBS=64", "GBS=$((TP * 16))")
    (tmp_path / "run.sh").write_text(text)
    report = checked(tmp_path / "run.sh", fix=True)
    assert (tmp_path / "run.sh").read_text() == text
    assert report.fixed_text is None
    assert "change them by hand" in report.not_edited
    assert "set --tensor-model-parallel-size to 4" in report.found[0].violation.fix


def test_without_a_launcher_the_world_is_what_the_file_exports(tmp_path):
    line = as_line([MODEL], PLAIN | {"--tensor-model-parallel-size": 2})
    line = line.replace("torchrun --nproc_per_node 8", "python")
    (tmp_path / "run.sh").write_text(f"export WORLD_SIZE=24 RANK=0\n{line}")
    report = checked(tmp_path / "run.sh")
    assert "world 24 (WORLD_SIZE)" in report.about
    assert [one.violation.rule for one in report.found] == ["megatron.batch.product"]
