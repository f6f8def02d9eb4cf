#!/usr/bin/env bash
# The start of `witan train` on 1, 100 and 10,000 shards with 10^12 tokens in all (sparse files): processor time from the
# start of the program to the end of a run of one step, its system calls (where strace is installed), and the most
# memory that was resident.
#   bench/shards.sh TOKENIZER [path of witan] [path of shards_bench]
set -euo pipefail
cd "$(dirname "$0")/.."

tokenizer=$(realpath "$1")
witan=${2:-build/release/witan}
maker=${3:-build/bench/bench/shards_bench}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

run() {
  rm -rf "$folder/runs"
  "$@" "$witan" train --runs-folder "$folder/runs" --data-path "$data" --tokenizer "$tokenizer" \
    --train-iters 1 --eval-iters 1 --sample-tokens 0 --save-interval 0 --ranks 1 --threads 1 \
    --num-layers 1 --hidden-size 32 --num-attention-heads 2 --num-experts 2 --ffn-hidden-size 32 --seq-length 64 \
    >/dev/null 2>"$folder/err.txt" || { cat "$folder/err.txt" && exit 1; }
}

for shards in 1 100 10000; do
  data=$folder/$shards
  "$maker" make "$data" "$shards"
  run env # what the program measures once for each machine
  best=
  for _ in 1 2 3 4 5; do
    run python3 -c '
import os, resource, subprocess, sys
status = subprocess.run(sys.argv[2:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(round(1000 * (used.ru_utime + used.ru_stime)), used.ru_maxrss // 1024, file=open(sys.argv[1], "w"))
sys.exit(status)' "$folder/used.txt"
    read -r milliseconds memory <"$folder/used.txt"
    if [[ -z $best ]] || ((milliseconds < best)); then best=$milliseconds; fi
  done
  calls=unknown
  if command -v strace >/dev/null; then
    run strace -f -c -o "$folder/calls.txt"
    calls=$(awk '$NF == "total" { print $4 }' "$folder/calls.txt")
  fi
  echo "$shards shards: $best ms of processor time, $calls system calls, $memory MiB resident at most"
done
