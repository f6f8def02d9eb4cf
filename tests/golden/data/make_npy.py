#!/usr/bin/env python3
"""Writes tokens in .npy files beside this script: by numpy 2.4.6 as OLMo does (memmap, no header), and by numpy.save. The
bytes are committed; run this only to add a file."""
import pathlib

import numpy as np

HERE = pathlib.Path(__file__).parent
TOKENS = [5, 65535, 7, 0, 9, 0, 0, 11]  # 0 ends a document

if __name__ == "__main__":
    for name, dtype, tokens in (("olmo_u16", np.uint16, TOKENS), ("olmo_u32", np.uint32, [t + 100_000 * (t > 0) for t in TOKENS])):
        file = np.memmap(HERE / f"{name}.npy", dtype=dtype, mode="w+", shape=(len(tokens),))
        file[:] = tokens
        file.flush()
    np.save(HERE / "saved_u16.npy", np.array(TOKENS, np.uint16))
    np.save(HERE / "saved_u32.npy", np.array(TOKENS, np.uint32))
    np.save(HERE / "saved_f32.npy", np.array(TOKENS, np.float32))
