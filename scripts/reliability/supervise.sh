#!/usr/bin/env bash
# Kills ranks of runs under `witan run` at random times, one after the other: runs of four ranks resume with two, with one,
# and with four again, to the losses, norms and evaluations of an undisturbed run, bit for bit.
#   scripts/reliability/supervise.sh WITAN [TIMES [SEED [FLAGS...]]]
# FLAGS: the layout; by default expert parallelism 2.
set -euo pipefail

witan=$(realpath "$1")
times=${2:-50}
seed=${3:-$(date +%s)}
layout=("${@:4}")
if ((${#layout[@]} == 0)); then layout=(--expert-model-parallel-size 2); fi
steps=200 ranks=4 patience=30000 # ms, from a kill to the next step
work=$(mktemp -d)
RANDOM=$seed
echo "supervise: $times kills, seed $seed, runs of $steps steps, ${layout[*]}"
# shellcheck source=scripts/reliability/small_run.sh
source "$(dirname "$0")/small_run.sh"
write_text

supervisor=0
trap 'if ((supervisor > 0)); then kill -TERM $supervisor || true; fi; rm -rf "$work"' EXIT
ms() { echo $((${EPOCHREALTIME/./} / 1000)); }
give_up() { # MESSAGE
  cat "$work/said"
  echo "supervise: $1"
  exit 1
}
last_step() { grep -o '"kind":"step","step":[0-9]*' "$work/runs/lost/metrics.jsonl" 2>/dev/null | tail -1 | grep -o '[0-9]*$' || echo 0; }
starts() { grep -c 'restart [0-9]* of' "$work/said" || true; }
curve() { # NAME
  grep -F '"kind":"step"' "$work/runs/$1/metrics.jsonl" | grep -oE '"(step|loss|grad_norm|lr)":[^,}]*'
  grep -F '"kind":"eval"' "$work/runs/$1/metrics.jsonl" | grep -oE '"(step|loss)":[^,}]*'
}

(train whole --ranks $ranks --deterministic true "${layout[@]}") >"$work/said" 2>&1 || give_up "the undisturbed run failed"
curve whole >"$work/whole"

printf '#!/bin/sh\nexec "%s" run --ranks %d --max-restarts 1000000 -- "$@"\n' "$witan" $ranks >"$work/supervised"
chmod +x "$work/supervised"
witan=$work/supervised
killed=0 runs=0 slowest=0
while ((killed < times)); do
  rm -rf "$work/runs/lost"
  train lost --deterministic true "${layout[@]}" >"$work/said" 2>&1 &
  supervisor=$!
  while ((killed < times)); do
    sleep "0.$((RANDOM % 900 + 100))"
    mapfile -t children < <(pgrep -P $supervisor || true)
    if ((${#children[@]} == 0)); then break; fi
    before=$(starts) hit=$(ms)
    kill -KILL "${children[RANDOM % ${#children[@]}]}" 2>/dev/null || break
    while kill -0 $supervisor 2>/dev/null && (($(starts) == before)); do
      if (($(ms) - hit > patience)); then give_up "no restart within $patience ms"; fi
      sleep 0.02
    done
    step=$(last_step)
    while kill -0 $supervisor 2>/dev/null && (($(last_step) <= step)); do
      if (($(ms) - hit > patience)); then give_up "no step within $patience ms of a kill"; fi
      sleep 0.02
    done
    if ! kill -0 $supervisor 2>/dev/null; then break; fi
    took=$(($(ms) - hit)) killed=$((killed + 1))
    if ((took > slowest)); then slowest=$took; fi
  done
  wait $supervisor || give_up "the run ended with exit code $?"
  supervisor=0
  curve lost >"$work/lost"
  cmp "$work/whole" "$work/lost" || give_up "the run ended otherwise than the undisturbed one"
  runs=$((runs + 1))
done
echo "supervise: $killed ranks killed, the next new step within $slowest ms; $runs runs with the bits of the undisturbed one"
