#!/usr/bin/env bash
# Weak and strong scaling on CPU cores, a thread to each rank: ranks that are threads of one process, and ranks that are
# processes (what mpirun starts), on one small MoE.
#
#   bench/scaling.sh [RANKS] [PROGRAM] [FLAGS...]     up to 4 ranks of build/release/witan; FLAGS go to witan train
#
# Weak: 4 sequences a rank and step. Strong: 16 sequences a step. Prints the median of a step's time and the efficiency:
# one rank's time (divided by the ranks, if strong) over it. The line `apart` is what the machine leaves of it: as many
# runs of one rank, side by side, that share nothing but its memory and its clock. Ranks beyond the cores measure the
# system's scheduler.
set -euo pipefail
most=${1:-4}
program=${2:-build/release/witan}
flags=("${@:3}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
steps=10
model=(--device cpu --threads 1 --num-layers 8 --hidden-size 128 --num-attention-heads 8 --num-query-groups 8
  --num-experts 8 --ffn-hidden-size 192 --seq-length 128 --micro-batch-size 1 --tokenizer-vocab-size 1024
  --eval-iters 1 --eval-interval 1000 --sample-tokens 0 --save-interval 1000)

# Without the first two steps, in which pages are touched.
median_step() {
  grep '"kind":"step"' "$1" | tail -n +3 | sed -n 's/.*"step_s":\([0-9.e+-]*\).*/\1/p' | sort -g |
    awk '{ value[NR] = $1 } END { print (value[int((NR + 1) / 2)] + value[int(NR / 2) + 1]) / 2 }'
}

# seconds threads|processes|apart RANKS SEQUENCES FLAG...
seconds() {
  local kind=$1 ranks=$2 sequences=$3 one rank word port=$((20000 + RANDOM % 10000))
  [[ $kind == apart ]] && one=1 || one=$ranks
  local run=("$program" train "${model[@]}" --fresh --train-iters "$steps" --ranks "$one"
    --global-batch-size "$sequences" "${@:4}" "${flags[@]}")
  for word in "${!run[@]}"; do
    [[ ${run[word]} != N ]] || run[word]=$ranks
  done
  local own=(env)
  for ((rank = ranks - 1; rank >= 0; --rank)); do
    [[ $kind != processes ]] ||
      own=(env "RANK=$rank" "WORLD_SIZE=$ranks" MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port")
    [[ $kind != threads || $rank == 0 ]] || continue
    local folder_of=$folder/runs
    [[ $kind != apart ]] || folder_of=$folder/runs-$rank
    "${own[@]}" "${run[@]}" --runs-folder "$folder_of" >"$folder/log-$rank" 2>&1 &
  done
  wait $! || { cat "$folder/log-0" >&2 && exit 1; }
  wait
  median_step "$folder_of/default/metrics.jsonl"
  rm -rf "$folder"/runs*
}

# line weak|strong KINDS NAME FLAG...: N stands for the ranks.
line() {
  local scaling=$1 name=$3 kind ranks first time sequences
  for kind in $2; do
    printf '%-7s %-34s %-10s' "$scaling" "$name" "$kind"
    for ((ranks = 1; ranks <= most; ranks *= 2)); do
      [[ $scaling == strong ]] && sequences=16 || sequences=$((4 * ranks))
      [[ $kind != apart ]] || sequences=4
      time=$(seconds "$kind" "$ranks" "$sequences" "${@:4}")
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
both="threads processes"
whole=(--expert-model-parallel-size 1)
line weak apart "one rank each" "${whole[@]}"
line weak "$both" "replicate, distributed optimizer" "${whole[@]}" --use-distributed-optimizer true
line weak "$both" "experts over all ranks" --expert-model-parallel-size N
line strong "$both" "replicate, distributed optimizer" "${whole[@]}" --use-distributed-optimizer true
line strong "$both" "parameters divided (FSDP)" "${whole[@]}" --data-parallel-sharding-strategy optim_grads_params
line strong "$both" "tensor, sequence" "${whole[@]}" --tensor-model-parallel-size N --sequence-parallel true
line strong "$both" "context" "${whole[@]}" --context-parallel-size N
line strong "$both" "pipeline" "${whole[@]}" --pipeline-model-parallel-size N
