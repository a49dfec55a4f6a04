"""Shell files: words and where they stand, as bash takes them."""

import contextlib
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.engines.launches.files import is_shell
from autotune.engines.launches.shell import read_shell
from tests.cases import data_beside

DATA = data_beside(__file__)

SCRIPT = DATA["SCRIPT"]


def words(text, number=0):
    shell = read_shell(text, Path("run.sh"))
    return [word.text for word in shell.commands[number].words]


def test_a_launch_line_with_variables_arrays_and_a_here_document():
    shell = read_shell(SCRIPT, Path("run.sh"))
    assert [command.words[0].text for command in shell.commands] == ["cat", "torchrun", "echo"]
    launch = shell.commands[1]
    assert [word.text for word in launch.words] == [
        *("torchrun", "--nproc-per-node", "2", "train.py", "--deepspeed", "ds.json"),
        *("--per_device_train_batch_size", "4", "--bf16", "--output_dir", "out/$(date +%s)"),
    ]
    assert launch.variables["CUDA_VISIBLE_DEVICES"] == "0"
    assert launch.variables["OMP_NUM_THREADS"] == "4"
    assert SCRIPT[launch.words[7].start] == "4"  # where the variable is set


def test_a_variable_has_the_value_that_it_has_where_it_is_used():
    assert words("N=4\nN=8\ntorchrun t.py --train $N\n")[-1] == "8"


@pytest.mark.cases("text")
def test_what_only_the_shell_knows_stays_as_it_is_written(text):
    commands = read_shell(f"{text}torchrun t.py --train $N\n", Path("run.sh")).commands
    assert commands[-1].words[-1].text == "$N"


@pytest.mark.cases("text", "told")
def test_values_sums_and_tests_are_followed(text, told):
    assert words(text)[3:] == told


@pytest.mark.cases("text")
def test_launches_of_all_branches_stand_where_a_test_may_end_otherwise(text):
    commands = read_shell(text, Path("run.sh"), follows=True).commands
    ran = [[word.text for word in each.words] for each in commands]
    assert [each for each in ran if each[0] == "run"] == [["run", "1"], ["run", "2"]]


@pytest.mark.cases("text", "told")
def test_values_behind_tests_and_in_odd_places(text, told):
    found = words(text, -1)
    assert found[:1] == ["run"]
    assert found[1:] == (told or ["8", text[text.index("$(a") :]])


@pytest.mark.parametrize("inner", ["<(sort names)", "> x", "<"])
def test_an_array_of_odd_elements_ends(inner):
    text = f"A=(1 {inner})\ntorchrun t.py ${{A[@]}}\n"
    assert words(text)[:3] == ["torchrun", "t.py", "1"]


@pytest.mark.parametrize(
    "text", ["bash -c 'A=(torchrun t.py'\n", 'bash -c "echo \'it"\n', 'eval "(\\$(x"\n']
)
def test_a_text_for_another_shell_that_does_not_close_is_left(text, recwarn):
    commands = read_shell(f"{text}torchrun t.py --train $((4x + 1))\n", Path("run.sh")).commands
    assert [word.text for word in commands[-1].words][:2] == ["torchrun", "t.py"]
    assert not recwarn.list


@pytest.mark.parametrize(
    "sum_", ["-7 % 3", "-7 / 2", "2 * (3 + 4) - 1", "7 - 3 - 2", "9 - 2 * 3 / 4", "10 / 3 * 2"]
)
def test_sums_are_those_of_bash(sum_):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    text = f"torchrun t.py --train $(({sum_}))"
    theirs = subprocess.run([bash, "-c", f"echo $(({sum_}))"], capture_output=True, text=True)
    assert words(text)[-1] == theirs.stdout.strip()


