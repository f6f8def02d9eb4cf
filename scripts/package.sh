#!/usr/bin/env bash
# Builds the Debian packages build/package/witan_VERSION_ARCHITECTURE.deb and witan-dev_…: the same bytes from the same
# commit, compiler and libraries.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/build.sh package witan
# The packages' date: that of the last commit or, without git, of the sources.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CMakeLists.txt)}
export SOURCE_DATE_EPOCH
rm -f build/package/*.deb
if ! cpack --config build/package/CPackConfig.cmake >build/package/cpack.log 2>&1; then
  cat build/package/cpack.log >&2
  exit 1
fi
rm -r build/package/_CPack_Packages
for package in build/package/*.deb; do
  echo "package: $package, $(stat -c %s "$package" | numfmt --to=iec-i --suffix=B)"
done
