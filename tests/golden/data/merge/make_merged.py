#!/usr/bin/env python3
"""Writes pairs of .bin and .idx beside this script, and what Megatron-LM makes of them when it merges them.

Made with megatron-core 0.16.1 and numpy 2.4.6: its IndexedDatasetBuilder, used as tools/merge_datasets.py uses it. The
bytes are committed; run this only to add a file.
"""
import pathlib

import numpy
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

HERE = pathlib.Path(__file__).parent


def pair(name, dtype, documents, modes=None):
    """`documents`: lists of sequences; `modes`: one for each sequence, if the data is multimodal."""
    builder = IndexedDatasetBuilder(str(HERE / f"{name}.bin"), dtype=dtype, multimodal=modes is not None)
    taken = iter(modes or [])
    for document in documents:
        tokens = [token for sequence in document for token in sequence]
        lengths = [len(sequence) for sequence in document]
        if modes is None:
            builder.add_document(tokens, lengths)
        else:
            builder.add_document(tokens, lengths, [next(taken) for _ in document])
    builder.finalize(str(HERE / f"{name}.idx"))


def merged(name, parts, multimodal=False):
    dtype = IndexedDataset(str(HERE / parts[0]), multimodal=multimodal).index.dtype
    builder = IndexedDatasetBuilder(str(HERE / f"{name}.bin"), dtype=dtype, multimodal=multimodal)
    for part in parts:
        builder.add_index(str(HERE / part))
    builder.finalize(str(HERE / f"{name}.idx"))


pair("a", numpy.uint16, [[[1, 2, 65499]], [[], [7, 8]], [[9]]])
pair("b", numpy.uint16, [[[10, 11], [12]]])
pair("c", numpy.uint16, [[[3]], [[4, 5, 6, 7]], [[]]])
pair("wide", numpy.int32, [[[100000, 1]], [[2, 3, 4]]])
pair("m1", numpy.int32, [[[1, 2], [3]], [[4]]], modes=[0, 1, 0])
pair("m2", numpy.int32, [[[5, 6, 7], [8]]], modes=[1, 0])
merged("abc", ["a", "b", "c"])
merged("m12", ["m1", "m2"], multimodal=True)
