#!/bin/bash
torchrun --nproc-per-node 4 pretrain_gpt.py \
  --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 \
  --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 64 --fp16 \
  --train-samples 1000000 --lr-decay-iters 1000 --lr-warmup-fraction 0.01 \
  --lr 1e-4 --min-lr 1e-3 --save ckpt \
  --data-path my-gpt2_text_document --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt
