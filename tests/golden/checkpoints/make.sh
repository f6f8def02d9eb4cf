#!/usr/bin/env bash
# Makes the folder of this version's checkpoint format, with a program of that version:
#   tests/golden/checkpoints/make.sh WITAN VERSION
# VERSION/step-4 is a checkpoint of the program as it is when the version is new, and is never made again;
# VERSION/expected.txt has the loss and gradient norm of steps 5 to 8, which that program computed after it.
set -euo pipefail

witan=$(realpath "$1")
folder=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$folder/text.txt" "$work"
mapfile -t flags <"$folder/flags.txt"
for steps in 4 8; do
  # shellcheck disable=SC2086
  (cd "$work" && "$witan" train --runs-folder . --run old --data text.txt --train-iters $steps ${flags[*]})
done
mkdir -p "$folder/$2"
cp -r "$work/old/checkpoints/step-4" "$folder/$2/"
sed -nE 's/.*"step":([5-8]),"loss":([0-9.e-]+).*"grad_norm":([0-9.e-]+).*/\1 \2 \3/p' "$work/old/metrics.jsonl" \
  >"$folder/$2/expected.txt"
