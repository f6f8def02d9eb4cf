#!/usr/bin/env bash
# Kills a run of four ranks at random times (SIGKILL), starts it again each time, and compares its result with that of
# an undisturbed run: every shard of the last checkpoint, every loss and gradient norm of metrics.jsonl.
#   scripts/reliability/kill_run.sh WITAN [KILLS [SEED [FLAGS...]]]
# FLAGS: the layout; by default expert parallelism 2 and two replicas. Runs that finish before all kills are made are
# compared, and a new one is started.
set -euo pipefail

witan=$(realpath "$1")
kills=${2:-200}
seed=${3:-$(date +%s)}
layout=(--ranks 4 "${@:4}")
if (($# < 4)); then layout+=(--expert-model-parallel-size 2); fi
steps=300
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
RANDOM=$seed
echo "kill_run: $kills kills, seed $seed, runs of $steps steps, ${layout[*]}"

# shellcheck source=scripts/reliability/small_run.sh
source "$(dirname "$0")/small_run.sh"
write_text

started=${EPOCHREALTIME/./}
(train whole "${layout[@]}") >"$work/said" 2>&1 || { cat "$work/said" >&2; exit 1; }
trajectory whole >"$work/whole"
longest=$(((${EPOCHREALTIME/./} - started) * 7 / 10000)) # ms that a process lives at most: most of a whole run

made=0 runs=0 starts=0 idle=0
begun=$(date +%s)
while ((made < kills)); do
  steps_before=$(grep -c '"kind":"step"' "$work/runs/killed/metrics.jsonl" 2>/dev/null || true)
  (train killed "${layout[@]}") >"$work/said" 2>&1 &
  process=$!
  starts=$((starts + 1))
  life=$((RANDOM % longest))
  sleep "$(printf '%d.%03d' $((life / 1000)) $((life % 1000)))"
  if kill -KILL "$process" 2>/dev/null; then :; fi
  code=0
  wait "$process" 2>/dev/null || code=$?
  if ((code == 137)); then
    made=$((made + 1))
    steps_now=$(grep -c '"kind":"step"' "$work/runs/killed/metrics.jsonl" 2>/dev/null || true)
    if [[ ${steps_before:-0} == "${steps_now:-0}" ]]; then idle=$((idle + 1)); fi
    if ((made % 50 == 0)); then echo "kill_run: $made kills"; fi
  elif ((code == 0)); then
    trajectory killed >"$work/killed"
    if ! cmp "$work/whole" "$work/killed"; then
      echo "kill_run: after $made kills (seed $seed) the results of a run differ from the undisturbed one" >&2
      exit 1
    fi
    runs=$((runs + 1))
    rm -rf "$work/runs/killed"
  else
    cat "$work/said" >&2
    echo "kill_run: after $made kills (seed $seed) the run did not resume: exit code $code" >&2
    exit 1
  fi
done
if [[ -d $work/runs/killed ]]; then
  (train killed "${layout[@]}") >"$work/said" 2>&1 || { cat "$work/said" >&2; exit 1; }
  trajectory killed >"$work/killed"
  cmp "$work/whole" "$work/killed"
  runs=$((runs + 1))
fi
echo "kill_run: $made kills in $starts starts ($idle of them before the first step), $(($(date +%s) - begun)) s;" \
  "$runs runs ended bit for bit as the undisturbed one"
