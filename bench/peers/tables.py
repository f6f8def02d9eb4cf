#!/usr/bin/env python3
"""Texts out of Parquet and Arrow files: Witan's build/bench/bench/tables_bench and pyarrow, one core each, MB/s of text
by processor time. Makes the files, 120 MB of Debian's perl-doc in pieces, in the folder that it is given.

    bench/peers/tables.py FOLDER

Python 3.11 with pyarrow 26.0.1. "to Arrow" decodes into pyarrow's memory; "to Python" makes strings of it, as loaders do.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
BYTES = 120_000_000


def documents():
    rng = random.Random(1)
    pods = {path.resolve() for path in pathlib.Path("/usr/share/perl").glob("*/pod/*.pod")}
    text = "".join(path.read_text(errors="replace") for path in sorted(pods))
    made = 0
    while made < BYTES:
        length = int(min(200_000, rng.lognormvariate(7.5, 1.0)))
        start = rng.randrange(len(text) - length)
        made += length
        yield text[start:start + length]


def make(folder):
    texts = list(documents())
    table = pa.table({"id": range(len(texts)), "text": texts, "url": [f"https://example.org/{i}" for i in range(len(texts))]})
    for codec in ("none", "snappy", "gzip", "zstd", "lz4"):
        pq.write_table(table, folder / f"{codec}.parquet", compression=codec, use_dictionary=False, row_group_size=10_000)
    pq.write_table(table, folder / "zstd_dictionary.parquet", compression="zstd", row_group_size=10_000)
    pq.write_table(table, folder / "zstd_delta.parquet", compression="zstd", use_dictionary=False, data_page_version="2.0",
                   column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"}, row_group_size=10_000)
    for codec in (None, "zstd"):
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.OSFile(str(folder / f"{codec or 'none'}.arrow"), "wb") as sink:
            with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=1000)


def batches(path):
    if path.suffix == ".parquet":
        return pq.ParquetFile(path).iter_batches(columns=["text"], use_threads=False)
    return pa.ipc.open_stream(pa.OSFile(str(path)), options=pa.ipc.IpcReadOptions(included_fields=[1], use_threads=False))


def speed(read, path, rounds=5):
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        size = read(path)
        best = min(best, time.process_time() - start)
    return size / best / 1e6


def to_arrow(path):
    return sum(batch.column("text").nbytes for batch in batches(path))


def to_python(path):
    return sum(len(text) for batch in batches(path) for text in batch.column("text").to_pylist())


def witan(folder):
    command = [TREE / "build/bench/bench/tables_bench", "--benchmark_format=json", "--benchmark_min_time=1"]
    run = subprocess.run(command, env={**os.environ, "WITAN_TABLES": str(folder)}, capture_output=True, text=True, check=True)
    return {one["name"]: one["bytes_per_second"] / 1e6 for one in json.loads(run.stdout)["benchmarks"]}


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    pa.set_cpu_count(1)
    make(folder)
    ours = witan(folder)
    print(f"{'file':26}{'Witan':>8}{'to Arrow':>10}{'to Python':>11}")
    for path in sorted(folder.iterdir()):
        print(f"{path.name:26}{ours[path.name]:8.0f}{speed(to_arrow, path):10.0f}{speed(to_python, path):11.0f}")
