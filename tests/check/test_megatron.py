"""`check` of launches of Megatron-LM: what is found, the fix in the file, and its formats."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from autotune.app import check
from autotune.app.check import CheckFlags, check_files
from autotune.base.errors import JobError
from autotune.check import megatron
from autotune.check.rules_page import page_of
from autotune.devices import accelerators
from autotune.engines.megatron.flags import newest_release
from autotune.report.check.text import print_check
from autotune.report.check.tools import sarif_log

SCRIPT = """#!/bin/bash
TP=3
LAYOUT=(
  --tensor-model-parallel-size $TP
  --sequence-parallel
  --overlap-param-gather
  --overlap-grad-reduce
)
torchrun --nproc_per_node 8 pretrain_gpt.py "${LAYOUT[@]}" \\
  --num-layers 8 --num-attention-heads 8 --hidden-size 64 --seq-length 128 \\
  --max-position-embeddings 128 --micro-batch-size=3 --global-batch-size 64 --data-path $DATA \\
  --tokenizer-type HuggingFaceTokenizer --tokenizer-model gpt2
"""


def checked(path, text, *, fix=False, **flags):
    path.write_text(text)
    flags = {"megatron_release": "0.16", **flags}
    (report,) = check_files([str(path)], CheckFlags(**flags), fix=fix).reports
    return report


def found_in(report):
    return [(one.violation.rule, one.place.line) for one in report.found]


def unread_of(report):
    """What of a file was not judged, besides the checks that only a checkout has."""
    *found, others = report.not_judged
    assert others.what == "Megatron-LM's other checks"
    return [(one.what, one.why) for one in found]


def test_a_launch_would_run_where_a_checkout_was_asked_too(tmp_path, monkeypatch):
    monkeypatch.setattr(megatron, "check_arguments", lambda checkout, lines, *, world: {})
    package = tmp_path / "megatron/core/package_info.py"
    package.parent.mkdir(parents=True)
    package.write_text("MAJOR = 0\nMINOR = 16\n")
    line = LINE.format(micro=1, tp=1, pp=1, more="")
    report = checked(tmp_path / "run.sh", line)
    assert (unread_of(report), report.would_run(fixed=False)) == ([], None)
    report = checked(tmp_path / "run.sh", line, megatron_path=tmp_path, megatron_release=None)
    assert report.would_run(fixed=False) is True


def test_a_script_is_judged_where_its_words_stand(tmp_path):
    report = checked(tmp_path / "run.sh", SCRIPT)
    assert ("megatron.overlap.needs_sharding", 6) in found_in(report)
    assert ("megatron.tp.heads", 4) in found_in(report)
    assert report.world == 8
    assert report.unknown == ("data_path",)
    assert unread_of(report) == [("CUDA_DEVICE_MAX_CONNECTIONS", "the file does not set it")]
    assert report.exit_code(fixed=False) == 2
    assert "Megatron Core 0.16, world 8" in report.about


def test_a_launch_is_read_and_the_change_is_printed(tmp_path):
    report = checked(tmp_path / "run.sh", SCRIPT, fix=True)
    assert (tmp_path / "run.sh").read_text() == SCRIPT
    fixes = {one.violation.rule: one.violation.fix for one in report.found}
    assert fixes["megatron.tp.heads"] == "take a --tensor-model-parallel-size that divides 8"
    console = Console(file=StringIO(), width=200)
    print_check(console, report, fixed=True)
    assert "the file is read, not written" in console.file.getvalue()


def test_each_launch_of_a_file_is_judged(tmp_path):
    path = tmp_path / "run.sh"
    line = LINE.format(micro="{}", tp=1, pp=1, more="")
    path.write_text(line.format(1) + line.format(3))
    flags = CheckFlags(megatron_release="0.16")
    first, second = check_files([str(path)], flags).reports
    assert found_in(first) == []
    assert "megatron.batch.product" in dict(found_in(second))


def test_a_gpu_is_looked_up_once_for_all_launches_of_a_file(tmp_path, monkeypatch):
    asked = []
    find = accelerators.find_accelerator
    monkeypatch.setattr(
        accelerators,
        "find_accelerator",
        lambda name, **table: asked.append(name) or find(name, **table),
    )
    path = tmp_path / "run.sh"
    path.write_text(2 * SCRIPT.replace("torchrun", "torchrun --nnodes 1"))
    reports = check_files([str(path)], CheckFlags(megatron_release="0.16", gpu="A100")).reports
    assert (len(reports), asked) == (2, ["A100"])


def test_an_unknown_gpu_is_refused(tmp_path):
    with pytest.raises(JobError, match=r"--gpu: no figures .* 'H1000'"):
        checked(tmp_path / "run.sh", SCRIPT, gpu="H1000")


LINE = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 "
    "--num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size {micro} --global-batch-size 64 --tensor-model-parallel-size {tp} "
    "--pipeline-model-parallel-size {pp} --data-path d --vocab-file v --merge-file m {more}\n"
)


def test_a_flag_of_another_release_is_named_and_a_slip_is_answered(tmp_path):
    text = SCRIPT.replace("--sequence-parallel", "--cuda-graph-modules attn --num-layer 3")
    told = {
        one.violation.message: one.violation.fix for one in checked(tmp_path / "a.sh", text).found
    }
    assert any("Megatron Core 0.16 has no such flag" in message for message in told)
    assert "did you mean --num-layers?" in told.values()


def test_a_choice_by_number_is_refused_where_a_launch_has_none(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    run = check_files([str(tmp_path / "run.sh")], CheckFlags(choose=["precision.one=1"]))
    assert "--choose precision.one=1: a launch of Megatron-LM" in run.unread[0].error.message


def test_what_is_not_wanted_is_left_out(tmp_path):
    text = "# autotune: ignore megatron.tp.*\n" + SCRIPT
    report = checked(tmp_path / "run.sh", text, ignore=["megatron.overlap.needs_sharding"])
    rules = set(dict(found_in(report)))
    assert not {rule for rule in rules if rule.startswith(("megatron.tp.", "megatron.overlap."))}
    assert "megatron.tp.heads" in report.ignored


def test_programs_read_it(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    run = check_files([str(tmp_path / "run.sh")], CheckFlags(megatron_release="0.16"))
    told = json.loads(json.dumps(run.reports[0].to_dict(fixed=False)))
    assert (told["megatron"], told["consumer"]) == ("0.16", "megatron-lm")
    rules = sarif_log(run)["runs"][0]["tool"]["driver"]["rules"]
    assert {rule["id"] for rule in rules} >= {
        "megatron.tp.heads",
        "megatron.overlap.needs_sharding",
    }


NEWER = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --yarn-beta-fast 32\n"
"""With a flag that came with 0.19."""


def test_an_export_is_read_by_the_release_of_its_header(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "version_of", lambda _: "0.16.1")
    (tmp_path / "args.sh").write_text("# pretrain_gpt.py of Megatron-LM (Megatron Core 0.19) x\n")
    path = tmp_path / "launch.sh"
    path.write_text(f'source "$(dirname "$0")/args.sh"\n{NEWER}')
    (report,) = check_files([str(path)], CheckFlags()).reports
    assert report.release == "0.19"
    assert "Megatron Core 0.19 (its header names it), world" in report.about
    assert "megatron.flags.unknown" not in dict(found_in(report))


def test_flags_that_the_installed_release_lacks_are_read_by_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "version_of", lambda _: "0.16.1")
    path = tmp_path / "launch.sh"
    path.write_text(NEWER)
    (report,) = check_files([str(path)], CheckFlags()).reports
    assert report.release == newest_release()
    assert "takes its flags; 0.16 does not" in report.about
    path.write_text(NEWER.replace("yarn-beta-fast", "yarn-beta-fastest"))  # in no release
    (report,) = check_files([str(path)], CheckFlags()).reports
    assert (report.release, report.release_because) == ("0.16", "")


def test_an_unknown_release_is_refused(tmp_path):
    with pytest.raises(JobError, match="--megatron-release"):
        checked(tmp_path / "run.sh", SCRIPT, megatron_release="0.2")


def test_a_script_of_deepspeeds_is_still_deepspeeds(tmp_path):
    (tmp_path / "ds.json").write_text("{}")
    text = "deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 3 --deepspeed_config ds.json\n"
    Path(tmp_path / "run.sh").write_text(text)
    (report,) = check_files([str(tmp_path / "run.sh")], CheckFlags()).reports
    assert "DeepSpeed" in report.about


ARGUMENTS = """# sourced
LAYOUT=(--tensor-model-parallel-size 3 --num-attention-heads 8 --num-layers 8)
PROGRAM=("$MEGATRON_PATH/pretrain_gpt.py" "${LAYOUT[@]}")
"""
SOURCING = """#!/usr/bin/env bash
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/args.sh"
exec torchrun --nproc-per-node 8 "${PROGRAM[@]}" "$@"
"""


def test_arguments_of_a_file_beside_it_are_judged_where_they_are_used(tmp_path):
    (tmp_path / "args.sh").write_text(ARGUMENTS)
    report = checked(tmp_path / "run.sh", SOURCING, fix=True)
    assert ("megatron.tp.heads", 4) in found_in(report)
    assert (tmp_path / "run.sh").read_text() == SOURCING
    assert (tmp_path / "args.sh").read_text() == ARGUMENTS


def test_arguments_that_an_export_has_its_launch_source_are_judged_alone(tmp_path):
    (tmp_path / "args.sh").write_text(ARGUMENTS)
    (report,) = check_files([str(tmp_path / "args.sh")], CheckFlags(world=8)).reports
    assert "megatron.tp.heads" in {one.violation.rule for one in report.found}


def test_a_file_that_another_sources_is_said_to_be_megatrons(tmp_path):
    (tmp_path / "args.sh").write_text(ARGUMENTS.replace("PROGRAM", "MINE"))
    run = check_files([str(tmp_path / "args.sh")], CheckFlags())
    error = run.unread[0].error
    assert "has arguments of Megatron-LM, and starts no training" in error.message
    assert error.hint.startswith("name the file that starts the script with these arguments")


def test_without_a_world_it_is_said_what_is_not_judged(tmp_path):
    line = LINE.replace("--nproc-per-node 8", "--nproc-per-node $GPUS")
    line = line.format(micro=1, tp=1, pp=1, more="")
    report = checked(tmp_path / "run.sh", line)
    assert "world ? (the launch line does not say it: give --world)" in report.about
    console = Console(file=StringIO(), width=200)
    print_check(console, report, fixed=False)
    last = "not judged: what the number of ranks decides (give it with --world)"
    assert f"nothing found; {last}" in console.file.getvalue()
    assert report.to_dict(fixed=False)["would_run"] is None


@pytest.mark.parametrize(
    ("text", "what", "why"),
    [
        ("{line} $EXTRA", "what $EXTRA of line 1 adds", "only the shell knows it"),
        (
            'source "$(dirname "$0")/sizes/wide.sh"\n{line} "${{SIZES[@]}}"',
            "what ${SIZES[@]} of line 2 adds",
            "./sizes/wide.sh, which line 1 sources, is not read: say the launch with --launch",
        ),
        ("{line} --seq-length $TOKENS", "--seq-length", "only the shell knows it"),
    ],
)
def test_what_the_shell_puts_in_is_not_judged(tmp_path, monkeypatch, text, what, why):
    monkeypatch.chdir(tmp_path)
    line = LINE.format(micro=1, tp=1, pp=1, more="").strip()
    report = checked(Path("run.sh"), text.format(line=line) + "\n")
    assert unread_of(report) == [(what, why)]
    assert report.would_run(fixed=False) is None
    assert report.exit_code(fixed=False, strict=True) == 0


def test_a_launch_that_hands_on_its_words_is_judged_as_it_stands(tmp_path):
    """A rule that asks for what is not given finds Megatron's default."""
    line = LINE.format(micro=1, tp=1, pp=1, more="--sequence-parallel").strip()
    report = checked(tmp_path / "run.sh", f'{line} "$@"\n')
    assert unread_of(report) == []
    assert [one.violation.rule for one in report.found] == ["megatron.sequence_parallel.tp"]


