#!/usr/bin/env bash
# Kills runs of four ranks in every kind of layout, on threads of one process (kill_run.sh) and as separate processes
# (lose_ranks.sh, which stops every other one instead):
#   scripts/reliability/kill_layouts.sh WITAN [TIMES [SEED]]
# TIMES: in total over all layouts.
set -euo pipefail

witan=$(realpath "$1")
times=${2:-1000}
seed=${3:-$(date +%s)}
cd "$(dirname "$0")"

layouts=("--expert-model-parallel-size 2"
  "--expert-model-parallel-size 4 --dtype float32 --deterministic true"
  "--expert-model-parallel-size 2 --use-distributed-optimizer true"
  "--num-experts 0 --data-parallel-sharding-strategy optim_grads_params"
  "--expert-model-parallel-size 2 --data-parallel-sharding-strategy optim_grads_params"
  "--expert-model-parallel-size 2 --tensor-model-parallel-size 2 --sequence-parallel true"
  "--expert-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 2"
  "--expert-model-parallel-size 2 --context-parallel-size 2"
  "--num-experts 0 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --num-layers 2")

each=$(((times + 2 * ${#layouts[@]} - 1) / (2 * ${#layouts[@]})))
for flags in "${layouts[@]}"; do
  # shellcheck disable=SC2086
  ./kill_run.sh "$witan" "$each" "$seed" $flags
  # shellcheck disable=SC2086
  ./lose_ranks.sh "$witan" "$each" "$seed" $flags
done
echo "kill_layouts: $((2 * each * ${#layouts[@]})) times in ${#layouts[@]} layouts, on threads and in processes"
