#!/usr/bin/env bash
# Compares the steps that Muon needs for AdamW's held-out bits per byte, both at the best of several learning rates:
# scripts/sweep_optimizers.sh PROGRAM FOLDER [ITERS [SHARE [FLAG...]]]
# AdamW makes ITERS steps (400) of the default recipe, Muon SHARE percent of them (75), each with a schedule of that
# length. Runs are in FOLDER; complete ones are not repeated. Further flags apply to every run.
set -euo pipefail

program=$(realpath "$1")
folder=$2
iters=${3:-400}
share=${4:-75}
shift $(($# < 4 ? $# : 4))
mkdir -p "$folder"

# run OPTIMIZER LR STEPS FLAG...: prints the last held-out bits per byte.
run() {
  local optimizer=$1 lr=$2 steps=$3
  local name=$optimizer-$lr-$steps to
  to=$folder/$name
  shift 3
  if [[ ! -f $to/finished ]]; then
    "$program" train --runs-folder "$folder" --run "$name" --optimizer "$optimizer" --lr "$lr" \
      --min-lr "$(awk "BEGIN { print $lr / 10 }")" --train-iters "$steps" "$@" >"$to.log" 2>&1
    touch "$to/finished"
  fi
  jq -r 'select(.kind == "eval") | .bits_per_byte' "$to/metrics.jsonl" | tail -n 1
}

# sweep OPTIMIZER STEPS FLAG...: a line for each learning rate.
sweep() {
  local optimizer=$1 steps=$2 lr
  shift 2
  for lr in 0.0005 0.001 0.002 0.004 0.008 0.016; do
    printf '%s\t%s\t%s\t%s\n' "$optimizer" "$steps" "$lr" "$(run "$optimizer" "$lr" "$steps" "$@")"
  done
}

{
  sweep adam "$iters" "$@"
  sweep muon $((iters * share / 100)) "$@"
} | tee "$folder/sweep.tsv"
echo "best of each:"
sort -t $'\t' -k4,4g "$folder/sweep.tsv" | awk -F '\t' '!seen[$1]++'
