#!/usr/bin/env python3
"""Writes the golden token files beside this script, from the format descriptions alone (docs/formats/indexed_dataset.md).

The bytes are committed; run this only to add a file.
"""
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
CODES = {"H": 8, "i": 4, "q": 5, "B": 1}


def megatron(name, code, sequences, document_indices, modes=None):
    """One .bin/.idx pair of the tokens in `sequences`, as Megatron-LM's IndexedDatasetBuilder lays it out."""
    width = struct.calcsize("<" + code)
    pointers, at = [], 0
    for sequence in sequences:
        pointers.append(at)
        at += width * len(sequence)
    tokens = [token for sequence in sequences for token in sequence]
    (HERE / f"{name}.bin").write_bytes(struct.pack(f"<{len(tokens)}{code}", *tokens))
    n, d = len(sequences), len(document_indices)
    (HERE / f"{name}.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, CODES[code], n, d)
        + struct.pack(f"<{n}i", *[len(sequence) for sequence in sequences])
        + struct.pack(f"<{n}q", *pointers)
        + struct.pack(f"<{d}q", *document_indices)
        + (struct.pack(f"<{n}b", *modes) if modes else b"")
    )


def llmc(name, magic, version, code, tokens):
    header = [magic, version, len(tokens)] + [0] * 253
    (HERE / name).write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}{code}", *tokens))


megatron("u16", "H", [[1, 2, 65499], [], [7, 8]], [0, 1, 2, 3])
megatron("i32", "i", [[100000, 1], [2, 3, 4]], [0, 1, 2])
megatron("i64_sentences", "q", [[1], [2, 3], [4, 5, 6], [7]], [0, 2, 4], modes=[0, 1, 0, 1])
llmc("gpt2_u16_llmc.bin", 20240520, 1, "H", [50256, 1, 2, 50256, 3, 50256])
llmc("llama3_u32_llmc.bin", 20240801, 7, "I", [128000, 128001, 5])
