#!/bin/sh
# Whether the plan keeps what it promises: for some recipes, the step time that `witan plan` predicts beside the median
# of a real run's steps, and the memory that it plans beside what the run's arenas and its process took.
#
#   bench/plan_check.sh [STEPS] [PROGRAM]        40 steps of build/release/witan
#
# Measure on an idle machine: the ceilings are measured anew. Ends with 1 when a time is off by more than a fifth.
set -eu
steps=${1:-40}
program=${2:-build/release/witan}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export XDG_CACHE_HOME="$folder/cache"

number() { sed -n "s/.*\"$1\": *\([0-9.e+-]*\).*/\1/p" "$2" | tail -n 1; }

# The median of step_s, without the first five steps, in which pages are touched and caches fill.
median_step() {
  grep '"kind":"step"' "$1" | tail -n +6 | sed -n 's/.*"step_s":\([0-9.e+-]*\).*/\1/p' | sort -g |
    awk '{ value[NR] = $1 } END { print (value[int((NR + 1) / 2)] + value[int(NR / 2) + 1]) / 2 }'
}

check() {
  name=$1
  shift
  "$program" plan --runs-folder "$folder/runs" --json "$@" >"$folder/plan.json"
  "$program" train --runs-folder "$folder/runs" --run "$name" --train-iters "$steps" --sample-tokens 0 \
    --eval-iters 1 "$@" >"$folder/out.txt" 2>"$folder/err.txt" || { cat "$folder/err.txt" && exit 1; }
  metrics="$folder/runs/$name/metrics.jsonl"
  awk -v name="$name" -v predicted="$(number step_seconds "$folder/plan.json")" -v measured="$(median_step "$metrics")" \
    -v took="$(number peak_resident "$metrics")" -v promised="$(number promised_resident "$metrics")" 'BEGIN {
      ratio = predicted / measured
      printf "%-24s %8.1f ms %8.1f ms %6.2f %9.0f MiB %6.0f MiB\n", name, 1e3 * predicted, 1e3 * measured, ratio, \
        promised / 1048576, took / 1048576
      exit ratio < 0.8 || ratio > 1.2 }' || failed=1
  rm -rf "$folder/runs"
}

failed=0
printf '%-24s %11s %11s %6s %13s %10s\n' recipe predicted measured ratio promised taken
check default
check dense --num-experts 0 --ffn-hidden-size 1024
check recompute-full --recompute-granularity full
check one-rank-of-all-cores --ranks 1
check wider-experts --ffn-hidden-size 1024
check bfloat16 --dtype bfloat16
exit "$failed"
