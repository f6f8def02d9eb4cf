#!/usr/bin/env python3
"""Writes other_fastparquet.parquet and other_fastparquet.jsonl beside this script: a table as fastparquet writes it, in
two row groups, and its rows as pyarrow reads them.

Python 3.11, fastparquet 2026.9.0, pandas 3.1.1, pyarrow 26.0.1. The bytes are committed; run this only to change them.
"""
import json
import pathlib

import fastparquet
import pandas
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent

table = pandas.DataFrame({
    "text": ["row %d Gr\u00f6\u00dfe" % i if i % 4 else None for i in range(12)],
    "n": range(12),
    "maybe": pandas.array([i if i % 3 else None for i in range(12)], dtype="Int32"),
    "real": [i / 8 for i in range(12)],
    "flag": [i % 2 == 0 for i in range(12)],
    "kind": pandas.Categorical(["a", "b", "a"] * 4)})
path = str(HERE / "other_fastparquet.parquet")
fastparquet.write(path, table, compression="GZIP", row_group_offsets=[0, 7])
rows = pq.read_table(path).to_pylist()
(HERE / "other_fastparquet.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
