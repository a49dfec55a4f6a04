#!/bin/bash
#SBATCH -N 4
#SBATCH --ntasks-per-node 8
export CUDA_DEVICE_MAX_CONNECTIONS=1
srun --mpi=pmix --container-image=nvcr.io/nvidia/pytorch:25.01-py3 \
    python -u /opt/megatron-lm/pretrain_gpt.py \
    --tensor-model-parallel-size 4 \
    --pipeline-model-parallel-size 3 \
    --num-layers 36 --hidden-size 4096 --num-attention-heads 32 \
    --seq-length 4096 --max-position-embeddings 4096 \
    --micro-batch-size 2 --global-batch-size 512 \
    --train-iters 100 --lr 1e-4 --min-lr 1e-5 --bf16 \
    --mock-data --tokenizer-type NullTokenizer --vocab-size 50257