@pytest.mark.parametrize(
    "text",
    [
        f"torchrun t.py --name {'x' * 200_000}\n",
        f'torchrun t.py --name "{"x" * 200_000}"\n',
        "A=x\n" + 'A="$A$A"\n' * 60 + "torchrun t.py --name $A\n",
        "A=(x)\n" + "A+=(${A[@]} ${A[@]})\n" * 20 + "torchrun t.py ${A[@]}\n",
        f"torchrun t.py --name $(({'-' * 50_000}1))\n",
        "A=1\n" + "torchrun t.py --name $A\n" * 5000,
        "".join(f"A{n}=1\n[ ${{B:-1}} = 2 ] && C=1\n" for n in range(2000)) + "torchrun t.py",
        "f() {\ncat > x <<E\n" + "a b\n" * 1000 + "E\n}\n" + "f\n" * 1000 + "torchrun t.py",
        "for A in" + " 1" * 60 + "; do\n" + "run $A\n" * 200 + "done\ntorchrun t.py",
        "".join(f"A{n}=1\n" for n in range(2000)) + "f() { f; }\n" + "f\n" * 500 + "torchrun t.py",
        "for A in 1 2 3 4 5 6 7 8; do\n" * 5 + "run $A\n" + "done\n" * 5 + "torchrun t.py",
        "if [ $B = 0 ]; then A=1\n"
        + "".join(f"elif [ $B = {n} ]; then\n  export A{n}=1\n  echo $B\n" for n in range(1000))
        + "fi\n"
        + "torchrun t.py",
    ],
    ids=[
        *("word", "quoted", "doubled", "array", "signs", "uses", "aside", "calls", "rounds"),
        *("recursion", "nested", "branches"),
    ],
)
def test_no_file_takes_long(text):
    begun_s = time.process_time()
    assert words(text, -1)[:2] == ["torchrun", "t.py"]
    assert time.process_time() - begun_s < 5


@pytest.mark.parametrize(
    "text",
    [
        "A=(\n" + "a # b (c) 'd'\n" * 60,
        *("$(" * 20_000, '"$(' * 5_000, "A=(" * 5_000, "${A:-" * 4_000, "{ " * 4_000),
    ],
)
def test_no_text_that_does_not_close_takes_long(text):
    begun_s = time.process_time()
    with pytest.raises(JobError, match="does not close"):
        read_shell(f"{text}'", Path("run.sh"))
    assert time.process_time() - begun_s < 5


def test_an_array_before_a_command_is_no_fault():
    assert words("A=(1 2) run $B\n") == ["run", "$B"]


@pytest.mark.cases("text")
def test_a_text_for_another_shell_is_read(text):
    commands = read_shell(f"A=4\n{text}", Path("run.sh")).commands
    told = [[word.text for word in command.words] for command in commands]
    assert ["torchrun", "t.py", "--train", "4"] in told


@pytest.mark.cases("line")
def test_words_are_those_of_bash(line, tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    (tmp_path / "torchrun").write_text(
        '#!/bin/sh\nfor one; do printf "%s\\n" "$one"; done > said\n'
    )
    (tmp_path / "torchrun").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run([bash, "-c", line], cwd=tmp_path, env=environment, check=True)
    theirs = (tmp_path / "said").read_text().splitlines()
    shell = read_shell(line, Path("run.sh"))
    ours = [word.text for word in shell.commands[0].words][1:]
    assert [one.replace("$(echo 1)", "1") for one in ours] == theirs


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        *(("echo 'open", "'"), ('echo "open', '"'), ("A=(1 2", "("), ("echo $(open", "$(")),
        *(('case "$1"', "case"), ("case $X in a) ;;", "case"), ("for i >", "for")),
        *(("for i in 1 2; do\n:", "for"), ("if true; then\n:", "if"), ("f() {\n:", "{")),
    ],
)
def test_what_does_not_close_is_told_with_its_line(text, opened):
    with pytest.raises(JobError, match=rf"run\.sh:2: the {re.escape(opened)} does not close"):
        read_shell(f"true\n{text}", Path("run.sh"))


def test_what_a_shell_file_is():
    assert is_shell("x", Path("run.sh"))
    assert is_shell("#!/usr/bin/env bash\n", Path("launch"))
    assert is_shell("torchrun train.py --deepspeed ds.json", Path("line.txt"))
    assert not is_shell("zero_optimization: {stage: 1}", Path("-"))
    assert not is_shell("deepspeed: ds.json", Path("-"))
    assert not is_shell("torchrun x", Path("x.yaml"))


def test_a_file_beside_it_that_it_sources_is_followed(tmp_path):
    (tmp_path / "args.sh").write_text(
        'export N=4\nARGS=(--train "$N" --name "${WHAT:-a b}")\nsource missing.sh\n'
    )
    text = (
        'here="$(dirname "$0")"\nWHAT=c\nsource "$here/args.sh"\n'
        'torchrun t.py "${ARGS[@]}"\n. other/args.sh\n'
    )
    shell = read_shell(text, tmp_path / "run.sh", follows=True)
    launch = next(each for each in shell.commands if each.words[0].text == "torchrun")
    assert [word.text for word in launch.words[2:]] == ["--train", "4", "--name", "c"]
    used = text.index('"${ARGS[@]}"')
    assert [word.start for word in launch.words[2:]] == [*[used] * 3, text.index("c\n")]
    assert launch.variables["N"] == "4"
    assert shell.sourced == (tmp_path / "args.sh",)
    assert read_shell(text, tmp_path / "run.sh").sourced == ()


