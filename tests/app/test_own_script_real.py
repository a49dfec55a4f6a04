"""Commands as their users type them: the first run, and one edited candidate, on two CPU ranks."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.base.errors import ExitCode
from autotune.contract import TrialResult
from autotune.job.observed import Observed
from autotune.record.study import Study, Trial
from autotune.space.script import reach_of
from tests.command_line import autotune
from tests.hasty import HASTY
from tests.trials import wait_until

pytestmark = pytest.mark.real

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
SCRIPTS = Path(__file__).resolve().parent / "scripts"
TRL = (
    *("accelerate", "launch", "--config_file", "accelerate.yaml"),
    *("train.py", "--config", "sft.yaml"),
)

TORCHRUN = ("torchrun", "--nproc-per-node", "2")
TRAINER = (
    *(*TORCHRUN, "train.py", "--deepspeed", "ds_config.json", "--use_cpu", "--bf16"),
    *("--per_device_train_batch_size", "4", "--output_dir", "out"),
)
LONGEST_S = 900.0
"""Time of a search up to the run that is waited for; only a busy machine takes minutes."""


def start(
    verb: str, command: tuple[str, ...], folder: Path, results: Path, *flags: str
) -> subprocess.Popen[str]:
    """Start a verb of ours on a command, in the folder of its script."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(SCRIPTS / "site"), os.environ.get("PYTHONPATH", "")])
        ),
    }
    return subprocess.Popen(
        [
            *(sys.executable, "-P", HASTY, verb, "--json", "--results", str(results)),
            *(*flags, "--", *command),
        ],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    verb: str, command: tuple[str, ...], folder: Path, results: Path, *flags: str
) -> subprocess.CompletedProcess[str]:
    """Run a verb of ours on a command to its end."""
    process = start(verb, command, folder, results, *flags)
    stdout, stderr = process.communicate(timeout=1500)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def ended_in(results: Path) -> list[tuple[Trial, TrialResult]]:
    """Trials of the only study that are over."""
    trials = (t for folder in results.glob("*/") for t in Study(results, folder.name).trials())
    return [(trial, trial.result) for trial in trials if trial.result is not None]


def observed_in(results: Path) -> Observed:
    """What the only study showed."""
    (path,) = results.glob("*/observed.json")
    return Observed.read(path)


@pytest.mark.parametrize(
    ("example", "command", "expected"),
    [
        pytest.param(
            "pipeline",
            ("deepspeed", "--num_gpus", "2", "train.py", "--deepspeed_config", "ds_config.json"),
            {"framework": "deepspeed", "micro_batch": 2, "grad_accum": 4, "global_batch": 8},
            marks=pytest.mark.thorough,
        ),
        (
            "accelerate",
            ("accelerate", "launch", "--config_file", "accelerate.yaml", "train.py"),
            {"framework": "accelerate", "micro_batch": 4, "grad_accum": 2, "global_batch": 16},
        ),
    ],
    ids=["pipeline", "accelerate"],
)
def test_what_an_example_trains_is_read_off_it(tmp_path, example, command, expected):
    ran = run("diagnose", command, EXAMPLES / example, tmp_path)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    script = observed_in(tmp_path)
    assert {name: getattr(script, name) for name in expected} == expected
    assert said["row"]["outcome"] == "ok"
    assert script.measured.step_times_s
    assert not (EXAMPLES / example / "checkpoints").exists(), "a trial leaves nothing"
    assert not (EXAMPLES / example / "output").exists(), "a trial leaves nothing"


def edited_in(results: Path) -> list[TrialResult]:
    """Runs of an edited candidate that were measured."""
    ended = ended_in(results)
    own = [trial.spec.identity.knobs for trial, _ in ended[:1]]
    return [
        result
        for trial, result in ended
        if trial.spec.identity.knobs not in own and result.outcome.is_measured
    ]


def search_until_edited(command: tuple[str, ...], folder: Path, results: Path, *more: str) -> str:
    """Search until an edited candidate has run as it was asked, then end it; what it printed.

    `make examples` runs whole searches.
    """
    flags = ("--trials", "1", "--no-diagnose", "--guard-steps", "0", *more)
    search = start("search", command, folder, results, *flags)
    try:
        wait_until(
            lambda: search.poll() is not None or edited_in(results),
            "the edited candidate has run",
            LONGEST_S,
        )
    finally:
        search.send_signal(signal.SIGINT)
    stdout, stderr = search.communicate(timeout=LONGEST_S)
    assert search.returncode in (0, 3, ExitCode.INTERRUPTED), stderr
    _, own = ended_in(results)[0]
    assert own.outcome.is_measured
    assert edited_in(results), [result.evidence for _, result in ended_in(results)]
    assert not any(result.differences for result in edited_in(results))
    return stdout + stderr