def test_a_file_that_is_sourced_from_another_folder_is_read(tmp_path):
    (tmp_path / "sizes").mkdir()
    (tmp_path / "sizes" / "odd.sh").write_text("SIZES=(--tensor-model-parallel-size 3)\n")
    (tmp_path / "launch").mkdir()
    line = LINE.format(micro=1, tp=1, pp=1, more='"${SIZES[@]}"')
    head = 'HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\n'
    text = head + 'source "$HERE/../sizes/odd.sh"\n' + line
    report = checked(tmp_path / "launch" / "run.sh", text)
    assert ("megatron.tp.heads", 3) in found_in(report)


def test_a_flag_of_no_release_is_told_of_a_script_that_may_have_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = LINE.format(micro=1, tp=1, pp=1, more="--sequence-paralel --our-way 3")
    line = line.replace("pretrain_gpt.py", "pretrain_ours.py")
    report = checked(Path("run.sh"), line)
    (found,) = report.found
    assert (found.violation.rule, found.violation.level) == ("megatron.flags.own", "warning")
    assert page_of(found.violation.rule).level == "warning"
    assert "--sequence-paralel (did you mean --sequence-parallel?), --our-way" in (
        found.violation.message
    )
    Path("pretrain_ours.py").write_text('add_argument("--our-way")')
    (found,) = checked(Path("run.sh"), line).found
    assert "--our-way" not in found.violation.message


