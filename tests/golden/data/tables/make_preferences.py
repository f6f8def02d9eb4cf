#!/usr/bin/env python3
"""Writes other_preferences.parquet, pairs of answers in the columns of TRL as datasets of preferences on the Hugging Face
hub have them: lists of messages with columns of figures beside them, as pyarrow writes them from Python values, in
dictionaries and several row groups. other_preferences.jsonl has the same rows. other_text_preferences.parquet and
.jsonl hold pairs of texts.

Python 3.11, pyarrow 26.0.1. The bytes are committed.
"""
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent


def messages(*turns):
    return [{"content": content, "role": role} for role, content in turns]


def row(i):
    prompt = [("user", f"{i} + {i}?")]
    if i % 3 == 1:
        prompt = [("system", "Be brief: Größe ≤ 2."), *prompt]
    right, wrong = [("assistant", f"{2 * i}")], [("assistant", f"{2 * i + 1}, 🙂")]
    if i % 3 == 2:
        right += [("user", "Sure?"), ("assistant", "Yes.\n")]
    whole = i % 2 == 1  # there is no prompt: both answers begin with it
    return {
        "prompt": None if whole else messages(*prompt),
        "chosen": messages(*(prompt if whole else []), *right),
        "rejected": messages(*(prompt if whole else []), *wrong),
        "score_chosen": 8.5 - i / 8,
        "score_rejected": 1.0,
        "source": "sums",
    }


def write(name, rows, **how):
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, HERE / f"{name}.parquet", **how)
    lines = [json.dumps({key: value for key, value in one.items() if value is not None}) for one in rows]
    (HERE / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))


write("other_preferences", [row(i) for i in range(9)], compression="zstd", row_group_size=4)
write("other_text_preferences",
      [{"prompt": f"{i} + {i} =", "chosen": f" {2 * i}", "rejected": " five"} for i in range(5)])
