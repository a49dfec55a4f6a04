#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc-per-node 8 pretrain_gpt.py \
  --expert-model-parallel-size 4 --moe-grouped-gemm --moe-router-topk 2 \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 8 --bf16 \
  --lr 1e-4 --train-iters 10 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000
