#!/usr/bin/env bash
# Runs the tests of a preset that is built: scripts/test.sh PRESET. Failures are shown whole, passes are counted.
set -euo pipefail
cd "$(dirname "$0")/.."

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/scripts/tsan_suppressions.txt}

run=(ctest --test-dir "build/$1" --output-on-failure --parallel 2 --no-tests=error)
if [[ -t 1 ]]; then
  exec "${run[@]}" --progress
fi
"${run[@]}" | grep -Ev '^ *(Start +[0-9]+:|[0-9]+/[0-9]+ Test +#.* Passed )'
