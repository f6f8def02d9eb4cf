#!/usr/bin/env bash
# Writes one source that contains several tests: scripts/join_tests.sh OUT FILE...
# Most of a test's compile time is spent on headers, which joined files read only once. Their names stay separate: each
# file's anonymous namespace is put into a namespace named after the file.
set -euo pipefail

out=$1
shift
mkdir -p "$(dirname "$out")"
for file in "$@"; do
  echo "#line 1 \"$file\""
  sed -e "s|^namespace {\$|namespace joined_$(basename "$file" .cpp) { namespace {|" -e 's|^}  // namespace$|}}|' "$file"
done >"$out"
