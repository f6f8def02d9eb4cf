#!/usr/bin/env python3
"""Writes tensors.safetensors beside this script with the reference implementation.

Made with Python 3.11.7, safetensors 0.8.0, numpy 2.4.6, ml_dtypes 0.6.0. The bytes are committed; run this only to
change them. `make_golden.py FILE` instead prints what the reference implementation reads from a file.
"""
import pathlib
import sys

import ml_dtypes
import numpy as np
from safetensors import deserialize
from safetensors.numpy import save

TENSORS = {
    "counts": np.array([-1, 2**40], np.int64),
    "exact": np.array([[0.1, -2.5]], np.float64),
    "layers.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(1.5, np.float32),
    "ids": np.array([7, -8, 9], np.int32),
    "empty": np.zeros((0, 4), ml_dtypes.bfloat16),
    "half": np.array([1, -2, np.inf], ml_dtypes.bfloat16),
}

if len(sys.argv) > 1:
    for name, info in deserialize(pathlib.Path(sys.argv[1]).read_bytes()):
        print(name, info["dtype"], info["shape"], bytes(info["data"]).hex())
else:
    path = pathlib.Path(__file__).parent / "tensors.safetensors"
    path.write_bytes(save(TENSORS, {"format": "pt"}))
