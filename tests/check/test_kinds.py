"""Kinds of files that people have: what `check` says of them, and what it leaves open."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.app.check import CheckFlags, check_file
from tests.cases import Cases

cases = Cases(__file__)

FILES = cases.data["FILES"]
GPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 "
    "--num-attention-heads 16 --seq-length 512 --max-position-embeddings 512 "
)
BATCH = "--micro-batch-size 4 --global-batch-size 32"
TRAINER = "trainer.py --deepspeed plain.json --per_device_train_batch_size 4 --learning_rate 1e-4"


def judged(folder: Path, text: str):
    """Whether it would run, the rules that it breaks, and what was not judged."""
    for name, content in FILES.items():
        (folder / name).write_text(content)
    (folder / "run.sh").write_text(text)
    (report,) = check_file(folder / "run.sh", CheckFlags(megatron_release="0.16"))
    found = {one.violation.rule for one in report.found if one.violation.level == "error"}
    open_ = " ".join(map(str, report.not_judged))
    return report.would_run(fixed=False), found, open_.replace("megatron-path", "")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        # A global batch that no number of ranks makes right.
        (f"N=$(count)\n{GPT.replace('8', '$N', 1)} {BATCH.replace('32', '34')}", "batch.product"),
        (f"for T in 1 2; do\n{GPT} {BATCH.replace('32', '33')} "
         "--tensor-model-parallel-size $T\ndone", "batch.product"),
        (f"{GPT.replace(' pre', ' --nnodes $N pre')} {BATCH.replace('32', '16')} "
         "--tensor-model-parallel-size 1", "batch.product"),
        # Degrees that do not fit, whatever another one is.
        (f"{GPT} {BATCH} --tensor-model-parallel-size $T --pipeline-model-parallel-size 3",
         "world.product"),
        (f"{GPT} {BATCH} --num-experts 16 --expert-model-parallel-size 16 "
         "--tensor-model-parallel-size $T", "ep.ranks"),
        # Flags that Megatron takes, to say that they are gone.
        (f"{GPT} {BATCH} --model-parallel-size 2", "flags.gone"),
        (f"{GPT} {BATCH} --checkpoint-activations", "flags.gone"),
        (f"{GPT} --global-batch-size 32 --batch-size 4", "flags.gone"),
        # Texts that a shell hands on.
        (f"read -r -d '' A <<E\n{BATCH}\n--tensor-model-parallel-size 16\nE\n{GPT} $A",
         "world.product"),
        (f'C="{GPT} {BATCH}"\nC+=" --tensor-model-parallel-size ${{TP:-16}}"\n'
         'eval "$C" 2>&1 | tee -a "$LOG/x_$(date +%F).txt"', "world.product"),
        (f"source ./sizes.sh\n{GPT.partition(' --num')[0]} ${{MODEL[@]}} {BATCH} "
         "--tensor-model-parallel-size 2", "tp.heads"),
        (f"export CUDA_VISIBLE_DEVICES=0,1\n{GPT} {BATCH}", "environment.visible_devices"),
    ],
)  # fmt: skip
def test_a_launch_of_megatron_is_refused_for_every_value_of_what_is_not_known(
    tmp_path, monkeypatch, text, rule
):
    monkeypatch.chdir(tmp_path)
    would_run, found, _ = judged(tmp_path, f"#!/bin/bash\n{text}\n")
    assert (would_run, f"megatron.{rule}" in found) == (False, True)


@pytest.mark.parametrize(
    ("text", "open_"),
    [
        (f"source ./gone.sh\n{GPT} ${{MODEL[@]}} {BATCH}", "./gone.sh, which line 2 sources"),
        ("torchrun --nproc_per_node 8 pretrain_gpt.py $ARGS", "what $ARGS of line 2 adds"),
        (f"T=2\nif [[ $(hostname) == a* ]]; then\n T=8\nfi\n{GPT} {BATCH} "
         "--tensor-model-parallel-size $T", "line 3 decides by `if`"),
        (f"{GPT.replace(' pre', ' --nnodes $N pre')} {BATCH}", "what the number of ranks decides"),
    ],
)  # fmt: skip
def test_what_is_not_known_of_a_launch_of_megatron_is_said(tmp_path, monkeypatch, text, open_):
    monkeypatch.chdir(tmp_path)
    would_run, found, said = judged(tmp_path, f"#!/bin/bash\n{text}\n")
    assert (would_run, found) == (None, set())
    assert open_ in said


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("deepspeed --num_gpus $N t.py --deepspeed_config odd.json", "batch.product"),
        ("deepspeed --num_gpus $N t.py --deepspeed_config small.json", "batch.product"),
        ("torchrun --nnodes $N --nproc_per_node 8 t.py --deepspeed_config plain.json",
         "batch.product"),
        ("#SBATCH --nodes=2\ntorchrun --nnodes $SLURM_NNODES --nproc_per_node 4 t.py "
         "--deepspeed_config plain.json", "batch.product"),
        ("NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0,1 swift sft --deepspeed auto.json",
         "file.visible_devices"),
        ("CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=4 llamafactory-cli train factory.yaml",
         "file.visible_devices"),
        ("export CUDA_VISIBLE_DEVICES=0,1\naccelerate launch --num_processes 4 "
         "--use_deepspeed --zero_stage 2 t.py", "file.visible_devices"),
        ("export WORLD_SIZE=8\npython t.py --deepspeed_config plain.json", "batch.product"),
        ("mpirun -np 8 python t.py --deepspeed_config plain.json", "batch.product"),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n"
         "srun python t.py --deepspeed_config plain.json", "batch.product"),
        ("C='deepspeed --num_gpus 8 t.py --deepspeed_config plain.json'\necho $C\neval $C",
         "batch.product"),
        ('[ -z "$DS" ] && DS=auto.json\nN=8\n[ $N = 8 ] && DS=plain.json\n'
         "deepspeed --num_gpus $N t.py --deepspeed_config $DS", "batch.product"),
        ("deepspeed --num_gpus 4 made.py --ds plain.json", "huggingface.mismatch"),
        ("deepspeed --num_gpus 4 trl.py", "huggingface.mismatch"),
        (f"torchrun --nproc_per_node 4 {TRAINER}", "huggingface.default_mismatch"),
        ("accelerate launch --config_file accelerate.yaml trainer.py "
         "--gradient_accumulation_steps 1", "huggingface.mismatch"),
    ],
)  # fmt: skip
def test_a_launch_of_deepspeed_is_refused(tmp_path, monkeypatch, text, rule):
    monkeypatch.chdir(tmp_path)
    would_run, found, _ = judged(tmp_path, f"#!/bin/bash\n{text}\n")
    assert (would_run, rule in found) == (False, True)


@pytest.mark.parametrize(
    ("text", "open_"),
    [
        ("deepspeed --num_gpus $N t.py --deepspeed_config open.json", "number of ranks"),
        ("deepspeed --hostfile h t.py --deepspeed_config plain.json", "the number of ranks"),
        ("python t.py --deepspeed_config open.json -n 3", "number of ranks"),
        ("mpirun python t.py --deepspeed_config open.json -n 3", "number of ranks"),
        ("mpirun -np $NP python t.py --deepspeed_config open.json -n 3", "number of ranks"),
        ("srun bash -c 'python t.py --deepspeed_config open.json -N 1 -n 3'", "number of ranks"),
        ("#SBATCH -n 6\nsrun -n $N python t.py --deepspeed_config open.json", "number of ranks"),
        ("deepspeed --exclude localhost:0 t.py --deepspeed_config plain.json", "number of ranks"),
        ("accelerate launch --config_file accelerate.yaml -m my.train "
         "--gradient_accumulation_steps 1", "my.train is not there to be read"),
        ("deepspeed --num_gpus 4 arguments.py", "arguments.py sets them in its own way"),
        (f"torchrun --nproc_per_node 4 {TRAINER} $MORE", "only the shell knows $MORE"),
    ],
)  # fmt: skip
def test_what_is_not_known_of_a_launch_of_deepspeed_is_said(tmp_path, monkeypatch, text, open_):
    monkeypatch.chdir(tmp_path)
    would_run, found, said = judged(tmp_path, f"#!/bin/bash\n{text}\n")
    assert (would_run, found) == (None, set())
    assert open_ in said


@pytest.mark.parametrize(
    "text",
    [
        f"torchrun --nproc_per_node 4 {TRAINER} --gradient_accumulation_steps 2",
        "accelerate launch --config_file accelerate.yaml trainer.py "
        "--gradient_accumulation_steps 4",
    ],
)
def test_a_launch_of_deepspeed_that_runs_is_told_so(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    would_run, found, said = judged(tmp_path, f"#!/bin/bash\n{text}\n")
    assert (would_run, found, said) == (True, set(), "")


AXOLOTL = (
    "base_model: m\nmicro_batch_size: 1\nsequence_len: 64\nadapter: lora\ndeepspeed: ds.json\n"
)


@pytest.mark.parametrize(
    ("text", "stage", "is_refused"),
    [
        (f"{FILES['factory.yaml']}pure_bf16: true\n", 3, True),
        (f"{FILES['factory.yaml']}pure_bf16: true\n", 2, False),
        (f"{FILES['factory.yaml']}pure_bf16: false\n", 3, False),
        (f"{FILES['factory.yaml']}use_galore: true\n", 2, True),
        (f"{AXOLOTL}fsdp: [full_shard]\n", 2, True),
        (f"{AXOLOTL}fsdp: []\noptimizer: adamw_torch\n", 2, False),
        (f"{AXOLOTL}optimizer: muon\n", 1, True),
    ],
)
def test_what_a_program_refuses_beside_deepspeed_is_told(tmp_path, text, stage, is_refused):
    (tmp_path / "ds.json").write_text(FILES["auto.json"].replace("2}", f"{stage}}}"))
    path = tmp_path / "settings.yaml"
    path.write_text(text.replace("auto.json", "ds.json"))
    (report,) = check_file(path, CheckFlags())
    assert ("file.program_refuses" in {one.violation.rule for one in report.found}) == is_refused


BLOCKED = """
import sys
for room in ("search", "fleet", "record", "report", "planning", "export", "app", "cli"):
    sys.modules[f"autotune.{room}"] = None
from pathlib import Path
from autotune.check import edit, judge, read
from autotune.engines.deepspeed.rules.plain import environment
found = read(Path(sys.argv[1]))
print(judge(found, environment())[0].rule)
print(edit(found.text, {"train_batch_size": 32}))
"""


def test_a_file_is_read_judged_and_edited_without_the_rooms_of_a_search(tmp_path):
    (tmp_path / "odd.json").write_text(FILES["odd.json"])
    command = [sys.executable, "-c", BLOCKED, str(tmp_path / "odd.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"batch.product\n{FILES['odd.json'].replace('33', '32')}\n"
