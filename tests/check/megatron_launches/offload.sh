#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
LAYERS=40
torchrun --nproc-per-node 8 pretrain_gpt.py \
  --num-layers $LAYERS --hidden-size 5120 --num-attention-heads 40 --seq-length 4096 \
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 \
  --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 8 \
  --decoder-last-pipeline-num-layers 10 \
  --optimizer-cpu-offload --optimizer-offload-fraction 0.5 --use-precision-aware-optimizer \
  --lr 1e-4 --train-iters 10 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000
