#!/usr/bin/env bash
# Configures a preset of CMakePresets.json in build/PRESET, silently unless it fails: scripts/configure.sh PRESET
# WITAN_CMAKE contains further arguments for cmake (see .ci/run).
set -euo pipefail
cd "$(dirname "$0")/.."

folder=build/$1
mkdir -p "$folder"
read -r -a more <<<"${WITAN_CMAKE:-}"
if ! cmake --preset "$1" "${more[@]}" >"$folder/configure.log" 2>&1; then
  cat "$folder/configure.log" >&2
  echo "build: $folder cannot be configured (see above). If the compiler or the path of the folder has changed, run make clean" >&2
  exit 1
fi
