#!/usr/bin/env bash
# The table of docs/performance.md, "GPUs": every row by Witan and by its peer on the GPUs of this machine, with ratios.
#   bench/peers/gpu.sh [--gpus N] [--only TEXT] [--peers torch,transformers,…] [--steps N] [WITAN]
# WITAN: build/cuda/witan unless named. Peers need a python3 with PyTorch; a peer that is missing leaves its field empty.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 bench/peers/gpu_table.py "$@"
