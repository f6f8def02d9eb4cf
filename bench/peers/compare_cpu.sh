#!/usr/bin/env bash
# Witan against PyTorch on this machine's processor, and its tokenizer against Hugging Face's, in turns:
#   bench/peers/compare_cpu.sh [--rounds N] [--threads N] [--skip-torch] [--skip-tokenizers]
# PyTorch comes from PyPI into a folder outside the tree, $PEERS_HOME (~/.cache/witan-peers; some GB). Wants g++ and an
# otherwise idle machine: then it takes about five minutes once all is built.
set -euo pipefail
cd "$(dirname "$0")/../.."

home=${PEERS_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/witan-peers}
python=$home/venv/bin/python
if ! [[ -x $python ]] || ! "$python" -c 'import torch, tokenizers' 2>/dev/null; then
  echo "peers: installing torch and tokenizers in $home" >&2
  python3 -m venv "$home/venv"
  # The wheel without CUDA, where that index can be reached; the one of PyPI computes the same on a processor.
  "$python" -m pip install -q --retries 0 --index-url https://download.pytorch.org/whl/cpu torch 2>/dev/null ||
    "$python" -m pip install -q torch
  "$python" -m pip install -q numpy tokenizers
fi

# On AMD processors MKL, PyTorch's matrix library, stays with AVX2 unless it takes them for Intel's.
cat >"$home/as_intel.c" <<'C'
int mkl_serv_intel_cpu_true(void) { return 1; }
C
g++ -x c -shared -fPIC -O2 -o "$home/as_intel.so" "$home/as_intel.c"

scripts/build.sh bench witan tokenizer_bench
exec "$python" bench/peers/compare_cpu.py --home "$home" "$@"
