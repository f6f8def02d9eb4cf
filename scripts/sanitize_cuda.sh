#!/usr/bin/env bash
# Runs build/cuda's unit tests of kernels under compute-sanitizer: memcheck, racecheck, initcheck, one after the other.
# scripts/sanitize_cuda.sh [TOOL...]; WITAN_TEST_CUDA names another test program, WITAN_SANITIZE_SECONDS the longest
# that a tool may take. initcheck takes longest: a quarter of an hour.
#
# Left out: whole runs and steps (EngineOnGpus, RunsOnGpus), which run the same kernels for minutes, and groups of
# several GPUs, whose flags other devices set. racecheck checks every access to shared memory, so it skips the largest
# products; tests with few tiles cover them. For initcheck, tests do not poison memory.
set -euo pipefail
cd "$(dirname "$0")/.."

program=${WITAN_TEST_CUDA:-build/cuda/tests/test_cuda}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [[ ! -x $sanitizer ]]; then
  echo "sanitize-cuda: compute-sanitizer of the CUDA toolkit is not installed: nothing was checked" >&2
  exit 1
fi
if "$program" --gtest_filter=Blocks.AreSwapped 2>&1 | grep -q SKIPPED; then
  echo "sanitize-cuda: no usable GPU: nothing was checked"
  exit 0
fi

runs='EngineOnGpus.*:RunsOnGpus.*:*/*' # tests of several ranks have parameters, and a slash in their names
libraries='Cudnn.*:CudaAttentionBlock.*' # their kernels, alone or within a layer
split='CudaGemm.*:CudaCublasLt.*' # cuBLASLt's sums over parts of K read more of the workspace than was written
large='CudaGroupedGemm.RowsMatchExactProducts:CudaGroupedGemm.WeightGradientsMatchExactProducts'
large+=':CudaGroupedGemm.ManyTiles*:CudaGroupedGemm.EveryTile*:CudaGroupedGemm.Swiglu*:CudaGemm.IsTheProduct'
large+=':CudaGemm.ThePlainKernelIsTheProduct:WideLinearOnGpu.AgreesWithTheCpu:CudaAttention.*TheCpu'
large+=':CudaAttention.DocumentsDoNotSeeEachOther:CudaAttention.*CpuDrops'

tools=("$@")
((${#tools[@]})) || tools=(memcheck racecheck initcheck)
for tool in "${tools[@]}"; do
  filter="-$runs:$libraries"
  [[ $tool != racecheck ]] || filter+=":$large"
  if [[ $tool == initcheck ]]; then
    filter+=":$split"
    export WITAN_TEST_RAW_MEMORY=1
  fi
  log=$(mktemp)
  if ! timeout "${WITAN_SANITIZE_SECONDS:-1800}" "$sanitizer" --tool "$tool" --error-exitcode 99 --print-limit 20 \
    "$program" --gtest_brief=1 --gtest_filter="$filter" >"$log" 2>&1; then
    cat "$log" >&2
    echo "sanitize-cuda: $tool found errors, a test failed, or it timed out" >&2
    exit 1
  fi
  echo "sanitize-cuda: $tool: $(grep -Eo '[0-9]+ tests? ran|PASSED.*|SUMMARY: .*' "$log" | tr '\n' ' ')"
  rm "$log"
done
