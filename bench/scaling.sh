#!/usr/bin/env bash
# Weak and strong scaling on CPU cores, a thread to each rank: ranks that are threads of one process, and ranks that are
# processes (what mpirun starts), on one small MoE.
#
#   bench/scaling.sh [RANKS] [PROGRAM] [FLAGS...]     up to 4 ranks of build/release/witan; FLAGS go to witan train
#
# Weak: 4 sequences a rank and step. Strong: 16 sequences a step. Prints the median of a step's seconds and what that is
# of one rank's; ranks beyond the cores measure the system's scheduler.
set -euo pipefail
most=${1:-4}
program=${2:-build/release/witan}
flags=("${@:3}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
steps=12
model=(--device cpu --threads 1 --num-layers 16 --hidden-size 128 --num-attention-heads 16 --num-query-groups 16
  --num-experts 16 --ffn-hidden-size 192 --seq-length 256 --micro-batch-size 1 --tokenizer-vocab-size 1024
  --eval-iters 1 --eval-interval 1000 --sample-tokens 0 --save-interval 1000)

# Without the first two steps, in which pages are touched.
median_step() {
  grep '"kind":"step"' "$1" | tail -n +3 | sed -n 's/.*"step_s":\([0-9.e+-]*\).*/\1/p' | sort -g |
    awk '{ value[NR] = $1 } END { print (value[int((NR + 1) / 2)] + value[int(NR / 2) + 1]) / 2 }'
}

# seconds threads|processes RANKS SEQUENCES FLAG...
seconds() {
  local kind=$1 ranks=$2 sequences=$3 rank word port=$((20000 + RANDOM % 10000))
  local run=("$program" train "${model[@]}" --runs-folder "$folder/runs" --fresh --train-iters "$steps"
    --global-batch-size "$sequences" --ranks "$ranks" "${@:4}" "${flags[@]}")
  for word in "${!run[@]}"; do
    [[ ${run[word]} != N ]] || run[word]=$ranks
  done
  if [[ $kind == threads || $ranks == 1 ]]; then
    "${run[@]}" >"$folder/log" 2>&1 || { cat "$folder/log" >&2 && exit 1; }
  else
    for ((rank = 1; rank < ranks; ++rank)); do
      RANK=$rank WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "${run[@]}" >"$folder/log-$rank" 2>&1 &
    done
    RANK=0 WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "${run[@]}" >"$folder/log" 2>&1 ||
      { cat "$folder/log" >&2 && exit 1; }
    wait
  fi
  median_step "$folder/runs/default/metrics.jsonl"
  rm -rf "$folder/runs"
}

# line weak|strong NAME FLAG...: N stands for the ranks.
line() {
  local scaling=$1 name=$2 kind ranks first time sequences
  for kind in threads processes; do
    printf '%-7s %-34s %-10s' "$scaling" "$name" "$kind"
    for ((ranks = 1; ranks <= most; ranks *= 2)); do
      [[ $scaling == weak ]] && sequences=$((4 * ranks)) || sequences=16
      time=$(seconds "$kind" "$ranks" "$sequences" "${@:3}")
      ((ranks > 1)) || first=$time
      awk -v time="$time" -v first="$first" -v ranks="$ranks" -v scaling="$scaling" 'BEGIN {
        ideal = scaling == "weak" ? first : first / ranks
        printf " %8.1f ms %4.0f %%", 1e3 * time, 100 * ideal / time }'
    done
    printf '\n'
  done
}

printf '%-7s %-34s %-10s' scaling layout ranks
for ((ranks = 1; ranks <= most; ranks *= 2)); do printf ' %11s %6s' "$ranks" ""; done
printf '\n'
whole=(--expert-model-parallel-size 1)
line weak "replicate, distributed optimizer" "${whole[@]}" --use-distributed-optimizer true
line weak "experts over all ranks" --expert-model-parallel-size N
line strong "replicate, distributed optimizer" "${whole[@]}" --use-distributed-optimizer true
line strong "parameters divided (FSDP)" "${whole[@]}" --data-parallel-sharding-strategy optim_grads_params
line strong "tensor, sequence" "${whole[@]}" --tensor-model-parallel-size N --sequence-parallel true
line strong "context" "${whole[@]}" --context-parallel-size N
line strong "pipeline" "${whole[@]}" --pipeline-model-parallel-size N
