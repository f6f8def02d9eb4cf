#!/usr/bin/env bash
# Installs a build, moves the installation elsewhere, and builds and runs the example against it, like a program outside
# this tree: tests/install/outside_program.sh BUILD_FOLDER COMPILER
set -euo pipefail

build=$1
compiler=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "outside_program: $*" >&2
  exit 1
}

# quietly NAME COMMAND...: the output is shown if it fails.
quietly() {
  local name=$1
  shift
  if ! "$@" >"$scratch/log" 2>&1; then
    cat "$scratch/log" >&2
    fail "$name failed (see above)"
  fi
}

quietly "cmake --install" cmake --install "$build" --prefix "$scratch/first"
prefix=$scratch/moved
mv "$scratch/first" "$prefix"
config=$(dirname "$(find "$prefix" -name witanConfig.cmake)")

# The program runs, and reports its version.
version=$("$prefix/bin/witan" --version)
[[ $version == "witan $(sed -n 's/^set(PACKAGE_VERSION "\(.*\)")/\1/p' "$config/witanConfigVersion.cmake")" ]] ||
  fail "the program says \"$version\", and $(basename "$config")/witanConfigVersion.cmake otherwise"
share=$prefix/share
head -n 1 "$share/man/man1/witan.1" | grep -q '^\.TH WITAN 1 ' || fail "witan.1 is no manual page"
for completion in bash-completion/completions/witan zsh/site-functions/_witan fish/vendor_completions.d/witan.fish; do
  grep -q generate "$share/$completion" || fail "share/$completion does not complete \`witan generate\`"
done
[[ -f $share/witan/recipes/default.toml ]] || fail "the recipes are missing"
[[ -f $share/doc/witan/docs/../recipes/default.toml ]] || fail "the docs' links to recipes lead nowhere"
(cd / && "$prefix/bin/witan" config show --config recipes/reference/dense.toml >/dev/null) ||
  fail "recipes/reference/dense.toml is not found from another folder"

# The installation does not need the tree: neither its folder, nor headers that were not installed.
! grep -rl "$(dirname "$(dirname "$build")")/" "$config" || fail "see above: these files name the folder of the sources"
includes=$(cd "$prefix/include" && grep -rhoE '^#include "witan/[^"]+' . | cut -d '"' -f 2 | sort -u)
(($(wc -l <<<"$includes") > 100)) || fail "hardly any header is installed"
missing=$(cd "$prefix/include" && while read -r header; do [[ -f $header ]] || echo "$header"; done <<<"$includes")
[[ -z $missing ]] || fail "installed headers include headers that are not: ${missing//$'\n'/ }"

# A missing library is refused by name.
mkdir "$scratch/refused"
cat >"$scratch/refused/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(refused LANGUAGES CXX)
find_package(witan REQUIRED COMPONENTS nothing)
CMAKE
given=(-G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$prefix")
! cmake -S "$scratch/refused" -B "$scratch/refused/build" "${given[@]}" >"$scratch/log" 2>&1 ||
  fail "find_package(witan COMPONENTS nothing) succeeds"
grep -q "no library is called witan::nothing" "$scratch/log" || fail "the refusal does not name witan::nothing"

# All libraries together, with all third-party libraries.
mkdir "$scratch/every"
cat >"$scratch/every/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(every LANGUAGES CXX)
find_package(witan REQUIRED)
add_executable(every every.cpp)
target_link_libraries(every PRIVATE witan::witan)
CMAKE
cat >"$scratch/every/every.cpp" <<'CPP'
#include "witan/planner/search/search.h"
auto* const used = &witan::search_layouts;
int main() {}
CPP
quietly "configuring a program with all libraries" cmake -S "$scratch/every" -B "$scratch/every/build" "${given[@]}"
quietly "building a program with all libraries" cmake --build "$scratch/every/build"

quietly "configuring the example" cmake -S "$share/doc/witan/examples" -B "$scratch/example" "${given[@]}"
quietly "building the example" cmake --build "$scratch/example"
quietly "the example" "$scratch/example/own_model"
grep -q '^step 300 ' "$scratch/log" || fail "the example did not train"
