#!/usr/bin/env bash
# Runs the tests of build/cuda that need a GPU, in one process. Without a usable GPU it prints how many were
# skipped, and why.
set -euo pipefail
cd "$(dirname "$0")/.."

results=$(mktemp)
trap 'rm -f "$results"' EXIT
if ! output=$(build/cuda/tests/test_cuda --gtest_brief=1 --gtest_output="json:$results" 2>&1); then
  echo "$output" >&2
  exit 1
fi
all=$(grep -c '"status": "RUN"' "$results" || true)
skipped=$(grep -c '"result": "SKIPPED"' "$results" || true)
echo "test-cuda: $((all - skipped)) tests passed, $skipped were skipped"
if ((skipped > 0)); then
  build/cuda/witan doctor --gpu | sed -n 's/^problem  */test-cuda: /p' || true
fi
