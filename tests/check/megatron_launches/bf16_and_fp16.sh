#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
COMMON="--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
PRECISION="--bf16 --fp16"
OPT="--use-distributed-optimizer --overlap-param-gather --lr 1e-4"
CMD="pretrain_gpt.py $COMMON $PRECISION $OPT --micro-batch-size 2 --global-batch-size 32 --train-iters 5 --mock-data --tokenizer-type NullTokenizer --vocab-size 32000"
torchrun --nproc_per_node=8 $CMD
