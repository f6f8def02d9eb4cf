#!/usr/bin/env bash
# Runs every fuzz target for SECONDS from its committed corpus: scripts/fuzz.sh SECONDS [TARGET...]
# New inputs that reach new code are stored in build/fuzz/corpus/TARGET; failing inputs in build/fuzz/findings/TARGET-*.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
targets=("$@")
if ((${#targets[@]} == 0)); then
  for source in fuzz/*/*_fuzz.cpp; do targets+=("$(basename "$source" _fuzz.cpp)"); done
fi

# Options that make inputs several times faster: no stack recorded per allocation (a finding is run again for its
# stacks), and no fake stack. Entropic scheduling took half of the time for parsers with many branches.
export ASAN_OPTIONS=malloc_context_size=0:quarantine_size_mb=1:detect_stack_use_after_return=0
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
mkdir -p build/fuzz/findings
read -ra options <<<"${FUZZ_OPTIONS:-}"
failed=()
for target in "${targets[@]}"; do
  found=build/fuzz/corpus/$target
  # Seeds are cut to this length: enough for a complete file of most formats, and still fast.
  longest=$(find "fuzz/corpus/$target" -type f -size -4200c -printf '%s\n' | sort -n | tail -n 1)
  mkdir -p "$found"
  log=build/fuzz/$target.log
  if "build/fuzz/fuzz/${target}_fuzz" -max_total_time="$seconds" -max_len=$((longest > 1024 ? longest : 1024)) \
    -entropic=0 -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=2048 \
    -artifact_prefix="build/fuzz/findings/$target-" -print_final_stats=1 "${options[@]}" \
    "$found" "fuzz/corpus/$target" >"$log" 2>&1; then
    awk -v target="$target" '$1 == "stat::number_of_executed_units:" { n = $2 }
      $1 == "stat::average_exec_per_sec:" { rate = $2 }
      END { printf "%-16s %12d inputs, %d a second: nothing found\n", target, n, rate }' "$log"
  else
    tail -n 40 "$log" >&2
    echo "$target: found a failure, see above and build/fuzz/findings; reproduce it with" >&2
    echo "  build/fuzz/fuzz/${target}_fuzz FILE" >&2
    failed+=("$target")
  fi
done
((${#failed[@]} == 0))
