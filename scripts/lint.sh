#!/usr/bin/env bash
# Checks the changed files: clang-format on C++ and CUDA, clang-tidy on the .cpp files that build/lint compiles,
# shellcheck on scripts. If any C++ changed, also checks mutexes in all sources (thread_safety.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t cpp < <(scripts/changed.sh '*.h' '*.cpp' '*.cu' '*.cuh')
mapfile -t shell < <(scripts/changed.sh '*.sh' .ci/run)
failed=0

if ((${#cpp[@]} > 0)); then
  clang-format --dry-run -Werror "${cpp[@]}" || failed=1
  mapfile -t units < <(printf '%s\n' "${cpp[@]}" | grep '\.cpp$' | while read -r file; do
    if grep -qF "\"file\": \"$PWD/$file\"" build/lint/compile_commands.json; then echo "$file"; fi
  done)
  if ((${#units[@]} > 0)); then
    printf '%s\0' "${units[@]}" |
      xargs -0 -n 1 -P "$(scripts/jobs.sh)" clang-tidy -p build/lint --quiet --warnings-as-errors='*' \
        2> >(grep -v ' warnings\? generated\.$' >&2) || failed=1
  fi
fi
if ((${#cpp[@]} > 0)); then scripts/thread_safety.sh || failed=1; fi
if ((${#shell[@]} > 0)); then
  shellcheck "${shell[@]}" || failed=1
fi

if ((failed)); then
  echo "lint: see above; run make format to fix the formatting" >&2
  exit 1
fi
echo "lint: ${#cpp[@]} C++ files and ${#shell[@]} scripts are clean"