def test_a_fork_has_flags_and_values_of_its_own(tmp_path, monkeypatch):
    """MindSpeed-LLM imports a package beside its script; others change Megatron's own parser."""
    monkeypatch.chdir(tmp_path)
    more = "--fused-by-us --tokenizer-type OursFromFile"
    line = LINE.format(micro=1, tp=1, pp=1, more=more).replace("--num-layers", "--num_layers")
    names = ("megatron.flags.unknown", "megatron.flags.value")
    found = [one.violation for one in checked(Path("run.sh"), line).found]
    assert {(one.rule, one.level) for one in found} >= {(name, "error") for name in names}
    Path("pretrain_gpt.py").write_text("from ours import parser\n")
    Path("ours").mkdir()
    found = [one.violation for one in checked(Path("run.sh"), line).found]
    assert {one.level for one in found if one.rule.startswith("megatron.flags")} == {"warning"}
    Path("megatron").mkdir()
    flags = (
        "add_argument('--fused-by-us')",
        "add_argument('--num_layers')",
        "add_argument('--tokenizer-type', choices=['OursFromFile'])",
        "add_argument('--position', choices=['rope'])  # and not --fused-by-them",
    )
    Path("megatron/arguments.py").write_text("\n".join(flags))
    found = [one.violation.rule for one in checked(Path("run.sh"), line).found]
    assert not [rule for rule in found if "flags" in rule]
    Path("examples").mkdir()
    monkeypatch.chdir("examples")
    found = [one.violation.rule for one in checked(Path("run.sh"), line).found]
    assert not [rule for rule in found if "flags" in rule]
    more = "--fused-by-them --fus --tokenizer-type rope"
    line = LINE.format(micro=1, tp=1, pp=1, more=more)
    found = [one.violation.rule for one in checked(Path("run.sh"), line).found]
    assert [rule for rule in found if "flags" in rule] == [names[1], "megatron.flags.own"]


