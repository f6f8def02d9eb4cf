#!/usr/bin/env bash
# Runs the tests of a built preset: scripts/test.sh PRESET. Failures are shown in full, passes are counted, and progress
# is printed every 30 seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
# A run that is interrupted twice exits from the signal's handler: threads that have just ended are not joined.
tsan=halt_on_error=1:second_deadlock_stack=1:report_thread_leaks=0:suppressions=$PWD/scripts/tsan_suppressions.txt
export TSAN_OPTIONS=${TSAN_OPTIONS:-$tsan}
# The thread sanitizer does not see how OpenBLAS, if used for LAPACK, synchronizes with its own threads, and some
# versions fail in process_vm_readv, with which UCX reads another process's memory.
if [[ $1 == tsan ]]; then export OPENBLAS_NUM_THREADS=1 UCX_TLS=${UCX_TLS:-^cma}; fi

# Four of ctest's processors are one core; the two extra ones let waiting tests run beside computing ones.
cores=$(scripts/jobs.sh)
if ((cores < 2)); then cores=2; fi
run=(ctest --test-dir "build/$1" --output-on-failure --parallel $((4 * cores + 2)) --no-tests=error)
if [[ -t 1 ]]; then
  exec "${run[@]}" --progress
fi
# shellcheck source=scripts/progress_lines.sh
source scripts/progress_lines.sh
done=0 all=0
handle() {
  if [[ $1 =~ ^\ *([0-9]+)/([0-9]+)\ Test\ +#.*\ Passed\  ]]; then
    done=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]}
  elif [[ ! $1 =~ ^\ *Start\ +[0-9]+: ]]; then
    printf '%s\n' "$1"
  fi
}
say() {
  if ((done > 0)); then echo "test: $done of $all tests ($((100 * done / all)) %), $SECONDS s"; fi
}
"${run[@]}" | each_line handle say
