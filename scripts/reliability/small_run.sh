# shellcheck shell=bash
# A run small enough to be repeated hundreds of times; sourced. Needs $witan, $work (a folder) and $steps.
# shellcheck disable=SC2154

write_text() {
  local i
  for ((i = 0; i < 400; ++i)); do
    printf 'The council of experts met for the %dth time, in winter, and spoke of ships and grain.\n\n' "$i"
  done >"$work/text.txt"
}

# Becomes the training program.
train() { # NAME FLAGS...
  local flags=("${@:2}")
  unless_said() { if [[ " ${flags[*]} " != *" $1 "* ]]; then flags+=("$1" "$2"); fi; }
  unless_said --dtype bfloat16
  unless_said --num-layers 1
  unless_said --hidden-size 16
  unless_said --num-experts 4
  unless_said --ffn-hidden-size 16
  unless_said --seq-length 16
  unless_said --eval-interval 7
  unless_said --save-interval 5
  exec "$witan" train --runs-folder "$work/runs" --run "$1" --data "$work/text.txt" --train-iters "$steps" --threads 1 \
    --micro-batch-size 1 --global-batch-size 4 --tokenizer-vocab-size 260 --held-out-fraction 0.05 --eval-iters 1 \
    --sample-tokens 0 "${flags[@]}"
}

# The results of a run, without timings.
trajectory() { # NAME
  grep -F '"kind":"step"' "$work/runs/$1/metrics.jsonl" | sed -E 's/"(tokens_per_s|gflops|ceiling_share|data_wait_s|step_s|forward_s|backward_s|reduction_s|optimizer_s|sampling_s|reward_s|elapsed_s)":[^,}]*//g'
  grep -F '"kind":"eval"' "$work/runs/$1/metrics.jsonl"
  (cd "$work/runs/$1/checkpoints/step-$steps" && sha256sum shard-*.safetensors)
}
