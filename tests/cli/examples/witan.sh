#!/usr/bin/env bash
# Replaces `witan` in tests of the documentation's examples (tests/cli/examples_test.cpp): it runs a small version of
# the same command on the CPU. Layout, batches, data, files and kinds of model stay as written; sizes of models,
# lengths and numbers of steps do not. $WITAN_PROGRAM is the program.
set -euo pipefail

words=("$@")

says() {
  local word
  for word in "${words[@]}"; do
    if [[ $word == "$1" || $word == "$1="* ]]; then return 0; fi
  done
  return 1
}

# Sets a flag to this value, replacing the example's. After a list (@FILE) the last value counts.
put() {
  local kept=() i
  for ((i = 0; i < ${#words[@]}; ++i)); do
    if [[ ${words[i]} == "$1" ]]; then
      i=$((i + 1))
    elif [[ ${words[i]} != "$1="* ]]; then
      kept+=("${words[i]}")
    fi
  done
  words=("${kept[@]}" "$@")
}

# Sets a flag that the example does not set.
default() {
  says "$1" || words+=("$@")
}

small_model() {
  put --device cpu
  put --seq-length 16
  if says guesses.jsonl || says sums.jsonl; then put --seq-length 48; fi # for conversations of several turns
  if says --init-from; then return; fi  # the model is small already
  put --hidden-size 32
  put --ffn-hidden-size 32
  if says recipes/parity/nanogpt_moe.toml; then put --kv-channels 8; fi # of which half rotate
  if says --preset; then
    put --num-layers 2
    put --num-attention-heads 4
    put --num-query-groups 2
    put --micro-batch-size 1
    put --global-batch-size 2
    default --ranks 1
  fi
}

# The words before `train` in `witan run ... -- train ...`.
prefix=()
if [[ ${1-} == run ]]; then
  for ((i = 0; i < ${#words[@]}; ++i)); do
    if [[ ${words[i]} == -- ]]; then
      prefix=("${words[@]:0:i+1}")
      words=("${words[@]:i+1}")
      break
    fi
  done
fi

# Restricted to one core, only the ceilings of one rank with one thread are measured.
on_one_core=()

case "${words[0]-} ${words[1]-}" in
  "train "*)
    small_model
    put --train-iters 2
    put --sample-tokens 4
    if says --rollouts; then put --max-completion-length 8; fi
    says --data-path || default --data my.txt
    says --tokenizer || says --init-from || default --tokenizer-vocab-size 300
    ;;
  "runs snapshot") # of a run that trains: its lock is held
    exec 9> "runs/${words[2]}/.lock"
    flock 9
    ;;
  "bench step")
    small_model
    put --steps 1
    put --vocab-size 300
    put --num-layers 1
    ;;
  "bench generate")
    small_model
    put --vocab-size 300
    put --num-layers 1
    put --prompt 4
    put --tokens 2
    ;;
  "bench "*)
    put --seconds 0
    put --device cpu
    case "$2" in
      attention) put --sequence 16 ;;
      gemm) put --tokens 16 ;;
      moe-layer) put --tokens 16 && put --hidden 32 && put --ffn 32 ;;
      collectives | exchange) put --sizes 4KiB,8KiB ;;
    esac
    ;;
  "eval "*) if says --tasks; then put --max-length 512; fi ;; # than which the small model's sequences are shorter
  "generate "*) put --max-tokens 4 && put --device cpu ;;
  "chat "*)
    put --max-tokens 4
    put --device cpu
    put --context 64
    if [[ -t 0 || ! -s /dev/stdin ]]; then exec </dev/null; fi
    ;;
  "serve "*)
    put --port 0
    put --device cpu
    put --context 64
    ;;
  "watch "*) put --port 0 ;;
  "replay "*) # of a run that such a learning rate throws off
    "$WITAN_PROGRAM" train --run off --data my.txt --tokenizer-vocab-size 300 --device cpu --seq-length 16 \
      --hidden-size 32 --ffn-hidden-size 32 --lr 1e30 --min-lr 1e30 --lr-warmup-iters 0 --train-iters 8 --sample-tokens 0
    words=(replay "$(find runs/off/anomalies -mindepth 1 -maxdepth 1 -name 'step-*' | sort | head -n 1)")
    ;;
  "doctor "* | "plan "*)
    # Planning takes time for each layer, and eight are enough for every pipeline of the examples.
    if says --search || says --preset; then put --num-layers 8; fi
    on_one_core=(taskset --cpu-list "$(taskset --cpu-list --pid $$ | sed 's/.*: *//; s/[-,].*//')")
    ;;
esac

# Runs the server until it listens, and then stops it like Ctrl-C.
if [[ $1 == serve || $1 == watch ]]; then
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  "$WITAN_PROGRAM" "${words[@]}" 2> >(tee "$log" >&2) &
  while kill -0 $! 2>/dev/null && ! grep -q "^listening at " "$log"; do sleep 0.1; done
  kill -TERM $! 2>/dev/null || true
  wait $!
  exit
fi

exec "${on_one_core[@]}" "$WITAN_PROGRAM" "${prefix[@]}" "${words[@]}"
