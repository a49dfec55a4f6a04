#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
export NVTE_CPU_OFFLOAD_V1=1
TP=2; PP=4; EP=8; ETP=1; CP=1
torchrun --nproc-per-node 8 --nnodes 8 --node-rank $NODE_RANK pretrain_gpt.py \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
  --expert-model-parallel-size $EP --expert-tensor-parallel-size $ETP \
  --context-parallel-size $CP --sequence-parallel --use-distributed-optimizer \
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --swiglu --disable-bias-linear \
  --normalization RMSNorm --position-embedding-type rope --seq-length 4096 \
  --max-position-embeddings 4096 --num-experts 64 --moe-router-topk 8 --moe-ffn-hidden-size 1024 \
  --moe-router-score-function softmax --moe-router-enable-expert-bias \
  --moe-token-dispatcher-type alltoall --moe-grouped-gemm \
  --recompute-granularity selective --recompute-modules layernorm moe_act \
  --fp8-format hybrid --fp8-recipe delayed \
  --micro-batch-size 1 --global-batch-size 512 --bf16 --lr 1e-4 --train-iters 10 \
  --mock-data --tokenizer-type NullTokenizer --vocab-size 129280
