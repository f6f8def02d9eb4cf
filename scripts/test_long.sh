#!/usr/bin/env bash
# Runs, from build/test, the tests of every folder with a long form (tests/support/long_form.h) in that form, one folder
# after the other: ten minutes on two cores, and up to 8 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."

export WITAN_LONG_TESTS=1 XDG_CACHE_HOME=$PWD/build/test/cache
mapfile -t folders < <(grep -rl --include='*.cpp' 'support/long_form\.h' tests | cut -d/ -f2 | sort -u)
failed=0
for folder in "${folders[@]}"; do
  echo "test-long: $folder"
  "build/test/tests/test_$folder" --gtest_brief=1 || failed=1
done
exit "$failed"
