#!/usr/bin/env python3
"""Writes small.routes and wide.routes from docs/formats/routes.md alone. Python 3.11, xxhash 3.5.0."""
import struct
from pathlib import Path

import xxhash

HERE = Path(__file__).resolve().parent


def routes(kind, bf16, step, experts, topk, all_sequences, length, first, ranges, tokens, layers):
    positions = sum(count for _, count in ranges)
    sequences = len(tokens) // positions
    out = b"WITANRTE" + struct.pack("<IBBBBQII", 1, kind, 1 if experts <= 256 else 2, int(bf16), 0, step, experts, topk)
    out += struct.pack("<QQQQII", all_sequences, length, first, sequences, len(ranges), len(layers))
    for begin, count in ranges:
        out += struct.pack("<QQ", begin, count)
    for number, _, _ in layers:
        out += struct.pack("<I", number)
    out += struct.pack(f"<{len(tokens)}i", *tokens)
    for _, ids, weights in layers:
        out += struct.pack(f"<{len(ids)}{'B' if experts <= 256 else 'H'}", *ids)
        for weight in weights:
            bits = struct.pack("<f", weight)
            out += bits[2:] if bf16 else bits
    return out + struct.pack("<Q", xxhash.xxh3_128_intdigest(out) & (1 << 64) - 1)


if __name__ == "__main__":
    # Training, step 7: sequences 2 and 3 of 4, positions 0 and 3 of 4, two layers of 5 experts, the best 2.
    (HERE / "small.routes").write_bytes(routes(
        0, False, 7, 5, 2, 4, 4, 2, [(0, 1), (3, 1)], [10, 13, 20, 23],
        [(1, [0, 1, 4, 2, 3, 0, 2, 1], [0.75, 0.25, 0.5, 0.5, 1.0, 0.0, 0.625, 0.375]),
         (3, [4, 3, 2, 1, 1, 0, 0, 4], [0.5, 0.5, 0.25, 0.75, 0.125, 0.875, 1.0, 0.0])]))
    # A generation of 3 tokens in one layer of 300 experts, bfloat16 weights.
    (HERE / "wide.routes").write_bytes(routes(2, True, 1, 300, 1, 1, 3, 0, [(0, 3)], [1, 2, 3],
                                              [(0, [299, 0, 256], [1.0, 0.5, 0.25])]))
