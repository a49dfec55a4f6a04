#!/bin/bash
CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc-per-node 4 pretrain_gpt.py \
  --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \
  --max-position-embeddings 2048 --micro-batch-size 8 --global-batch-size 128 --bf16 \
  --tensor-model-parallel-size 2 \
  --recompute-activations --recompute-method uniform --recompute-num-layers 2 \
  --distribute-saved-activations \
  --lr 1e-4 --train-iters 100 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000
