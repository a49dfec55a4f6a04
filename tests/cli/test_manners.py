"""Help, completion and mistyped names, the same in every command."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer._completion_classes import BashComplete

from autotune import __version__
from autotune.base.errors import AutotuneError, ExitCode, JobError
from autotune.base.names import did_you_mean
from autotune.base.units import parse_bytes, parse_seconds
from autotune.cli import cli
from autotune.cli.help import _FEW, _REST, _group_of
from tests.command_line import autotune
from tests.export.dialects.test_consumers import FAMILY

GROUP = typer.main.get_group(cli)


@pytest.mark.parametrize("name", GROUP.commands)
def test_every_help_ends_with_an_example_that_the_command_takes(name: str) -> None:
    command = GROUP.commands[name]
    assert command.epilog
    for line in re.sub(r"\\\n *", "", command.epilog).splitlines():
        program, its_name, *rest = shlex.split(line)
        assert (program, its_name) == ("autotune", name)
        parser = command.make_parser(typer.Context(command))
        assert not parser.parse_args(rest)[1]
    assert max(map(len, command.epilog.splitlines())) <= 78


def test_a_long_help_has_few_options_without_a_group() -> None:
    for command in GROUP.commands.values():
        params = command.get_params(typer.Context(command))
        titles = [_group_of(p) for p in params if p.param_type_name == "option"]
        if len(titles) > _FEW:
            assert titles.count(_REST) <= _FEW, command.name


def test_the_version_is_shown(tmp_path: Path) -> None:
    assert autotune("--version", folder=tmp_path).stdout == f"autotune {__version__}\n"


@pytest.mark.cases("line", "said", "helps")
def test_a_mistyped_line_is_answered(line, said, helps, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AutotuneError) as caught:
        GROUP.main(shlex.split(line), prog_name="autotune", standalone_mode=False)
    assert re.search(said, caught.value.message)
    assert re.search(helps, caught.value.hint)
    assert caught.value.exit_code in (ExitCode.INVALID_INPUT, ExitCode.FLEET_UNAVAILABLE)


GPT2 = "render --model gpt2 --seq-len 64 --global-batch 32 --world 16 --set micro_batch=2"


@pytest.mark.parametrize("to", [*FAMILY, "deepspeed"])
def test_files_for_gpus_have_nothing_of_a_machine_without_any(to, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.chdir(tmp_path)
    line = f"{GPT2} --gpu H100 --set recompute=full --to {to} --out made"
    GROUP.main(line.split(), prog_name="autotune", standalone_mode=False)
    written = {path.name: path.read_text() for path in Path("made").iterdir() if path.is_file()}
    read_by_it = (".args", ".yaml", ".sh", ".md")
    told = "".join(text for name, text in written.items() if name.endswith(read_by_it))
    of_cpu = r"use_cpu(: | )true|DS_ACCELERATOR|accelerator: cpu|torch: |gloo|CpuRanks"
    assert not re.search(of_cpu, told)
    assert "cpu.py" not in written
    assert "2 machines with 8 ranks each" in told
    assert json.loads(written["settings.json"])["accelerator"] == "cuda"
    if to in ("hf", "trl"):
        # The name that every release of transformers takes, whichever is installed here.
        assert "gradient_checkpointing" in told


def test_files_for_this_machine_s_cores_say_how_to_get_those_for_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.chdir(tmp_path)
    GROUP.main([*GPT2.split(), "--out", "made"], prog_name="autotune", standalone_mode=False)
    assert "--gpu H100" in capsys.readouterr().err
    uneven = "plan --model gpt2 --seq-len 64 --global-batch 8 --gpu H100 --world 8 --per-node 7"
    for line in (f"{GPT2} --per-node 4 --out other", "plan --model gpt2 --per-node 4", uneven):
        with pytest.raises(AutotuneError, match=r"--per-node [47]"):
            GROUP.main(line.split(), prog_name="autotune", standalone_mode=False)


def test_case_is_no_mistake_and_nonsense_is_not_guessed() -> None:
    assert did_you_mean("h100", ["H100", "A100"], most=1) == "did you mean H100? "
    assert did_you_mean("xyz", ["H100", "A100"]) == ""


def test_a_name_that_is_nearly_right_is_the_only_guess() -> None:
    known = ["micro_batch", "mics.hierarchical_gather", "nccl.proto"]
    assert did_you_mean("microbatch", known, alike=0.4) == "did you mean micro_batch? "


@pytest.mark.parametrize(
    ("parse", "bare", "with_unit"),
    [(parse_seconds, "20", "20m"), (parse_bytes, "24", "24GiB"), (parse_bytes, "9999999", "")],
)
def test_a_bare_number_is_refused_alike(parse, bare: str, with_unit: str) -> None:
    for value in (bare, int(bare)):
        with pytest.raises(JobError, match="with a unit") as caught:
            parse(value, where="--flag")
    assert with_unit in caught.value.hint


@pytest.mark.cases("typed", "expected")
def test_a_shell_completes_names(typed: str, expected: str) -> None:
    *args, incomplete = shlex.split(typed)
    complete = BashComplete(GROUP, {}, "autotune", "_AUTOTUNE_COMPLETE")
    assert expected in [item.value for item in complete.get_completions(args, incomplete)]
