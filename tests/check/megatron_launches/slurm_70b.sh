#!/bin/bash
#SBATCH --job-name=llama70b
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=04:00:00
export CUDA_DEVICE_MAX_CONNECTIONS=1
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
TP=${TP:-8}
PP=${PP:-4}
VP=${VP:-5}
MBS=${MBS:-1}
options=" \
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
    --num-layers-per-virtual-pipeline-stage ${VP} --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
    --group-query-attention --num-query-groups 8 --seq-length 8192 \
    --max-position-embeddings 8192 --position-embedding-type rope --swiglu \
    --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear \
    --micro-batch-size ${MBS} --global-batch-size 512 --train-iters 1000 --lr 3e-5 --bf16 \
    --mock-data --tokenizer-type NullTokenizer --vocab-size 128256"
srun -l --ntasks-per-node=8 bash -c "RANK=\$SLURM_PROCID LOCAL_RANK=\$SLURM_LOCALID \
    WORLD_SIZE=\$SLURM_NTASKS python -u pretrain_gpt.py ${options}"