def test_a_line_that_a_lost_backslash_cut_off_is_told(tmp_path):
    line = LINE.format(micro=1, tp=1, pp=1, more="").rstrip()
    report = checked(tmp_path / "run.sh", f"{line}\n  --seq-length 4096 --swiglu\n")
    found = next(one for one in report.found if one.violation.rule == "megatron.flags.lost_line")
    assert found.place.line == line.count("\n") + 2
    assert page_of(found.violation.rule).level == found.violation.level
    assert "starts without --seq-length, --swiglu" in found.violation.message


def test_a_space_behind_a_backslash_is_a_word_that_megatron_refuses(tmp_path):
    line = LINE.format(micro=1, tp=1, pp=1, more="").rstrip()
    report = checked(tmp_path / "run.sh", f"{line} \\ \n  --seq-length 4096 --swiglu\n")
    (found,) = report.found
    assert (found.violation.rule, found.violation.level, found.place.line) == (
        "megatron.flags.stray_word",
        "error",
        line.count("\n") + 1,
    )
    assert found.violation.message == "a space behind a backslash: is no flag"


def test_without_a_launcher_the_world_is_what_the_file_exports(tmp_path):
    line = LINE.format(micro=1, tp=2, pp=1, more="")
    line = line.replace("torchrun --nproc-per-node 8", "python")
    report = checked(tmp_path / "run.sh", f"export WORLD_SIZE=24 RANK=0\n{line}")
    assert "world 24 (WORLD_SIZE)" in report.about
    assert [one.violation.rule for one in report.found] == ["megatron.batch.product"]


