#!/usr/bin/env bash
# Trains the configuration beside this file on 2 ranks of this machine.
#   PYTHON=...         the interpreter of the environment with torch and deepspeed (python3)
#   TRAIN_SCRIPT=...   your own script instead of train.py; it gets the arguments after this one's
#   TORCHRUN_ARGS=...  for several machines: --nnodes, --node-rank, --master-addr, ...
#   TORCH_EXTENSIONS_DIR=...  a folder of built DeepSpeed extensions; without, autotune's if they are there, else the first run compiles
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# CPU ranks over gloo, each on one core, as measured; train.py binds them to it.
export DS_ACCELERATOR=cpu LOCAL_SIZE=2 OMP_NUM_THREADS=1
read -ra torchrun_args <<<"${TORCHRUN_ARGS:-"--standalone --nproc-per-node 2"}"
if [[ -z "${TORCH_EXTENSIONS_DIR:-}" ]]; then
  # What autotune has built for this very interpreter; its own ninja leads, as another would compile all again.
  built="$("${PYTHON:-python3}" -m autotune.engines.deepspeed.extensions cpu folder 2>/dev/null)" || true
  if [[ -d "$built" ]]; then
    export TORCH_EXTENSIONS_DIR="$built"
    PATH="$(dirname "$(realpath -s "$(command -v "${PYTHON:-python3}")")"):$PATH"
  else
    echo "the first run compiles DeepSpeed's extensions, for minutes and without a word: see README.md" >&2
  fi
fi
exec "${PYTHON:-python3}" -m torch.distributed.run "${torchrun_args[@]}" \
  "${TRAIN_SCRIPT:-$here/train.py}" "$@"
