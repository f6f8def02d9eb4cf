#!/usr/bin/env bash
# Prints the files that differ from origin/main (without one: from the last commit; without any: all), including new ones.
# Arguments are git pathspecs: scripts/changed.sh '*.h' '*.cpp'
set -euo pipefail
cd "$(dirname "$0")/.."

if base=$(git merge-base origin/main HEAD 2>/dev/null) || base=$(git rev-parse --verify --quiet HEAD); then
  git diff --name-only --diff-filter=d "$base" -- "$@"
else
  git ls-files -- "$@"
fi
git ls-files --others --exclude-standard -- "$@"
