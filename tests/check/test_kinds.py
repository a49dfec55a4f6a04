"""Kinds of files that people have: what `check` says of them, and what it leaves open."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autotune.app.check import CheckFlags, check_file
from autotune.base.errors import JobError
from autotune.check import read
from tests.cases import data_beside

DATA = data_beside(__file__)

FILES, JOBS = DATA["FILES"], DATA["JOBS"]
GPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 "
    "--num-attention-heads 16 --seq-length 512 --max-position-embeddings 512 "
)
PYTHON = f"python {GPT.partition('8 ')[2]}"
BATCH = "--micro-batch-size 4 --global-batch-size 32"
TASKS = "#SBATCH --nodes=1 --ntasks-per-node=8\n"
FOUR = "torchrun --nproc_per_node 4 t.py --deepspeed_config plain.json"
MEETS = "--rdzv_backend c10d --rdzv_endpoint $HOST:29500"
DEEPSPEED = "deepspeed --num_gpus"
SCRIPT = "t.py --deepspeed_config plain.json"
SEVERAL = "#SBATCH --nodes=2 --ntasks-per-node=1\n"
OF_TWO = "torchrun --nproc_per_node 2 --nnodes 2"
OF_MACHINES = "accelerate launch --num_machines 2 --num_processes 4 --main_process_ip $H"
MACHINES = "accelerate launch --config_file machines.yaml"
OF_YAML = "trainer.py --gradient_accumulation_steps 4"
RLHF = "deepspeed --num_gpus 8 --module openrlhf.cli.train"
VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.nnodes=1 "
    "actor_rollout_ref.actor."
    "ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2"
)
EASY = "python3 -m verl.trainer.main config=easy.yaml worker.actor"
NEMO_RL = "python run_grpo.py policy.megatron_cfg.tensor_model_parallel_size=4 policy"
SLIME = (
    "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --num-rollout 2 "
    "--tensor-model-parallel-size 2 --rollout-batch-size 4 --global-batch-size"
)
NANO = "torchrun --nproc_per_node 8 run_train.py --config-file nano.yaml"
TITAN = "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file titan.toml"
NEMO = "train.py trainer.devices=4 trainer.num_nodes=2 model.tensor_model_parallel_size=1"
TRAINER = "trainer.py --deepspeed plain.json --per_device_train_batch_size 4 --learning_rate 1e-4"


def judged(folder: Path, text: str):
    """Whether it would run, the rules that it breaks, and what was not judged."""
    for name, content in FILES.items():
        (folder / name).write_text(content)
    (folder / "run.sh").write_text(text)
    (report,) = check_file(folder / "run.sh", CheckFlags(megatron_release="0.16"))
    found = {one.violation.rule for one in report.found if one.violation.level == "error"}
    assert not [one for one in report.found if "{" in one.violation.message + one.violation.fix]
    open_ = " ".join(map(str, report.not_judged))
    return report.would_run(fixed=False), found, open_.replace("megatron-path", "")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        # A global batch that no number of ranks makes right.
        (f"N=$(count)\n{GPT.replace('8', '$N', 1)} {BATCH.replace('32', '34')}", "batch.product"),
        (f"for T in $MANY; do\n{GPT} {BATCH.replace('32', '33')} "
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
        # Tasks of Slurm's: with a launcher in each of them, or without their ranks.
        (f"{TASKS}srun {GPT} {BATCH}", "environment.tasks"),
        (f"{TASKS}srun --label bash -c '{GPT} {BATCH}'", "environment.tasks"),
        (f"{TASKS}srun {PYTHON} {BATCH}", "environment.ranks"),
        (f"{TASKS}srun --gres gpu:8 -C a100 {PYTHON} {BATCH}", "environment.ranks"),
        ("#SBATCH -N 2\nexport NPROC_PER_NODE=8 NNODES=2\nsrun -n 2 bash -c 'megatron sft "
         "--tensor_model_parallel_size 32'", "world.product"),
        (f"mpirun -np 8 {PYTHON} {BATCH}", "environment.ranks"),
        ("python3 -m verl.trainer.main_ppo actor.megatron.tensor_model_parallel_size=2 "
         "data.train_batch_size=128 actor.ppo_mini_batch_size=256", "batch.ppo_mini"),
        (f"srun {GPT.replace('8', '4 --nnodes 2 --master-addr $M', 1)} {BATCH}",
         "environment.lone_nodes"),
        (f"{VERL} trainer.n_gpus_per_node=8 actor_rollout_ref.actor.ppo_mini_batch_size=4",
         "batch.verl"),
        (f"{VERL} trainer.n_gpus_per_node=1", "rollout.ranks"),
        (f"{VERL} actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 "
         "actor_rollout_ref.model.use_remove_padding=False", "sp.padding"),
        # EasyR1, with its file: prompts, micro-batches and ranks of the rollout.
        (f"{EASY}.global_batch_size=24", "batch.easyr1"),
        (f"{EASY}.micro_batch_size_per_device_for_experience=24", "batch.easyr1"),
        (f"{EASY}.micro_batch_size_per_device_for_update=6", "batch.easyr1"),
        (f"{EASY}.fsdp.enable_cpu_offload=true", "batch.easyr1"),
        (f"{EASY}.ulysses_size=1 trainer.nnodes=3", "batch.easyr1"),
        (f"{EASY}.ulysses_size=1 trainer.nnodes=3 data.mini_rollout_batch_size=32",
         "batch.easyr1"),
        (f"{EASY}.global_batch_size=1 trainer.nnodes=4", "batch.easyr1"),
        (f"{EASY}.ulysses_size=1 worker.rollout.n=1", "rollout.one_sample"),
        (f"{EASY}.ulysses_size=1 worker.rollout.tensor_parallel_size=3", "rollout.ranks"),
        # NeMo RL and slime.
        (f"{NEMO_RL}.dynamic_batching.enabled=true policy.sequence_packing.enabled=true",
         "batch.packing"),
        (f"{NEMO_RL}.dynamic_batching.enabled=true "
         "policy.megatron_cfg.pipeline_model_parallel_size=2", "batch.packing"),
        (f"{NEMO_RL}.train_global_batch_size=64 loss_fn.force_on_policy_ratio=true "
         "grpo.num_prompts_per_step=8 grpo.num_generations_per_prompt=4", "batch.on_policy"),
        (f"{SLIME} 16", "batch.rollout"),
        (f"{SLIME} 8 --kl-coef 0.1 --kl-loss-coef 0.1", "rollout.one_kl"),
        # nanotron and torchtitan, with their files.
        *((NANO, rule) for rule in ("world.degrees", "batch.stages", "tp.attention")),
        (f"{TITAN} --parallelism.context_parallel_degree 8", "world.degrees"),
        (f"{TITAN} --parallelism.data_parallel_shard_degree=-1 "
         "--parallelism.tensor_parallel_degree=3", "world.degrees"),
        (f"{TITAN} --parallelism.pipeline_parallel_degree 4 --training.local_batch_size 2",
         "batch.stages"),
        (f"{TITAN} --training.seq_len 1002 --parallelism.data_parallel_shard_degree 2 "
         "--parallelism.context_parallel_degree 4", "sequence.shares"),
        (f"{TITAN} --training.seq_len 1001 --parallelism.data_parallel_shard_degree 4 "
         "--parallelism.tensor_parallel_degree 2", "sequence.shares"),
        (f"{SEVERAL}srun python {NEMO}", "environment.lightning"),
        ("python3 -m verl.trainer.main_ppo actor.megatron.tensor_model_parallel_size=3 "
         "rollout.tensor_model_parallel_size=4 trainer.nnodes=1 trainer.n_gpus_per_node=8",
         "world.product"),
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
        (f"{TASKS}srun --container-image i {PYTHON} {BATCH}", "RANK of each task"),
        (f"{TASKS}srun bash -c 'RANK=$SLURM_PROCID {PYTHON} {BATCH}'", "other checks"),
        (f"{TASKS}srun singularity exec $SIF conda-python -u {PYTHON[7:]} {BATCH}",
         "RANK of each task"),
        (f"{TASKS}srun /opt/tools/with_ranks {PYTHON} {BATCH}", "RANK of each task"),
        (f"{TASKS}srun env RANK=0 {PYTHON} {BATCH}", "RANK of each task"),
        (f"#SBATCH -N 2 --ntasks-per-node=4\nsrun python {NEMO}", "the line does not override"),
        (f"{VERL} trainer.n_gpus_per_node=4", "what the line does not override"),
        (f"{EASY}.ulysses_size=2", "EasyR1's other checks"),
        (TITAN, "torchtitan's other checks"),
        (f"{TITAN} --training.seq_len 1001", "torchtitan's other checks"),
        (f"{TITAN} --parallelism.data_parallel_shard_degree -1 --training.batch_size 32 "
         "--parallelism.pipeline_parallel_degree 4 --parallelism.pipeline_parallel_schedule 1F1B "
         "--parallelism.pipeline_parallel_microbatch_size 4", "torchtitan's other checks"),
        (f"{EASY.replace('easy', 'gone')}.global_batch_size=24", "does not override"),
        (f"{SLIME} 8 --kl-coef 0.1", "what the line does not give"),
        (f"{SLIME} 16 --debug-rollout-only", "what the line does not give"),
        (f"{VERL} trainer.n_gpus_per_node=4 data.train_batch_size=0 "
         "actor_rollout_ref.actor.ppo_mini_batch_size=16", "not override"),
        (f"cat > w.sh <<'E'\nexport RANK=$SLURM_PROCID\nexec \"$@\"\nE\n"
         f"{TASKS}srun bash w.sh {PYTHON} {BATCH}", "other checks"),
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
        # Tasks and GPUs that Slurm is asked for.
        (f"#SBATCH -N 1 --ntasks-per-node=4\nsrun {FOUR}", "file.tasks"),
        (f"srun -n 4 {FOUR}", "file.tasks"),
        ("#SBATCH -N 1 --ntasks-per-node=4\nexport NPROC_PER_NODE=4\n"
         "srun llamafactory-cli train factory.yaml", "file.tasks"),
        (f"#SBATCH --gpus-per-node=2\n{FOUR}", "file.visible_devices"),
        (f"{SEVERAL}#SBATCH --gpus-per-task=2\nsrun {FOUR}", "file.visible_devices"),
        (f"#SBATCH -N 1 --ntasks-per-node=4 --gpus-per-task=1\nsrun bash -c 'RANK=$SLURM_PROCID "
         f"LOCAL_RANK=$SLURM_LOCALID python {SCRIPT}'", "file.visible_devices"),
        # Nodes of torchrun that no flag brings together: it does not read MASTER_ADDR.
        ("#SBATCH -N 2\nexport MASTER_ADDR=$(hostname)\n"
         f"srun -l bash -c '{FOUR.replace('4', '2 --nnodes=2', 1)}'", "file.lone_nodes"),
        (f"srun {FOUR.replace('4', '2 --nnodes 2 --rdzv_backend c10d', 1)}", "file.lone_nodes"),
        (f"srun {FOUR.replace('4', '2 --nnodes 2 --node_rank $SLURM_NODEID', 1)}",
         "file.lone_nodes"),
        # Nodes with one number, or an address of their own, for all.
        (f"{SEVERAL}srun {OF_TWO} --node_rank 0 --master_addr $H {SCRIPT}", "file.lone_nodes"),
        (f"{SEVERAL}export R=$SLURM_NODEID H=$(hostname)\n"
         f"srun {OF_TWO} --node_rank $R --master_addr $H {SCRIPT}", "file.lone_nodes"),
        (f"{SEVERAL}export H=localhost\nsrun {OF_TWO} --rdzv_backend c10d "
         f"--rdzv_endpoint $H:29500 {SCRIPT}", "file.lone_nodes"),
        (f"{SEVERAL}srun {MACHINES} {OF_YAML}", "file.lone_nodes"),
        (f"{SEVERAL}srun bash -c \"{MACHINES} --machine_rank $SLURM_NODEID --main_process_ip a "
         f"{OF_YAML}\"", "file.lone_nodes"),
        (f"{SEVERAL}srun bash <<E\n{MACHINES} --machine_rank $SLURM_NODEID --main_process_ip a "
         f"{OF_YAML}\nE", "file.lone_nodes"),
        (f"{SEVERAL}srun bash -c '{OF_TWO} --rdzv_backend c10d --rdzv_endpoint $(hostname):29500 "
         f"{SCRIPT}'", "file.lone_nodes"),
        (f"{SEVERAL}export NNODES=2 NODE_RANK=0 MASTER_ADDR=a NPROC_PER_NODE=4\n"
         "srun llamafactory-cli train factory.yaml", "file.lone_nodes"),
        # A hostfile with a line that is none, or without what is named.
        (f"echo\ncat > h <<E\na slots=4\nb lots=4\nE\ndeepspeed --hostfile h {SCRIPT}",
         "file.visible_devices"),
        (f"cat > h <<E\na slots=2\na slots=2\nE\ndeepspeed --hostfile h {SCRIPT}",
         "file.visible_devices"),
        (f"deepspeed --include localhost:0,1,2,3 --exclude localhost:4 {SCRIPT}",
         "file.visible_devices"),
        (f"cat > h <<E\na slots=2\nE\ndeepspeed --hostfile h --include a:2 {SCRIPT}",
         "file.visible_devices"),
        ("python light.py", "lightning.accumulation"),
        # OpenRLHF.
        (f"{RLHF}_sft --train_batch_size 4 --micro_train_batch_size 4", "batch.product"),
        (f"{RLHF}_sft --train.batch_size 256 --train.micro_batch_size 3", "batch.product"),
        (f"{RLHF}_sft --train_batch_size 256 --micro_train_batch_size 4 --ring_attn_size 2",
         "file.program_refuses"),
        ("USE_MEGATRON_BRIDGE=1 FORCE_TORCHRUN=1 llamafactory-cli train factory.yaml",
         "file.program_refuses"),
        ("python -m openrlhf.cli.train_ppo_ray --train_batch_size 128 --micro_train_batch_size 4 "
         "--colocate_all_models --vllm_num_engines 3", "file.program_refuses"),
        ("deepspeed --num_gpus 4 pretrain_gpt.py --deepspeed --deepspeed_config plain.json "
         "--micro-batch-size 4 --global-batch-size 32 --zero-stage 2",
         "megatron_deepspeed.pipeline"),
        ("accelerate launch --num_processes 4 --use_deepspeed --deepspeed_config_file plain.json "
         "prepares.py", "accelerate.two_optimizers"),
        # Texts for a shell that reads them, or for sbatch; a file that is written before.
        (f"srun bash -s <<E\n{FOUR.replace('4', '8', 1)}\nE", "batch.product"),
        (f"ssh node <<E\n{FOUR.replace('4', '8', 1)}\nE", "batch.product"),
        (f"sbatch -N 1 <<'E'\n#!/bin/bash\n{FOUR.replace('4', '8', 1)}\nE", "batch.product"),
        (f"cat > job.sh <<E\nsrun {FOUR}\nE\nsbatch -N 1 --ntasks-per-node 4 job.sh",
         "file.tasks"),
        # A package is no launcher, and torchrun has variables.
        (f"conda activate deepspeed\nuv run --with deepspeed {FOUR.replace('4', '8', 1)}",
         "batch.product"),
        (f"export PET_NNODES=2\n{FOUR}", "batch.product"),
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
    assert rule != "file.visible_devices" or found == {rule}


@pytest.mark.parametrize(
    ("text", "open_"),
    [
        ("deepspeed --num_gpus $N t.py --deepspeed_config open.json", "number of ranks"),
        ("deepspeed --hostfile h t.py --deepspeed_config plain.json", "the number of ranks"),
        (f"cat > h <<E\n`hostname` slots=2\nE\ndeepspeed --hostfile h --include a {SCRIPT}",
         "the number of ranks"),
        (f"cat > h <<E\na slots=4\nE\nsed -i s/4/2/ h\ndeepspeed --hostfile h {SCRIPT}",
         "the nodes of --hostfile"),
        (f"{DEEPSPEED} 2 --num_nodes 2 t.py --deepspeed_config plain.json", "/job/hostfile"),
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
        ("srun -n 4 python t.py --deepspeed_config plain.json", "RANK of each task"),
        (f"mpirun -np 4 python {TRAINER} --gradient_accumulation_steps 2", "RANK of each task"),
        ("accelerate launch --num_processes 4 --use_deepspeed --zero_stage 2 --mixed_precision "
         "fp8 t.py", "Transformer Engine or torchao"),
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
        f"source env/bin/activate\nN=${{N:-4}}\n{FOUR.replace('4', '$N', 1)}",
        f"#SBATCH -N 1 --ntasks-per-node=4 --gpus-per-node=4\nsrun -N 1 -n 1 {FOUR}",
        *(
            f"#SBATCH -N 1 --ntasks-per-node=4 --gpus-per-task=1\n{exported}srun "
            f"{bound}bash -c 'RANK=$SLURM_PROCID LOCAL_RANK={local} python {SCRIPT}'"
            for exported, bound, local in (
                *(("", "", "0"), ("", "--gpu-bind=none ", "$SLURM_LOCALID")),
                ("export SLURM_GPU_BIND=none\n", "", "$SLURM_LOCALID"),
            )
        ),
        "#SBATCH -N 1 --ntasks-per-node=4 --gpus-per-task=1\n"
        f"srun {FOUR.replace('4', f'1 --nnodes $SLURM_NTASKS {MEETS}', 1)}",
        f"#SBATCH --ntasks-per-node=4\nNN=$(count)\nsrun -N $NN -n $NN {FOUR}",
        "#SBATCH -N 1 --ntasks-per-node=4 --gpus-per-node=4\n"
        f"srun {FOUR.replace('4', f'1 --nnodes $SLURM_NTASKS {MEETS}', 1)}",
        f"{SEVERAL}srun bash -c '{OF_TWO} --node_rank $SLURM_NODEID --master_addr $H {SCRIPT}'",
        f"{SEVERAL}srun -N 1 -n 1 {OF_TWO} --node_rank 0 --master_addr a {SCRIPT}",
        f"{SEVERAL}ssh $H {OF_TWO} {MEETS} {SCRIPT}",
        f"{SEVERAL}srun {OF_MACHINES} --machine_rank 0 --rdzv_backend c10d {SCRIPT}",
        f"{OF_MACHINES} --machine_rank 0 {TRAINER} --gradient_accumulation_steps 2",
        f"{MACHINES} --main_process_ip $H t.py",
        f"{SEVERAL}srun bash -c '{MACHINES} --machine_rank $SLURM_NODEID "
        "--main_process_ip $H t.py'",
        f"{SEVERAL}srun {OF_TWO} --rdzv_backend c10d --rdzv_endpoint $(hostname):29500 {SCRIPT}",
        f"{RLHF}_sft --train_batch_size 256 --micro_train_batch_size 4",
        f"{RLHF}_sft --train.batch_size 256 --train.micro_batch_size 4 --ds.ring_attn_size 2 "
        "--ds.packing_samples",
        # What stands before a launcher is another program's.
        f"cat > h <<E\na slots=4\nE\nsrun -N 1 --exclude b deepspeed --hostfile h {SCRIPT}",
        f"printf 'a\\nb\\n' > h\nmpirun -np 2 --hostfile h {OF_TWO} {MEETS} {SCRIPT}",
        "accelerate launch --config_file other.yaml trainer.py --deepspeed plain.json "
        f"{TRAINER.partition('plain.json ')[2]} --gradient_accumulation_steps 2",
    ],
)
def test_a_launch_of_deepspeed_that_runs_is_told_so(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    would_run, found, said = judged(tmp_path, f"#!/bin/bash\n{text}\n")
    assert (would_run, found, said) == (True, set(), "")


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (FOUR, "file.lone_nodes"),
        (f"bash -c '{FOUR.replace('torchrun --nproc_per_node', DEEPSPEED)}'", "file.lone_nodes"),
        (GPT.replace("8", "4 --standalone", 1) + BATCH, "megatron.environment.lone_nodes"),
        (f"\n{FOUR}", "file.lone_nodes"),
        (f"\nbash -c '{OF_TWO} {MEETS} {SCRIPT}'", "file.lone_nodes"),
        (f"\n{FOUR.replace('torchrun --nproc_per_node', DEEPSPEED)}", "file.lone_nodes"),
        (f"\n{OF_MACHINES} --machine_rank 0 {SCRIPT}", "file.lone_nodes"),
        (f"\nssh $H {OF_TWO} --node_rank 1 {SCRIPT}", "file.lone_nodes"),
    ],
)
def test_nodes_that_train_apart_are_warned_of(tmp_path, monkeypatch, line, rule):
    monkeypatch.chdir(tmp_path)
    srun = "" if line.startswith("\n") else "srun --ntasks-per-node=1 "
    text = f"#SBATCH --nodes=2 --ntasks-per-node=1\n{srun}{line}\n"
    (tmp_path / "plain.json").write_text(FILES["plain.json"])
    (tmp_path / "run.sh").write_text(text)
    (report,) = check_file(tmp_path / "run.sh", CheckFlags(megatron_release="0.16"))
    assert [one.violation.rule for one in report.found] == [rule]
    assert not report.is_refused(fixed=False)


@pytest.mark.parametrize(
    ("name", "world", "found"), [(one["job"], one["world"], one["found"]) for one in JOBS]
)
def test_a_job_tells_its_commands_what_its_scheduler_sets(
    tmp_path, monkeypatch, name, world, found
):
    monkeypatch.chdir(tmp_path)
    for file in ("plain.json", "whole.json"):
        (tmp_path / file).write_text(FILES[file])
    (tmp_path / "job.yaml").write_text(name)
    (report,) = check_file(tmp_path / "job.yaml", CheckFlags())
    assert (report.world, [one.violation.rule for one in report.found]) == (world, found)


@pytest.mark.parametrize("value", ["2024-13-45", "0b_", "!!int abc", "!!bool abc"])
def test_a_job_with_a_value_that_is_none_of_its_kind_is_refused(tmp_path, value):
    (tmp_path / "job.yaml").write_text(f"run: {FOUR}\nx: {value}\n")
    with pytest.raises(JobError, match="not valid YAML"):
        check_file(tmp_path / "job.yaml", CheckFlags())


@pytest.mark.parametrize(
    ("text", "line"), [("if true; then\n:\n", 1), (":\nfor a in b; do\n", 2), ("f() {\n:\n", 1)]
)
def test_a_block_that_does_not_close_is_refused(tmp_path, text, line):
    (tmp_path / "run.sh").write_text(f"{text}{FOUR}\n")
    with pytest.raises(JobError, match=rf"run\.sh:{line}: the .* does not close"):
        check_file(tmp_path / "run.sh", CheckFlags())


def test_a_launch_line_stands_in_place_of_the_file_that_it_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("run.sh")
    path.write_text(f'W=${{1:-7b}}\n{GPT} {BATCH} "$@"\n')
    (plain,) = check_file(path, CheckFlags())
    (given,) = check_file(path, CheckFlags(launch="bash run.sh --tensor-model-parallel-size 3"))
    assert plain.about.endswith('started without arguments ("$@" takes some, $1 is then 7b)')
    assert (plain.passes, given.passes, str(given.source.path)) == (True, False, "the launch line")


def test_a_script_is_read_for_the_file_that_it_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("plain.json").write_text(FILES["plain.json"])
    Path("t.py").write_text("import deepspeed\ndeepspeed.initialize(config='plain.json')\n")
    Path("other.py").write_text("import deepspeed\ndeepspeed.initialize(config=made())\n")
    (report,) = check_file(Path("t.py"), CheckFlags(launch="torchrun --nproc_per_node 8 t.py"))
    assert [one.violation.rule for one in report.found] == ["batch.product"]
    with pytest.raises(JobError, match=r"other\.py: is a script whose code names no ds_config"):
        check_file(Path("other.py"), CheckFlags())


def test_a_command_that_does_not_train_starts_no_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError, match="a shell file without a launch line that names one"):
        judged(tmp_path, "#!/bin/bash\nllamafactory-cli webchat factory.yaml\n")


def test_a_launch_of_megatron_hides_no_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = f"{DATA['LINES']['swift_alone']} --streaming"
    (tmp_path / "run.sh").write_text(f"{line}\n{GPT} \\\n {BATCH}\n")
    swift, gpt = check_file(tmp_path / "run.sh", CheckFlags(megatron_release="0.16"))
    assert [one.violation.rule for one in swift.found] == ["file.program_refuses"]
    assert "Megatron-LM" in gpt.about


@pytest.mark.parametrize(
    ("program", "name", "says"),
    [
        ("axolotl", "adam_eps", "did you mean adam_epsilon?"),
        ("LLaMA-Factory", "sequence_parallel_size", "of LLaMA-Factory, but of a fork"),
        ("LLaMA-Factory", "of_a_plugin", "is no argument of LLaMA-Factory in any release"),
        ("ms-swift", "of_a_fork", "is no argument of ms-swift in any release"),
        ("axolotl", "of_a_plugin", ""),
        ("axolotl", "lora_rank", "did you mean lora_r?"),
        ("axolotl", "per_device_train_batch_size", "micro_batch_size is given"),
    ],
)
def test_a_setting_that_may_be_left_out_or_new_is_warned_of(tmp_path, program, name, says):
    (tmp_path / "auto.json").write_text(FILES["auto.json"])
    settings = {**DATA["SETTINGS"][program], "deepspeed": "auto.json", name: 1}
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
    (report,) = check_file(tmp_path / "settings.yaml", CheckFlags(world=2))
    found = [(one.violation.rule, one.violation.level) for one in report.found]
    assert found == [("file.misspelt_argument", "warning")] * bool(says)
    assert all(says in one.violation.message for one in report.found)


WITHOUT = [
    ("factory.yaml", {"do_train": True}, "without DeepSpeed", True),
    ("factory.yaml", {"do_train": True, "fsdp": "full_shard"}, "without DeepSpeed", None),
    ("trl.yaml", {}, "perhaps DeepSpeed", None),
]


@pytest.mark.parametrize(("name", "more", "engine", "would_run"), WITHOUT)
def test_a_file_of_arguments_without_deepspeed_is_judged(tmp_path, name, more, engine, would_run):
    program = {"factory.yaml": "LLaMA-Factory", "trl.yaml": "TRL"}[name]
    (tmp_path / name).write_text(yaml.safe_dump({**DATA["SETTINGS"][program], **more}))
    (report,) = check_file(tmp_path / name, CheckFlags(world=2, deepspeed_version="0.19.8"))
    assert f"{engine}{' 0.19.8' * (engine[0] == 'p')}, cuda, world 2 (given)" in report.about
    assert report.would_run(fixed=False) is would_run
    with pytest.raises(JobError, match="a training without DeepSpeed"):
        read(tmp_path / name)


def test_ranks_that_a_refusal_asks_for_are_asked_for(tmp_path):
    settings = {**DATA["SETTINGS"]["LLaMA-Factory"], "do_train": True, "use_badam": True}
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
    (report,) = check_file(tmp_path / "settings.yaml", CheckFlags())
    assert "use_badam beside the number of ranks (give it with --world)" in map(
        str, report.not_judged
    )


@pytest.mark.parametrize("settings", DATA["ANYBODYS"])
def test_a_file_of_arguments_that_is_no_certain_training_is_none(tmp_path, settings):
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(JobError, match="arguments without a deepspeed key"):
        check_file(tmp_path / "chat.yaml", CheckFlags(world=2))


@pytest.mark.parametrize(("text", "would_run", "rules"), DATA["ENGINES"])
def test_a_program_and_an_engine_are_told_where_they_are_certain(
    tmp_path, monkeypatch, text, would_run, rules
):
    monkeypatch.chdir(tmp_path)
    if would_run == "none":
        with pytest.raises(JobError, match="is no DeepSpeed configuration"):
            judged(tmp_path, f"#!/bin/bash\n{text}\n")
    else:
        assert judged(tmp_path, f"#!/bin/bash\n{text}\n")[:2] == (would_run, set(rules))


@pytest.mark.parametrize(("program", "clash", "mend", "rule"), DATA["CLASHES"])
def test_words_that_a_program_refuses_are_told_and_not_what_it_takes(
    tmp_path, monkeypatch, program, clash, mend, rule
):
    monkeypatch.chdir(tmp_path)
    for words, is_refused in ((clash, True), (mend, False)):
        would_run, found, _ = judged(tmp_path, f"#!/bin/bash\n{DATA['LINES'][program]} {words}\n")
        assert (would_run is False, rule in {one.removeprefix("megatron.") for one in found}) == (
            (is_refused, is_refused)
        )


@pytest.mark.parametrize(
    ("program", "clash", "mend", "level"),
    [(name, *case, "error")[:4] for name, cases in DATA["REFUSED"].items() for case in cases],
)
def test_what_a_program_refuses_is_told_and_not_what_it_takes(
    tmp_path, program, clash, mend, level
):
    for given, is_refused in ((clash, True), ({**clash, **mend}, False)):
        settings = {**DATA["SETTINGS"][program], "deepspeed": "ds.json", **given}
        stage = settings.pop("zero", 2)
        (tmp_path / "ds.json").write_text(FILES["auto.json"].replace("2}", f"{stage}}}"))
        (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
        (report,) = check_file(tmp_path / "settings.yaml", CheckFlags(world=2))
        found = [one.violation for one in report.found]
        levels = {one.level for one in found if one.rule == "file.program_refuses"}
        assert levels == ({level} if is_refused else set())


BLOCKED = """
import sys
for room in ("search", "fleet", "record", "report", "planning", "export", "app", "cli"):
    sys.modules[f"autotune.{room}"] = None
from pathlib import Path
from autotune.check import check, edit, read
from autotune.engines.deepspeed.rules.plain import environment
found = read(Path(sys.argv[1]))
print(check(found, environment()).found[0].violation.rule)
print(edit(found.text, {"train_batch_size": 32}))
"""


def test_a_file_is_read_judged_and_edited_without_the_rooms_of_a_search(tmp_path):
    (tmp_path / "odd.json").write_text(FILES["odd.json"])
    command = [sys.executable, "-c", BLOCKED, str(tmp_path / "odd.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"batch.product\n{FILES['odd.json'].replace('33', '32')}\n"
