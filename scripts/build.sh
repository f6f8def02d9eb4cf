#!/usr/bin/env bash
# Builds a preset of CMakePresets.json in build/PRESET: scripts/build.sh PRESET [TARGET...]
# On a terminal ninja shows its progress. Otherwise a line is printed every 30 seconds, and messages of compilers if
# there are any.
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
# shellcheck source=scripts/progress_lines.sh
source scripts/progress_lines.sh
# Warnings that device code is not optimised are expected.
known=''
if [[ "${WITAN_CMAKE:-}" == *WITAN_CUDA_OPTIMISE=OFF* ]]; then known='^ptxas info .*Potential Performance Loss'; fi

done=0 all=0
# ninja's status lines are "[DONE/ALL] ..."; other output is a message.
handle() {
  if [[ $1 =~ ^\[([0-9]+)/([0-9]+)\]\  ]]; then
    done=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
  elif [[ ! $1 =~ ^ninja:\ (Entering\ directory|no\ work\ to\ do) && ! (-n $known && $1 =~ $known) ]]; then
    printf '%s\n' "$1"
  fi
}
say() {
  if ((done > 0)); then
    echo "build: $done of $all steps ($((100 * done / all)) %), $SECONDS s, about $(((all - done) * SECONDS / done)) s left"
  fi
}
NINJA_STATUS='[%f/%t] ' ninja -C "build/$preset" -j "$jobs" "$@" 2>&1 | each_line handle say