@pytest.mark.parametrize(
    ("example", "command", "reached"),
    [
        # Each example runs whole under `make examples`; every run edits a file and a flag below.
        pytest.param(
            *("trainer", TRAINER, {"recompute", "optimizer.implementation", "micro_batch"}),
            marks=pytest.mark.thorough,
        ),
        # With LoRA: `examples/lora` would answer the same.
        pytest.param(
            *("trl", TRL, {"attention", "optimizer.implementation", "micro_batch"}),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["trainer", "trl"],
)
def test_an_edited_candidate_runs_as_it_was_asked(tmp_path, example, command, reached):
    search_until_edited(command, EXAMPLES / example, tmp_path)
    ways = reach_of(observed_in(tmp_path)).ways
    by_arguments = {name for name, way in ways.items() if way == "arguments"}
    assert by_arguments >= reached
    assert (EXAMPLES / example / "train.py").is_file()
    assert not (EXAMPLES / example / "out").exists(), "a trial leaves nothing"


def test_what_goes_on_beside_the_training_changes_nothing(tmp_path: Path) -> None:
    """See the script: several engines, workers, checkpoints, evaluation, lengths, own packages."""
    out = tmp_path / "out"
    ran = run("diagnose", (*TORCHRUN, "busy.py", "--out", str(out)), SCRIPTS, tmp_path / "results")
    assert ran.returncode == 0, ran.stderr
    script = observed_in(tmp_path / "results")
    assert script.measured.loss_last is not None, "its losses go backward past the engine"
    assert (script.micro_batch, script.grad_accum) == (4, 1)
    assert script.seq_len == 12, "the longest of all steps"
    assert script.description["engines"] == 2
    assert script.description["is_partitioned"], "by the script's own zero.Init"
    assert not out.exists(), "a trial leaves nothing"


@pytest.mark.parametrize(
    ("command", "says", "helps"),
    [
        (("python", "plain.py"), "trains without DeepSpeed", "deepspeed.initialize"),
        pytest.param(
            ("bash", "-c", "torchrun --nproc-per-node 1 leaves.py --rows 3; sleep 1000"),
            "ended by itself",
            "more epochs",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            ("torchrun", "--nproc-per-node", "1", "swallows.py", "--width", "31"),
            "shapes cannot be multiplied",
            "without autotune",
            marks=pytest.mark.thorough,
        ),
        (
            (*TORCHRUN, "--max-restarts", "1", "leaves.py", "--rows", "2", "--raises"),
            'KeyError: "the user\'s own mistake"',
            "without autotune",
        ),
    ],
    ids=["plain", "leaves", "swallows", "restarts"],
)
def test_what_cannot_be_measured_says_why_and_what_helps(tmp_path, command, says, helps):
    ran = run("diagnose", command, SCRIPTS, tmp_path)
    assert ran.returncode == 2, ran.stdout
    told = " ".join(ran.stderr.split())
    assert says in told
    assert helps in told


def test_a_script_follows_its_file_and_a_flag_and_no_secret_leaves_private_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets in a flag, an address, a variable and what the script prints.

    Its micro-batch is in the file of its configuration, its recomputation in a flag that stands
    where the command says so.
    """
    flag, word, core = "swordfish-7-blue", "open-sesame-4", "Zq7xV2mK9pLw" * 3
    begin = ("hf_", "ghp_", "github_pat_", "sk-proj-", "xoxb-", "AIza", "glpat-", "npm_")
    printed = [*(start + core for start in begin), "AKIA" + core.upper(), f"eyJhbGciOiJI.{core}"]
    variables = {
        f"SOME_{kind}": f"plain-words-of-{number}"
        for number, kind in enumerate(("TOKEN", "API_KEY", "SECRET", "PASSWORD"))
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "project" / "train.py"
    script.parent.mkdir()
    secret = (f"--note={flag}", f"--store=https://me:{word}@host/data")
    begins = (
        "import os, sys\n"
        f"shown = {printed}, dict(os.environ), sys.argv\n"
        "print(shown, flush=True)\n"
        "print(shown, file=sys.stderr, flush=True)\n"
        f"sys.argv = [word for word in sys.argv if word not in {secret}]\n"
    )
    text = (SCRIPTS / "by_file.py").read_text(encoding="utf-8")
    script.write_text(begins + text, encoding="utf-8")
    space, file = tmp_path / "space.yaml", tmp_path / "ds.json"
    space.write_text("name: mine\nknobs:\n  micro_batch: 2\n  recompute: full\n", encoding="utf-8")
    config = {
        **{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "torch_adam": True}},
    }
    file.write_text(json.dumps(config), encoding="utf-8")
    results, out = tmp_path / "results", tmp_path / "out"
    arguments = ("--deepspeed_config", str(file), "{recompute=none:--ckpt}", *secret)
    command = (*TORCHRUN, "train.py", *arguments)
    said = search_until_edited(command, script.parent, results, "--space", str(space))
    ways = reach_of(observed_in(results)).ways
    assert (ways["micro_batch"], ways["recompute"]) == ("configuration", "placeholders")
    (study,) = [folder.name for folder in results.iterdir()]
    for verb in (
        ("report", "--html", "report.html"),
        ("export", "--trial", "0", "--out", f"{out}"),
    ):
        record = ("--study", study, "--results", str(results))
        done = autotune(*verb, *record, folder=script.parent)
        said += done.stdout + done.stderr
        assert done.returncode == 0, done.stderr

    secrets = (flag, word, *variables.values(), *printed)
    assert not [secret for secret in secrets if secret in said]
    private, open_files = set(), []
    for file in (*results.rglob("*"), *out.rglob("*"), script.parent / "report.html"):
        if file.is_file() and any(secret.encode() in file.read_bytes() for secret in secrets):
            modes = [path.stat().st_mode & 0o077 for path in (file, file.parent)]
            (private.add(file.name) if 0 in modes else open_files.append(file))
    assert open_files == []
    assert {"observed.json", "spec.json", "stdout.log", "stderr.log", "launch.sh"} <= private
    assert flag in (out / "launch.sh").read_text(encoding="utf-8")