OF_OTHERS = {
    "slime": """ray job submit --address=http://127.0.0.1:8265 -- python3 train.py \\
  --actor-num-nodes 1 --actor-num-gpus-per-node 8 --num-layers 46 --num-experts 64 \\
  --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 \\
  --expert-model-parallel-size {ep} --expert-tensor-parallel-size 1 --rollout-batch-size 8
""",
    "ms-swift": """NPROC_PER_NODE=8 CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \\
megatron sft --model Some/Mixture --tensor_model_parallel_size 2 --sequence_parallel true \\
  --pipeline_model_parallel_size 2 --expert_model_parallel_size {ep} --global_batch_size 16 \\
  --target_modules all-linear all-router --recompute_granularity none --max_length 2048
""",
    "finetune.py": """torchrun --nproc-per-node 8 finetune.py --tensor-model-parallel-size 2 \\
  --pipeline-model-parallel-size 2 --expert-model-parallel-size {ep} \\
  --expert-tensor-parallel-size 1 --dataset a b --position-embedding-type alibi
""",
}
"""Launches of programs that hand arguments to Megatron beside some of their own."""


@pytest.mark.parametrize("text", OF_OTHERS.values(), ids=OF_OTHERS)
def test_a_launch_of_another_program_is_judged_as_far_as_it_says(tmp_path, text):
    right = checked(tmp_path / "right.sh", text.format(ep=4))
    assert (right.world, found_in(right)) == (8, [])
    assert right.would_run(fixed=False) is None  # the program adds arguments itself
    wrong = checked(tmp_path / "wrong.sh", text.format(ep=8))
    assert [rule for rule, _ in found_in(wrong)] == ["megatron.ep.ranks"]


DS = '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {}}'
SWIFT = "NPROC_PER_NODE=8 srun megatron sft {words} --micro_batch_size 3 --model x\n"


