#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
FSDP_ARGS=(
  --use-megatron-fsdp
  --data-parallel-sharding-strategy optim_grads_params
  --no-gradient-accumulation-fusion
  --use-distributed-optimizer
)
torchrun --nproc-per-node 8 pretrain_gpt.py "${FSDP_ARGS[@]}" \
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128 --bf16 \
  --untie-embeddings-and-output-weights --lr 1e-4 --train-iters 100 \
  --mock-data --tokenizer-type NullTokenizer --vocab-size 32000
