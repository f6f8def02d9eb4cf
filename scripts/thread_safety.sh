#!/usr/bin/env bash
# Checks mutexes with clang (witan/base/threads/mutex.h) in every source that includes that header, directly or
# indirectly. CUDA sources are checked if CUDA's headers exist (an nvcc, and the headers that cuda_headers.sh
# downloads).
set -euo pipefail
cd "$(dirname "$0")/.."

if grep -rnE 'std::(recursive_|shared_|timed_)?mutex|std::condition_variable' witan | grep -vE '^witan/base/threads/(timed_)?mutex\.h:'; then
  echo "thread safety: see above; take Mutex and CondVar of witan/base/threads/mutex.h, which clang can check" >&2
  exit 1
fi
own='"witan/base/threads/(timed_)?mutex\.h"'
mapfile -t headers < <(grep -rlE "$own" witan --include='*.h' --include='*.cuh')
pattern="$own$(printf '|"%s"' "${headers[@]}")"
mapfile -t sources < <(grep -rlE "^#include ($pattern)" witan --include='*.cpp')
# Older versions do not support all of libstdc++'s ranges.
clang=$(command -v clang++-16 || command -v clang++)
flags=(-std=c++20 -I. -DWITAN_VERSION='""' -fsyntax-only -Wno-everything -Wthread-safety -Werror=thread-safety)

nvcc=${CUDACXX:-$(PATH="$PATH:/usr/local/cuda/bin:${CUDA_HOME:+$CUDA_HOME/bin}" command -v nvcc || true)}
if [[ -n $nvcc && -d build/cuda-headers/include ]]; then
  toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  flags+=(-DWITAN_CUDA=1 -isystem "$toolkit/include" -isystem build/cuda-headers/include)
else
  mapfile -t sources < <(printf '%s\n' "${sources[@]}" | grep -v /cuda/)
fi

printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "$(scripts/jobs.sh)" "$clang" "${flags[@]}"
echo "thread safety: ${#sources[@]} sources are clean"
