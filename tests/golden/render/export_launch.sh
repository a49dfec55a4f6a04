#!/usr/bin/env bash
# Trains the configuration beside this file on 2 ranks of this machine.
#   PYTHON=...         the interpreter of the environment with torch and deepspeed (python3)
#   TRAIN_SCRIPT=...   your own script instead of train.py; it gets the arguments after this one's
#   TORCHRUN_ARGS=...  for several machines: --nnodes, --node-rank, --master-addr, ...
#   TORCH_EXTENSIONS_DIR=...  a folder of built DeepSpeed extensions; without, the first run compiles
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# CPU ranks over gloo, each on one core, as measured; train.py binds them to it.
export DS_ACCELERATOR=cpu LOCAL_SIZE=2 OMP_NUM_THREADS=1
read -ra torchrun_args <<<"${TORCHRUN_ARGS:-"--standalone --nproc-per-node 2"}"
if [[ -z "${TORCH_EXTENSIONS_DIR:-}" ]]; then
  echo "the first run compiles DeepSpeed's extensions, for minutes and without a word: see README.md" >&2
fi
exec "${PYTHON:-python3}" -m torch.distributed.run "${torchrun_args[@]}" \
  "${TRAIN_SCRIPT:-$here/train.py}" "$@"
