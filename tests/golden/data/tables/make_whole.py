#!/usr/bin/env python3
"""Writes whole.jsonl beside this script: the rows of the golden table as pyarrow's to_pylist() and json.dumps() give
them, without the columns that JSON has no type for.

Python 3.11, pyarrow 26.0.1. The bytes are committed; run this only after make_golden.py."""
import json
import pathlib

import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent

table = pq.read_table(HERE / "zstd_dictionary_v2.parquet").drop_columns(["day", "price", "seen"])
(HERE / "whole.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()))
