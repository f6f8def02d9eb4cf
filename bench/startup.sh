#!/usr/bin/env bash
# From the start of `witan train` to its first step, in a new run (a tokenizer is trained, text is tokenized) and in one
# that goes on: when each line of its log came, when the first step was done, and the most memory that was resident.
#   bench/startup.sh [path of witan]
set -euo pipefail
cd "$(dirname "$0")/.."

witan=${1:-build/release/witan}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

now() { echo "${EPOCHREALTIME/./}"; }
since() { printf '%6d ms' $((($(now) - $1) / 1000)); }
steps() {
  if [[ -f $runs/default/metrics.jsonl ]]; then grep -c '"kind":"step"' "$runs/default/metrics.jsonl" || true; else echo 0; fi
}

# start_up STEPS: runs until STEPS are done, and reports.
start_up() {
  local start before peak=0 now_kb first="" line step
  before=$(steps)
  start=$(now)
  "$witan" train --runs-folder "$runs" --train-iters "$1" --eval-iters 1 --sample-tokens 0 \
    2> >(while IFS= read -r line; do printf '  %s  %s\n' "$(since "$start")" "$line"; done) >/dev/null &
  local process=$!
  while kill -0 "$process" 2>/dev/null; do
    now_kb=$(awk '$1 == "VmHWM:" { print $2 }' "/proc/$process/status" 2>/dev/null || true)
    if ((${now_kb:-0} > peak)); then peak=$now_kb; fi
    if [[ -z $first ]] && (($(steps) > before)); then first=$(since "$start"); fi
    sleep 0.005
  done
  wait "$process"
  step=$(grep '"kind":"step"' "$runs/default/metrics.jsonl" | tail -n "$(($1 - before))" | head -n 1 |
    sed 's/.*"step_s":\([0-9.e-]*\).*/\1/')
  echo "  ${first:-unknown}  the first step is done; it took $(awk -v s="$step" 'BEGIN { printf "%d", 1000 * s }') ms"
  echo "  most memory resident: $((peak / 1024)) MiB"
}

echo "a new run:"
start_up 3
echo "the same run, going on:"
start_up 6
