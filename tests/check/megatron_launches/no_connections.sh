#!/bin/bash
# CUDA_DEVICE_MAX_CONNECTIONS is forgotten.
torchrun --nproc-per-node 8 pretrain_gpt.py \
  --tensor-model-parallel-size 2 --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
  --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 64 \
  --bf16 --lr 1e-4 --train-iters 10 --mock-data --tokenizer-type NullTokenizer --vocab-size 50257
