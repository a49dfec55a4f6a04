#!/bin/bash
# One node; EP over all of it, and TP as well.
set -euo pipefail
: "${WORKSPACE:=/workspace}"
export CUDA_DEVICE_MAX_CONNECTIONS=1
MODEL_ARGS=(
    --use-mcore-models --disable-bias-linear
    --seq-length 4096 --max-position-embeddings 32768
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --init-method-std 0.01 --attention-dropout 0.0 --hidden-dropout 0.0
    --normalization RMSNorm --position-embedding-type rope --swiglu
    --untie-embeddings-and-output-weights
    --group-query-attention --num-query-groups 8
    --no-masked-softmax-fusion --no-position-embedding --rotary-base 1000000
)
MOE_ARGS=(
    --num-experts 8 --moe-router-topk 2 --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 1e-2 --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall --overlap-param-gather --overlap-grad-reduce
)
PARALLEL=(--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --expert-model-parallel-size 8 --use-distributed-optimizer)
torchrun --nproc-per-node=8 --nnodes="${SLURM_NNODES:-1}" --node-rank="${SLURM_NODEID:-0}" \
    pretrain_gpt.py "${MODEL_ARGS[@]}" "${MOE_ARGS[@]}" "${PARALLEL[@]}" \
    --micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --train-iters 500000 \
    --lr-decay-iters 320000 --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 0.1 \
    --lr-warmup-iters 500 --clip-grad 1.0 --bf16 \
    --tokenizer-type NullTokenizer --vocab-size 32000 --mock-data
