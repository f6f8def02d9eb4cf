#!/usr/bin/env bash
# Writes one source that stands for several tests: scripts/join_tests.sh OUT FILE...
# Most of a test's compiling is its headers', which files that are joined read once. Each keeps its names to itself: its
# anonymous namespace becomes one within a namespace of the file's own name.
set -euo pipefail

out=$1
shift
mkdir -p "$(dirname "$out")"
for file in "$@"; do
  echo "#line 1 \"$file\""
  sed -e "s|^namespace {\$|namespace joined_$(basename "$file" .cpp) { namespace {|" -e 's|^}  // namespace$|}}|' "$file"
done >"$out"
