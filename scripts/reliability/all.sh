#!/usr/bin/env bash
# Runs all fault-injection tests (docs/reliability.md): all.sh BUILD_FOLDER [SEED]
# Takes minutes. Works in memory if possible: files of a killed process survive in any file system.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=$1
seed=${2:-$(date +%s)}
if [[ -z ${TMPDIR:-} && -w /dev/shm ]]; then export TMPDIR=/dev/shm; fi

echo "reliability: kills and failures at every call of a save, power failures in every order, every file a run writes"
WITAN_RELIABILITY=all "$build/tests/test_reliability" --gtest_brief=1
echo "reliability: truncation at every byte, 10,000 flipped bits, every layout to every other, full disks"
"$build/tests/test_checkpoint" --gtest_brief=1 --gtest_filter='Store.Every*:*Layouts*:Save.*'
scripts/reliability/strace.sh "$build/witan" "$build/tests/test_reliability"
scripts/reliability/kill_run.sh "$build/witan" 200 "$seed"
scripts/reliability/kill_prepare.sh "$build/witan" 200 "$seed"
scripts/reliability/lose_ranks.sh "$build/witan" 200 "$seed"
scripts/reliability/supervise.sh "$build/witan" 100 "$seed"
scripts/reliability/kill_layouts.sh "$build/witan" 1000 "$seed"
scripts/reliability/soak.sh "$build/witan" 300
scripts/reliability/http.sh "$build/witan" 100000 "$seed"
scripts/reliability/mutations.sh "$build/witan" 300 "$seed"
scripts/reliability/hosts.sh "$build/witan"
