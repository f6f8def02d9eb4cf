#!/usr/bin/env python3
"""Writes blocks/TYPE.blocks, random blocks of ggml's types, and blocks/TYPE.f32, the values that the gguf package gives
them, beside this script.

Made with Python 3.11, numpy 2.4 and gguf 0.19.0. The bytes are committed; run this only to change them.
"""
import pathlib

import gguf
import numpy as np

BLOCKS = 6
FOLDER = pathlib.Path(__file__).parent / "blocks"
# Where a block has its scales in float16.
SCALES = {"Q5_0": [0], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}

draw = np.random.default_rng(1)
for name in [*SCALES, "MXFP4"]:
    kind = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = draw.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for at in SCALES.get(name, []):
        # The last block's are subnormal.
        scales = (draw.normal(size=BLOCKS) * ([0.01] * (BLOCKS - 1) + [1e-6])).astype(np.float16)
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
    if name == "MXFP4":
        blocks[:, 0] = draw.integers(100, 140, BLOCKS)
    values = gguf.quants.dequantize(blocks, kind).astype(np.float32)
    (FOLDER / f"{name}.blocks").write_bytes(blocks.tobytes())
    (FOLDER / f"{name}.f32").write_bytes(values.tobytes())
