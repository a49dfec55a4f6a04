#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
SEQ=${SEQ_LEN:-32772}
torchrun --nproc-per-node 8 --nnodes 4 --node-rank $NODE_RANK pretrain_gpt.py \
  --context-parallel-size 8 --tensor-model-parallel-size 2 --sequence-parallel \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length $SEQ \
  --max-position-embeddings 65536 --micro-batch-size 1 --global-batch-size 16 \
  --use-distributed-optimizer --position-embedding-type rope --bf16 --lr 1e-5 \
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
  --train-iters 100 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000
