#!/usr/bin/env bash
# Builds a preset of CMakePresets.json in build/PRESET: scripts/build.sh PRESET [TARGET...]
# On a terminal ninja shows its progress. Otherwise a line every 30 seconds says how far it is, and the compilers'
# messages are shown when they have any.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
scripts/configure.sh "$preset"
jobs=$(scripts/jobs.sh)
if [[ -t 1 ]]; then
  exec ninja -C "build/$preset" -j "$jobs" "$@"
fi
echo "build: build/$preset, $jobs jobs"
# Device code that is not optimised is slow, as is known.
known=''
if [[ "${WITAN_CMAKE:-}" == *WITAN_CUDA_OPTIMISE=OFF* ]]; then known='^ptxas info .*Potential Performance Loss'; fi
# ninja's status lines are "[DONE/ALL seconds] ..."; whatever else it prints is a message.
NINJA_STATUS='[%f/%t %e] ' ninja -C "build/$preset" -j "$jobs" "$@" 2>&1 | awk -v known="$known" '
  /^\[[0-9]+\/[0-9]+ [0-9.]+\] / {
    split(substr($1, 2), of, "/")
    seconds = $2 + 0
    if (seconds - shown >= 30) {
      shown = seconds
      left = (of[2] - of[1]) * seconds / of[1]
      printf "build: %d of %d steps (%d %%), %d s, about %d s left\n", of[1], of[2], 100 * of[1] / of[2], seconds, left
      fflush()
    }
    next
  }
  known && $0 ~ known { next }
  /^ninja: (Entering directory|no work to do)/ { next }
  { print; fflush() }'
