#!/usr/bin/env bash
# What follows on the command line goes to the training.
export CUDA_DEVICE_MAX_CONNECTIONS=1
NGPU="${NGPU:-8}"
python -m torch.distributed.run --standalone --nproc_per_node "$NGPU" pretrain_gpt.py \
  --tensor-model-parallel-size 4 --num-layers 24 --hidden-size 1024 --num-attention-heads 18 \
  --kv-channels 64 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 4 \
  --global-batch-size 64 --lr 1.5e-4 --train-iters 500 --fp16 --mock-data \
  --tokenizer-type NullTokenizer --vocab-size 50257 "$@"
