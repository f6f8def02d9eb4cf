#!/usr/bin/env bash
# Gives the program damaged files of every format that its command line reads (mutations.py).
#   scripts/reliability/mutations.sh WITAN [CASES_PER_FORMAT [SEED [FORMAT [CASE]]]]
set -euo pipefail

if ! command -v python3 >/dev/null; then
  echo "mutations: needs python3; skipped"
  exit 0
fi
witan=$(realpath "$1")
cases=${2:-3000}
seed=${3:-$(date +%s)}
steps=5
work=$(mktemp -d)
mutations=$(realpath "$(dirname "$0")/mutations.py")
# shellcheck source=scripts/reliability/small_run.sh
source "$(dirname "$0")/small_run.sh"
echo "mutations: $cases inputs of each format, seed $seed"

write_text
(train small) >"$work/said" 2>&1 || { cat "$work/said" >&2; exit 1; }
python3 "$mutations" "$witan" "$work" "$cases" "$seed" "${@:4}"
rm -rf "$work"