@pytest.mark.parametrize(
    ("text", "readers", "open_words"),
    [
        # The DeepSpeed launch below it is read, too.
        (
            OF_OTHERS["finetune.py"].format(ep=4)
            + "deepspeed --num_gpus 4 train.py --deepspeed_config ds.json\n",
            ["deepspeed", "megatron-lm"],
            "what the line does not give",
        ),
        (
            "torchrun --nproc-per-node 8 train.py --tensor-model-parallel-size 2 "
            "--deepspeed-config ds.json\n",
            ["deepspeed"],
            "",
        ),
        # What ms-swift reads besides decides its batch.
        (SWIFT.format(words="conf.yaml"), ["megatron-lm"], "what conf.yaml says"),
        (SWIFT.format(words="$ARGS"), ["megatron-lm"], "what $ARGS of line 1 adds"),
    ],
    ids=["both", "deepspeed", "file", "words"],
)
def test_what_a_file_starts_besides_is_read_or_named(
    tmp_path, monkeypatch, text, readers, open_words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(DS)
    (tmp_path / "run.sh").write_text(text)
    reports = check_files(["run.sh"], CheckFlags(megatron_release="0.16")).reports
    assert [report.to_dict(fixed=False)["consumer"] for report in reports] == readers
    assert open_words in " ".join(one.what for one in reports[-1].not_judged)


@pytest.mark.parametrize(
    "line",
    [
        "python convert_checkpoint.py --tensor-model-parallel-size 2 --batch-size 4",
        "torchrun run_text_generation_server.py --tensor-model-parallel-size 3",
    ],
)
def test_a_script_that_does_not_train_is_no_launch(tmp_path, line):
    (tmp_path / "run.sh").write_text(f"{line}\n")
    (unread,) = check_files([str(tmp_path / "run.sh")], CheckFlags()).unread
    assert "starts no training" in unread.error.message


def test_flags_of_a_scripts_own_are_not_megatrons(tmp_path):
    line = "torchrun --nproc-per-node 8 my_tune.py --tensor-model-parallel-size 2 "
    assert found_in(checked(tmp_path / "a.sh", f"{line} --batch-size 4 --warmup 0.1\n")) == []


def test_the_batch_that_ms_swift_takes_by_default_counts(tmp_path):
    text = OF_OTHERS["ms-swift"].format(ep=1)
    of_17 = checked(tmp_path / "a.sh", text.replace("size 16", "size 17"))
    assert [one.violation.rule for one in of_17.found] == ["megatron.batch.product"]
    assert "--micro_batch_size 1 x dp 2" in of_17.found[0].violation.message
    few = checked(tmp_path / "b.sh", text.replace("0,1,2,3,4,5,6,7", "0,1,2,3"))
    assert found_in(few)[0][0] == "megatron.environment.visible_devices"


def test_a_number_of_nodes_is_no_number_of_ranks(tmp_path):
    line = "python entry.py model.tensor_model_parallel_size=2 model.micro_batch_size=1\n"
    assert checked(tmp_path / "run.sh", f"export WORLD_SIZE=1\n{line}").world is None


def test_a_line_that_decides_is_named_once(tmp_path):
    line = LINE.format(micro=1, tp="$TP", pp=1, more="")
    text = f"if probe; then\n  TP=4\nelse\n  TP=2\nfi\n{line}"
    report = checked(tmp_path / "run.sh", text)
    assert report.would_run(fixed=False) is None
    (told,) = [one for one in report.not_judged if one.what == "--tensor-model-parallel-size"]
    assert told.why == "line 1 decides by `if`: say the launch with --launch"
    launch = LINE.format(micro=1, tp=3, pp=1, more="").strip()
    report = checked(tmp_path / "run.sh", text, launch=launch)
    assert "megatron.tp.heads" in dict(found_in(report))


def test_a_checkout_is_asked_what_no_rule_here_says(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        megatron,
        "check_arguments",
        lambda checkout, lines, *, world: asked.append((lines, world)) or {0: "no such seed"},
    )
    package = tmp_path / "megatron/core/package_info.py"
    package.parent.mkdir(parents=True)
    package.write_text("MAJOR = 0\nMINOR = 16\n")
    line = LINE.format(micro=1, tp=1, pp=1, more="--train-iters 1 --seed -1")
    report = checked(tmp_path / "run.sh", line, megatron_path=tmp_path, megatron_release=None)
    assert [(one.violation.rule, one.violation.message) for one in report.found] == [
        ("megatron.checkout.refuses", "no such seed")
    ]
    (((words,), world),) = asked
    assert (words[:2], world) == (["--num-layers", "24"], 8)
    report = checked(tmp_path / "run.sh", line.replace("24", "$N"), megatron_path=tmp_path)
    assert len(asked) == 1
    assert f"what {tmp_path} itself says" in [one.what for one in report.not_judged]
