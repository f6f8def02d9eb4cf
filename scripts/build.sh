#!/usr/bin/env bash
# Builds a preset of CMakePresets.json in build/PRESET: scripts/build.sh PRESET [TARGET...]
# On a terminal ninja shows its progress; otherwise one line is printed, and the compiler's words when it has any.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
shift
scripts/configure.sh "$preset"
jobs=$(scripts/jobs.sh)
quiet=()
if [[ ! -t 1 ]]; then
  echo "build: build/$preset, $jobs at a time"
  quiet=(--quiet)
fi
exec ninja -C "build/$preset" -j "$jobs" "${quiet[@]}" "$@"
