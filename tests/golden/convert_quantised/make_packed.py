#!/usr/bin/env python3
"""Writes packed.safetensors beside this script: matrices of random whole numbers, packed by compressed-tensors, and the
values that it decompresses them to.

Made with Python 3.11, torch 2.15.0 (CPU), compressed-tensors 0.20.1 and safetensors 0.8.0. The bytes are committed; run
this only to change them.
"""
import pathlib

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import save_file

# Bits, groups of a row (1: a channel), columns, dtype of the scales.
CASES = {"int4_bf16": (4, 3, 96, torch.bfloat16), "int4_f32": (4, 2, 64, torch.float32),
         "int4_ragged": (4, 1, 21, torch.float32), "int8_f16": (8, 1, 22, torch.float16),
         "int8_bf16": (8, 2, 64, torch.bfloat16)}
ROWS = 5

tensors = {}
draw = torch.Generator().manual_seed(2)
for name, (bits, groups, columns, dtype) in CASES.items():
    group = dict(strategy="group", group_size=columns // groups) if groups > 1 else dict(strategy="channel")
    scheme = QuantizationScheme(targets=["Linear"], weights=dict(num_bits=bits, type="int", symmetric=True, **group))
    half = 1 << (bits - 1)
    codes = torch.randint(-half, half, (ROWS, columns), generator=draw)
    scale = (torch.rand(ROWS, groups, generator=draw) * 0.01 + 0.001).to(dtype)
    weight = codes.to(torch.float32) * scale.to(torch.float32).repeat_interleave(columns // groups, dim=1)
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    packed = compressor.compress({"weight": weight, "weight_scale": scale.to(torch.float32)}, scheme)
    stored = {"weight_packed": packed["weight_packed"], "weight_scale": scale, "weight_shape": packed["weight_shape"]}
    values = compressor.decompress(dict(stored), scheme)["weight"]
    for part, tensor in {**stored, "values": values}.items():
        tensors[f"{name}.{part}"] = tensor.contiguous()
save_file(tensors, pathlib.Path(__file__).parent / "packed.safetensors")
