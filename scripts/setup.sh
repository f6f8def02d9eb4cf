#!/usr/bin/env bash
# Installs the Debian packages of the named sets: scripts/setup.sh run|test|package|lint|bench|reliability|fuzz|cuda ...
# Touches the network only when something is missing. Without root it prints the command to run, and stops.
# cuda: Debian has no recent CUDA toolkit. It is not installed, only searched; missing headers are downloaded
# (cuda_headers.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A packages=(
  [run]="g++ cmake ninja-build ccache pkg-config
    libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libsimdjson-dev libfmt-dev
    zlib1g-dev libzstd-dev libsnappy-dev liblz4-dev libonig-dev libutf8proc-dev libxxhash-dev libssl-dev liblapack-dev
    libboost-dev libucx-dev libedit-dev libcurl4-openssl-dev libyaml-cpp-dev ca-certificates
    libjs-dygraphs perl-doc"
  [test]="libgtest-dev libgmock-dev openmpi-bin mpich nodejs"
  [package]="dpkg-dev file"
  [lint]="clang clang-format clang-tidy shellcheck"
  [bench]="libbenchmark-dev"
  [reliability]="python3 strace"
  [fuzz]="clang-16 libclang-rt-16-dev"
  [cuda]=" "
)

# Where the build searches for nvcc, too (cmake/WitanCuda.cmake).
require_cuda() {
  local nvcc release
  nvcc=${CUDACXX:-$(PATH="$PATH:/usr/local/cuda/bin:${CUDA_HOME:+$CUDA_HOME/bin}" command -v nvcc || true)}
  if [[ -z $nvcc ]]; then
    echo "setup: nvcc was not found. Install the CUDA toolkit 13 (https://developer.nvidia.com/cuda-downloads, package" >&2
    echo "       cuda-toolkit-13-0 of NVIDIA's repository; no driver is needed to build), in /usr/local/cuda or with" >&2
    echo "       CUDA_HOME naming its folder" >&2
    exit 1
  fi
  release=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\).*/\1/p')
  if ((${release:-0} < 13)); then
    echo "setup: $nvcc belongs to CUDA ${release:-(unknown)}; CUDA 13 or newer is needed" >&2
    exit 1
  fi
  # "$nvcc" may be a link; the toolkit's headers are next to its target.
  scripts/cuda_headers.sh "$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include" >/dev/null
}

wanted=()
for set in "$@"; do
  if [[ -z ${packages[$set]:-} ]]; then
    echo "setup: unknown set \"$set\": choose from ${!packages[*]}" >&2
    exit 2
  fi
  read -r -d '' -a names <<<"${packages[$set]}" || true
  wanted+=("${names[@]}")
  if [[ $set == cuda ]]; then require_cuda; fi
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: this is not a Debian-like system. Install the equivalents of these Debian packages, then run cmake" >&2
  echo "       (cmake --preset release && cmake --build --preset release): ${wanted[*]}" >&2
  exit 1
fi

# Prints those of the wanted packages that are not installed.
missing() {
  local installed name
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p')
  for name in "${wanted[@]}"; do
    grep -qxF -- "$name" <<<"$installed" || echo "$name"
  done
}

mapfile -t needed < <(missing)
if ((${#needed[@]} == 0)); then exit 0; fi

install="apt-get update && apt-get install -y --no-install-recommends ${needed[*]}"
if ((EUID != 0)); then
  echo "setup: ${#needed[@]} Debian packages are missing. Run this command as root, then repeat this one:" >&2
  echo "$install" >&2
  exit 1
fi

echo "setup: installing ${#needed[@]} Debian packages: ${needed[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install -y --no-install-recommends "${needed[@]}"; } >"$log" 2>&1 </dev/null; then
  cat "$log" >&2
  echo "setup: the packages could not be installed (see above). Repeat as root: $install" >&2
  exit 1
fi
mapfile -t needed < <(missing)
if ((${#needed[@]} > 0)); then
  echo "setup: apt-get reported success, but these are not installed: ${needed[*]}" >&2
  exit 1
fi
