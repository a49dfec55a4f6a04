#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
PP=4 VP=2
WORLD=32
GBS=$((WORLD * 2))
torchrun --nproc-per-node 8 --nnodes $((WORLD / 8)) --node-rank $NODE_RANK pretrain_gpt.py \
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size $PP \
  --num-virtual-stages-per-pipeline-rank $VP --num-layers-per-virtual-pipeline-stage 4 \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \
  --max-position-embeddings 4096 --micro-batch-size 6 --global-batch-size $GBS --bf16 \
  --tp-comm-overlap --overlap-param-gather \
  --lr 1e-4 --train-iters 10 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000