def test_what_is_sourced_under_a_condition_only_the_shell_knows(tmp_path):
    (tmp_path / "args.sh").write_text("N=4\nsource run.sh\n")
    text = "if [ -f x ]; then\n  source ./args.sh\nfi\ntorchrun t.py --train $N\n"
    for sourced in (text, "N=8\n" + text.replace(" t.py", " args.sh")):
        shell = read_shell(sourced, tmp_path / "run.sh", follows=True)
        assert shell.commands[-1].words[-1].text == "$N"


def test_functions_of_a_sourced_file_are_no_launches_of_this_one(tmp_path):
    (tmp_path / "tools.sh").write_text("f() { torchrun t.py --train 7; }\ng() { N=4; }\n")
    text = ". tools.sh\nh() { torchrun t.py --train 8; }\ng\ntorchrun t.py --train $N\n"
    commands = read_shell(text, tmp_path / "run.sh", follows=True).commands
    told = [one.words[-1].text for one in commands if one.words[0].text == "torchrun"]
    assert told == ["4", "8"]


def test_what_is_gone_through_too_often_is_open(tmp_path):
    (tmp_path / "long.sh").write_text("A=1\n" * 4000)
    rounds = " ".join(map(str, range(60)))
    text = f"for B in {rounds}; do\n . ./long.sh\ndone\nrun $A\n"
    begun_s = time.process_time()
    command = read_shell(text, tmp_path / "run.sh", follows=True).commands[-1]
    assert command.unread == ("line 1 has a loop that is not followed in all rounds",)
    assert time.process_time() - begun_s < 10
    text = f"A=1\nf() {{\n: {'x' * 9000}\nA=2\n}}\n" + "f\n" * 40 + "run $A\n"
    command = read_shell(text, Path("run.sh")).commands[-1]
    assert command.unread == ("`f` is a function that is not followed in all its calls",)
    deep = "if probe; then\n" * 55 + "f{}\n" + "fi\n" * 55
    text = "".join(f"f{n}() {{\n{deep.format(n + 1)}}}\n" for n in range(6)) + "A=1\nf0\nrun $A"
    command = next(
        c for c in read_shell(text, Path("run.sh")).commands if "run" in c.words[0].text
    )
    assert command.unread == ("line 115 stands before a block that is nested too deep",)
    text = f"for B in {rounds}; do\n: {'x' * 9000}\ndone\nrun $B\n"
    assert read_shell(text, Path("run.sh")).commands[-1].words[1].text == "$B"


def test_variables_before_a_call_are_those_of_its_environment():
    text = "export V=1\nrun 1\nf() { run 2; }\nU=3 V=2 f\nrun 4\n"
    held = [(one.words, one.variables) for one in read_shell(text, Path("run.sh")).commands]
    told = [(v.get("U"), v.get("V")) for words, v in held if words[0].text == "run"]
    assert told == [(None, "1"), ("3", "2"), (None, "1")]


def test_a_local_variable_is_exported_where_its_declaration_says_so():
    text = "f() { declare -x A=1; local -x B=2; declare C=3; run; }\nf\nrun\n"
    held = [one.variables for one in read_shell(text, Path("run.sh")).commands]
    assert [[v.get(name) for name in "ABC"] for v in held[-2:]] == [["1", "2", None], [None] * 3]


def test_what_is_exported_is_that_of_bash(tmp_path):
    (tmp_path / "more.sh").write_text("run $M\nC=3\n")
    text = "declare A=1\nset -a\nM=4 . ./more.sh\nset +a\nD=5\nrun\nE=6 bash -c run\n"
    commands = read_shell(text, tmp_path / "run.sh", follows=True).commands
    ran = [one for one in commands if one.words[0].text == "run"]
    assert ran[0].words[1].text == "4"  # a sourced file starts it
    assert [[one.variables.get(name) for name in "ACDME"] for one in ran] == [
        [None, None, None, "4", None],
        [None, "3", None, None, None],
        [None, "3", None, None, "6"],
    ]


