#!/bin/bash
# Makes build/cuda-headers/include, against which CUDA builds compile: the headers of cuDNN's frontend, which toolkits
# do not include, and cudnn.h and nccl.h if the toolkit has none. Prints the folder. Does nothing if it is complete;
# otherwise downloads wheels from PyPI, pinned by version and hash, and extracts the headers without installing
# anything. That needs python3 with pip.
#
#   scripts/cuda_headers.sh [FOLDER OF THE TOOLKIT'S HEADERS]
set -euo pipefail
cd "$(dirname "$0")/.."
toolkit=${1:-/usr/local/cuda/include}
out=$PWD/build/cuda-headers/include  # the frontend wants the folder to have this name
frontend=1.32.0 cudnn=9.19.0.56 nccl=2.28.9
stamp=$out/.complete-$frontend

# Extracts the headers of a wheel, for any Python version: wheel NAME VERSION SHA256 FOLDER-IN-IT
wheel() {
  local folder
  if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "cuda_headers: the headers of $1 are downloaded from PyPI, which needs python3 with pip (Debian: python3-pip), or" >&2
    echo "              can be copied from another machine as $out" >&2
    exit 1
  fi
  folder=$(mktemp -d)
  echo "$1==$2 --hash=sha256:$3" >"$folder/wheel.txt"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.11 \
    --implementation cp --platform manylinux_2_18_x86_64 --platform manylinux_2_27_x86_64 \
    --platform manylinux_2_28_x86_64 --require-hashes --requirement "$folder/wheel.txt" --dest "$folder" >&2
  python3 - "$folder" "$4" "$out" <<'PYTHON'
import glob, os, sys, zipfile

folder, prefix, out = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    for name in wheel.namelist():
        if not name.startswith(prefix + "/") or name.endswith("/"):
            continue
        to = os.path.join(out, name[len(prefix) + 1:])
        os.makedirs(os.path.dirname(to), exist_ok=True)
        with open(to, "wb") as file:
            file.write(wheel.read(name))
PYTHON
  rm -r "$folder"
}

found() { [[ -e $toolkit/$1 || -e /usr/include/$1 || -e /usr/include/x86_64-linux-gnu/$1 || -e $out/$1 ]]; }

mkdir -p "$out"
[[ -e $stamp ]] ||
  wheel nvidia-cudnn-frontend $frontend c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0 include
found cudnn.h ||
  wheel nvidia-cudnn-cu13 $cudnn d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf nvidia/cudnn/include
found nccl.h ||
  wheel nvidia-nccl-cu13 $nccl e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42 nvidia/nccl/include
touch "$stamp"
echo "$out"
