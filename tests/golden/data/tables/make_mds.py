#!/usr/bin/env python3
"""Writes text.mds, text.mds.zstd and chat.mds beside this script, by the package mosaicml-streaming 0.13.0.

The bytes are committed; run this only to add a file.
"""
import pathlib
import shutil
import tempfile

from streaming import MDSWriter

HERE = pathlib.Path(__file__).parent


def write(name, columns, samples, compression=None):
    with tempfile.TemporaryDirectory() as folder:
        with MDSWriter(out=f"{folder}/out", columns=columns, compression=compression) as writer:
            for sample in samples:
                writer.write(sample)
        shard = next(path for path in pathlib.Path(folder, "out").iterdir() if path.name.startswith("shard"))
        shutil.copy(shard, HERE / name)


if __name__ == "__main__":
    texts = [{"id": i, "score": i / 4, "text": text, "tag": b"\x00\xff", "zero": ""}
             for i, text in enumerate(["first", "", "Größe 专家", "x" * 300])]
    columns = {"id": "int", "score": "float32", "text": "str", "tag": "bytes", "zero": "str"}
    write("text.mds", columns, texts)
    write("text.mds.zstd", columns, texts, "zstd")
    chat = [{"id": i, "messages": messages, "tools": "none"} for i, messages in enumerate([
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}], [{"role": "user", "content": "\"no\""}]])]
    write("chat.mds", {"id": "int", "messages": "json", "tools": "str"}, chat)