def test_files_that_source_one_another_end(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.sh").write_text(f"{name.upper()}=1\nsource {other}.sh\n")
    text = "source a.sh\ntorchrun t.py --train $A$B\n"
    shell = read_shell(text, tmp_path / "run.sh", follows=True)
    assert shell.commands[-1].words[-1].text == "11"


def test_a_text_that_is_read_into_an_array_is_split():
    text = 'read -ra A <<<"${ARGS:-"--nproc-per-node 2"}"\ntorchrun "${A[@]}" t.py\n'
    assert words(text) == ["torchrun", "--nproc-per-node", "2", "t.py"]


@pytest.mark.cases("folder", "said")
def test_a_folder_of_the_script_or_of_its_start_is_known(folder, said):
    shell = read_shell(f'F={folder}\nrun {folder} "$F/a"\n', Path("jobs/night/run.sh"))
    first, second = (word.text for word in shell.commands[0].words[1:])
    is_known = "$" not in said
    assert first == said
    assert second == (f"{said}/a" if is_known else "$F/a")


@pytest.mark.cases("text", "folder")
def test_a_folder_that_the_file_goes_to_is_known(text, folder):
    assert words(f"{text}\nrun $PWD\n", -1) == ["run", folder]


@pytest.mark.cases("text", "path", "written")
def test_a_here_document_that_is_written_to_a_file_is_known(text, path, written):
    assert read_shell(text, Path("run.sh")).written == {path: written}


@pytest.mark.cases("text")
def test_other_here_documents_write_no_file(text):
    written = read_shell(text, Path("run.sh")).written
    assert not any(isinstance(one, str) for one in written.values())


@pytest.mark.cases("text", "commands")
def test_what_eval_runs_is_read_once(text, commands):
    shell = read_shell(text, Path("run.sh"))
    assert [
        [word.text for word in each.words] for each in shell.commands if each.words
    ] == commands


def test_a_file_in_another_folder_is_sourced_and_one_that_is_not_there_is_named(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "conf" / "env.sh").write_text("N=4\n")
    for folder in ("../conf", "$ROOT/conf", "${ROOT}/jobs/../conf", str(tmp_path / "conf")):
        text = f'source "{folder}/env.sh"\nrun $N\n'
        shell = read_shell(text, tmp_path / "jobs" / "run.sh", follows=True)
        assert [word.text for word in shell.commands[0].words] == ["run", "4"]
        assert ([each.name for each in shell.sourced], shell.commands[0].unread) == (
            ["env.sh"],
            (),
        )
    shell = read_shell(
        "A=1\n. ../conf/gone.sh\nrun $A\n", tmp_path / "jobs" / "run.sh", follows=True
    )
    gone = "../conf/gone.sh, which line 2 sources, is not read"
    assert shell.commands[-1].unread == (gone,)


@pytest.mark.cases("text", "why")
def test_a_command_tells_why_words_of_it_are_not_known(text, why):
    command = read_shell(text, Path("run.sh"), follows=True).commands[-1]
    assert [each[: len(why or "")] for each in command.unread] == ([why] if why else [])


@pytest.mark.cases("text")
def test_broken_text_is_read_as_far_as_it_goes_or_refused(text):
    with contextlib.suppress(JobError):
        shell = read_shell(text, Path("run.sh"))
        assert [shell.lost_below(each) for each in shell.commands] == [None] * len(shell.commands)


def test_a_command_that_begins_with_a_flag_has_lost_the_line_above():
    shell = read_shell("run a \\\n --x 1\n  --y 2\nrun b\n", Path("run.sh"))
    first, lost, last = shell.commands
    assert shell.lost_below(first) is lost
    assert shell.lost_below(lost) is None
    assert shell.lost_below(last) is None


@pytest.mark.cases("text")
def test_an_array_in_a_string_keeps_its_blanks(text: str) -> None:
    shell = read_shell(text, Path("run.sh"))
    launch = next(one for one in shell.commands if one.words[0].text == "torchrun")
    assert [word.text for word in launch.words[1:]] == ["t.py", "--tp", "2", "--pp", "4"]


def test_an_element_that_is_set_makes_an_array_unknown() -> None:
    assert words("A=(--tp 3)\nA[1]=4\ntorchrun t.py ${A[@]}\n")[-1] == "${A[@]}"


def test_a_sum_in_a_here_document_is_worked_out() -> None:
    shell = read_shell(
        'GBS=64\ncat > ds.json <<EOF\n{"train_batch_size": $((GBS / 2))}\nEOF\n', Path("run.sh")
    )
    assert '"train_batch_size": 32' in shell.written["ds.json"]


@pytest.mark.parametrize("never", ["if false; then", "if ! true; then"])
def test_what_never_runs_is_no_launch(never: str) -> None:
    shell = read_shell(f"{never}\n torchrun old.py\nfi\ntorchrun t.py\n", Path("run.sh"))
    assert [c.words[1].text for c in shell.commands if c.words[0].text == "torchrun"] == ["t.py"]


@pytest.mark.cases("text", "ran")
def test_functions_loops_and_cases_are_gone_through_where_their_words_are_known(text, ran):
    commands = read_shell(text, Path("run.sh")).commands
    told = [" ".join(word.text for word in each.words) for each in commands]
    assert [each for each in told if each.startswith("run")] == ran


@pytest.mark.cases("line", "default")
def test_a_default_of_a_variable_is_told_with_its_line(line, default):
    told = read_shell(line, Path("run.sh")).commands[-1].around["defaults"]
    assert list(told.values()) == ([default] if default else [])


_READS_ONE = "if [ $# -eq 0 ]; then DS=default; else DS=$1; fi\nrun $DS\n"
_SHIFTS = 'run $1 "$@"\nshift\nrun $1\n'
_LOOP = "DS=a\nwhile [ $# -gt 0 ]; do case $1 in --ds) DS=$2 ;; esac; shift; done\nrun $DS\n"
_OF_OTHERS = "f() {\nrun $1\n}\nbash -c 'run $1' x y\n"


@pytest.mark.cases("started", "line", "runs")
def test_a_file_that_is_started_with_words_has_them(started, line, runs, tmp_path):
    (tmp_path / "inner.sh").write_text(started)
    commands = read_shell(line, tmp_path / "run.sh", follows=True).commands
    told = [" ".join(word.text for word in command.words) for command in commands]
    assert [one for one in told if one.startswith("run")] == runs


def test_files_that_start_one_another_are_read_once(tmp_path):
    text = "sbatch next.sh\nrun 1\n"
    (tmp_path / "train.sh").write_text(text)
    (tmp_path / "next.sh").write_text("sbatch train.sh\nsbatch train.sh\n")
    commands = read_shell(text, tmp_path / "train.sh", follows=True).commands
    assert [one.words[0].text for one in commands].count("run") == 1


def test_a_quote_with_escapes_stays_as_it_is_written():
    assert words("run $'it\\'s' $'\\x80' b\n")[1:] == ["$'it\\'s'", "$'\\x80'", "b"]


_RUNS = "run ${DS:-a}\n"


@pytest.mark.cases("line")
@pytest.mark.parametrize("name", ["inner.sh", "inner"])
def test_a_file_that_a_line_starts_is_read_once(line, name, tmp_path):
    (tmp_path / name).write_text(f"#!/bin/bash\n{_RUNS}")
    (tmp_path / "job.yaml").write_text(f"kind: x\nrun: bash {name}\n")
    text = line.replace("FILE", name)
    commands = read_shell(f"{text}\n", tmp_path / "run.sh", follows=True).commands
    assert [one.words[1].text for one in commands if one.words[0].text == "run"] == ["a"]


def test_an_option_loop_is_read_as_started_without_options():
    loop = "while [ $# -gt 0 ]; do case $1 in --ds) DS=$2 ;; esac; shift; done"
    for text in (f"DS=a\n{loop}\nrun $DS", f'DS=a\nf() {{\n{loop}\n}}\nf "$@"\nrun $DS'):
        command = read_shell(text, Path("run.sh")).commands[-1]
        assert command.words[1].text == "a"
        assert "decides by `while`" in command.unread_because


@pytest.mark.cases("text", "told")
def test_blocks_end_where_bash_ends_them(text, told):
    assert words(text, -1) == ["run", *told]


def test_a_sourced_file_that_may_return_and_files_of_another_folder_are_open(tmp_path):
    (tmp_path / "args.sh").write_text("[ -d x ] || return 0\nTP=3\n")
    for text in ("TP=1\nsource args.sh\nrun $TP\n", "cd sub\nbash args.sh\nrun $TP\n"):
        shell = read_shell(text, tmp_path / "run.sh", follows=True)
        assert shell.commands[-1].words[-1].text == "$TP"
    assert shell.sourced == ()
