#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NCCL_IB_SL=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
GPUS=8; NODES=4
EP=16
ARGS=()
ARGS+=(--num-layers 28 --hidden-size 2048 --ffn-hidden-size 10944 --num-attention-heads 16)
ARGS+=(--seq-length 4096 --max-position-embeddings 4096 --swiglu --disable-bias-linear)
ARGS+=(--normalization RMSNorm --position-embedding-type rope)
ARGS+=(--num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408)
ARGS+=(--moe-shared-expert-intermediate-size 2816 --moe-shared-expert-overlap)
ARGS+=(--moe-token-dispatcher-type allgather)
ARGS+=(--tensor-model-parallel-size 1 --expert-model-parallel-size $EP)
ARGS+=(--use-distributed-optimizer --micro-batch-size 1 --global-batch-size 1024)
ARGS+=(--train-iters 1000 --lr 4e-4 --min-lr 4e-5 --bf16)
ARGS+=(--mock-data --tokenizer-type NullTokenizer --vocab-size 102400)
torchrun --nproc_per_node $GPUS --nnodes $NODES --node-rank $NODE_RANK pretrain_gpt.py "${ARGS[@]}"
