#!/usr/bin/env python3
"""Writes the golden tables beside this script: one table in every encoding, codec and version of pages of Parquet, by
pyarrow and by DuckDB, and in the variants of Arrow IPC; and what is read from it, expected.jsonl.

Python 3.11, pyarrow 26.0.1, duckdb 2.0.0. The bytes are committed; run this only to add a file.
"""
import datetime
import decimal
import json
import pathlib
import random

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent
ROWS = 40
rng = random.Random(18)
WORDS = ["expert", "token", "router", "Größe", "专家", "🙂", "a", "", "line\nbreak", 'quote"', "back\\slash", "tab\t\x01"]


def words(most):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(most)))


def maybe(value, share=0.25):
    return None if rng.random() < share else value


def message():
    calls = [{"name": words(2), "arguments": maybe(words(3))} for _ in range(rng.randrange(3))]
    return {"role": rng.choice(["user", "assistant"]), "content": maybe(words(5)), "calls": maybe(calls, 0.6),
            "tags": maybe([maybe(words(2)) for _ in range(rng.randrange(3))])}


def row(i):
    pages = [maybe({"text": maybe(words(4)), "n": i}) for _ in range(rng.randrange(4))]
    return {
        "id": i,
        "text": maybe(words(8)) if i % 7 else ["", "\x00", "same", "same"][i // 7 % 4],
        "meta": maybe({"title": maybe(words(3)), "pages": maybe(pages)}),
        "messages": maybe([message() for _ in range(rng.randrange(4))], 0.1),
        "deep": maybe([maybe([maybe(rng.randrange(100)) for _ in range(rng.randrange(3))]) for _ in range(rng.randrange(3))]),
        "i32": maybe(rng.randrange(-2**31, 2**31)),
        "i64": rng.randrange(-2**63, 2**63),
        "u8": rng.randrange(256),
        "u32": rng.randrange(2**32),
        "u64": maybe(rng.randrange(2**64)),
        "f32": float(rng.randrange(1000)) / 8,
        "f64": maybe(rng.random()),
        "flag": maybe(rng.random() < 0.5),
        "day": datetime.date(2024, 7, 26),
        "price": maybe(decimal.Decimal("1.25")),
        "seen": datetime.datetime(2024, 7, 26),
    }


STRING = pa.string()
SCHEMA = pa.schema([
    pa.field("id", pa.int64(), nullable=False),
    ("text", STRING),
    ("meta", pa.struct([("title", STRING), ("pages", pa.list_(pa.struct([("text", STRING), ("n", pa.int32())])))])),
    ("messages", pa.list_(pa.struct([
        pa.field("role", STRING, nullable=False), ("content", STRING),
        ("calls", pa.list_(pa.struct([("name", STRING), ("arguments", STRING)]))), ("tags", pa.list_(STRING))]))),
    ("deep", pa.list_(pa.list_(pa.int32()))),
    ("i32", pa.int32()), pa.field("i64", pa.int64(), nullable=False), ("u8", pa.uint8()), ("u32", pa.uint32()),
    ("u64", pa.uint64()), ("f32", pa.float32()), ("f64", pa.float64()), ("flag", pa.bool_()),
    ("day", pa.date32()), ("price", pa.decimal128(9, 2)), ("seen", pa.timestamp("us"))])
NOT_JSON = ("day", "price", "seen")


def without_nulls(value):
    """Fields of structs that are null are left out; items of lists are not."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def expected(rows):
    for one in rows:
        kept = {key: value for key, value in one.items() if key not in NOT_JSON}
        pages = ((one["meta"] or {}).get("pages")) or [None]
        yield {"text": one["text"], "pages": [((page or {}).get("text")) or "" for page in pages], "row": without_nulls(kept)}


# What each physical type may have; the rest of the columns are as pyarrow likes.
ENCODINGS = {
    "plain": {"text": "PLAIN", "number": "PLAIN", "real": "PLAIN"},
    "delta_length": {"text": "DELTA_LENGTH_BYTE_ARRAY", "number": "DELTA_BINARY_PACKED", "real": "BYTE_STREAM_SPLIT"},
    "delta": {"text": "DELTA_BYTE_ARRAY", "number": "BYTE_STREAM_SPLIT", "real": "BYTE_STREAM_SPLIT"},
    "dictionary": None,
}
TEXTS = ["text", "meta.title", "meta.pages.list.element.text", "messages.list.element.role", "messages.list.element.content",
         "messages.list.element.calls.list.element.name", "messages.list.element.calls.list.element.arguments",
         "messages.list.element.tags.list.element"]
NUMBERS = ["id", "meta.pages.list.element.n", "deep.list.element.list.element", "i32", "i64", "u8", "u32", "u64"]
REALS = ["f32", "f64"]


def encodings(name):
    if ENCODINGS[name] is None:
        return {"use_dictionary": True}
    choice = ENCODINGS[name]
    columns = {c: choice["text"] for c in TEXTS} | {c: choice["number"] for c in NUMBERS} | {c: choice["real"] for c in REALS}
    if name != "plain":
        columns["flag"] = "RLE"
    return {"use_dictionary": False, "column_encoding": columns}


def write_parquet(table):
    for codec in ("none", "snappy", "gzip", "zstd", "lz4"):
        for version in ("1.0", "2.0"):
            for name in ENCODINGS:
                pq.write_table(table, HERE / "encodings" / f"{codec}_{name}_v{version[0]}.parquet", compression=codec,
                               data_page_version=version, row_group_size=23, store_schema=False,
                               write_statistics=False, write_page_checksum=codec in ("zstd", "none"), **encodings(name))
    # Many pages: rows of lists continue from one to the next in version 1.
    pq.write_table(table, HERE / "pages.parquet", compression="zstd", data_page_size=64, write_batch_size=3,
                   row_group_size=30, store_schema=False, data_page_version="1.0", dictionary_pagesize_limit=64)
    # Names of lists and integers of an older writer.
    pq.write_table(table, HERE / "older.parquet", compression="snappy", version="1.0", use_compliant_nested_type=False,
                   use_deprecated_int96_timestamps=True)
    pq.write_table(table, HERE / "refused_brotli.parquet", compression="brotli", store_schema=False)
    pq.write_table(table.slice(0, 0), HERE / "empty.parquet", store_schema=False)


def write_duckdb(table):
    connection = duckdb.connect()
    connection.register("golden", table)
    for codec, version in (("snappy", "V1"), ("zstd", "V2"), ("lz4_raw", "V2")):
        connection.execute(f"COPY (SELECT * FROM golden) TO '{HERE}/duckdb_{codec}_{version}.parquet' "
                           f"(FORMAT parquet, CODEC '{codec}', PARQUET_VERSION {version}, ROW_GROUP_SIZE 2048)")


def write_arrow(table):
    for codec in (None, "zstd", "lz4"):
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.OSFile(str(HERE / f"stream_{codec or 'none'}.arrow"), "wb") as sink:
            with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=15)
        with pa.OSFile(str(HERE / f"file_{codec or 'none'}.arrow"), "wb") as sink:
            with pa.ipc.new_file(sink, table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=15)
    # Texts as dictionaries, wide offsets and views.
    for name, text in (("dictionary", pa.dictionary(pa.int8(), STRING)), ("large", pa.large_string()),
                       ("view", pa.string_view())):
        fields = [field.with_type(text) if field.name == "text" else
                  field.with_type(pa.large_list(pa.list_(pa.int32()))) if field.name == "deep" and name == "large" else field
                  for field in SCHEMA]
        other = table.cast(pa.schema(fields)) if name != "dictionary" else table.set_column(
            1, "text", table["text"].dictionary_encode().cast(text))
        with pa.OSFile(str(HERE / f"{name}.arrow"), "wb") as sink:
            with pa.ipc.new_stream(sink, other.schema) as writer:
                writer.write_table(other, max_chunksize=23)


def write_others():
    """Tables of their own: bytes that are no UTF-8, and conversations in both formats."""
    latin1 = pa.table({"text": pa.array(["plain".encode(), "caf\u00e9".encode("latin1"), b"end"])})
    pq.write_table(latin1, HERE / "other_latin1.parquet", store_schema=False)
    messages = [[{"role": "user", "content": "hi", "name": None}, {"role": "assistant", "content": "yo", "name": "bot"}],
                [{"role": "user", "content": "no answer", "name": None}],
                [{"role": "user", "content": "2 + 2?", "name": None}, {"role": "assistant", "content": "4", "name": None}]]
    chat = pa.table({"id": [1, 2, 3], "messages": messages, "seen": [datetime.datetime(2024, 7, 26)] * 3})
    pq.write_table(chat, HERE / "other_chat.parquet", compression="zstd", store_schema=False)
    with pa.OSFile(str(HERE / "other_chat.arrow"), "wb") as sink:
        with pa.ipc.new_stream(sink, chat.schema) as writer:
            writer.write_table(chat)
    pairs = pa.table({"conversations": [[{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]] * 2})
    pq.write_table(pairs, HERE / "other_pairs.parquet", store_schema=False)
    write_nulls()


def write_nulls():
    """Columns of the null type, as pyarrow infers them where it sees no value; other_nulls.jsonl has the rows."""
    nulls = pa.table({"id": [1, 2, 3], "text": pa.nulls(3), "meta": [{"a": None, "n": 4}, None, {"a": None, "n": 5}],
                      "tags": pa.array([[], None, [None, None]], pa.list_(pa.null()))})
    pq.write_table(nulls, HERE / "other_nulls.parquet", compression="snappy", store_schema=False)
    with pa.OSFile(str(HERE / "other_nulls.arrow"), "wb") as sink:
        with pa.ipc.new_stream(sink, nulls.schema) as writer:
            writer.write_table(nulls)
    (HERE / "other_nulls.jsonl").write_text("".join(json.dumps(row) + "\n" for row in nulls.to_pylist()))


def write_seeds():
    """Less than a kilobyte each, for the fuzzers (fuzz/make_corpus.py)."""
    text = pa.table({"text": ["ab", None, "abc"]})
    message = pa.struct([("role", STRING), ("content", STRING)])
    rows = pa.table({"messages": pa.array([[{"role": "a", "content": None}], [], None], pa.list_(message))})
    numbers = pa.table({"n": pa.array([1, None, 7], pa.int32())})
    for name, table in (("text", text), ("rows", rows), ("numbers", numbers)):
        for codec, version, encoding in (("none", "1.0", "PLAIN"), ("none", "2.0", "DELTA"), ("zstd", "2.0", "PLAIN"),
                                         ("snappy", "1.0", None), ("gzip", "2.0", "DELTA"), ("lz4", "1.0", "PLAIN")):
            delta = "DELTA_BINARY_PACKED" if name == "numbers" else "DELTA_BYTE_ARRAY"
            paths = {"text": ["text"], "numbers": ["n"],
                     "rows": ["messages.list.element.role", "messages.list.element.content"]}[name]
            pq.write_table(table, HERE / "seeds" / f"seed_{name}_{codec}_{version[0]}.parquet", compression=codec,
                           version="1.0", data_page_version=version, store_schema=False, write_statistics=False,
                           use_dictionary=encoding is None,
                           column_encoding={path: delta if encoding == "DELTA" else encoding for path in paths} if encoding else None)
        for codec in (None, "zstd", "lz4"):
            with pa.OSFile(str(HERE / "seeds" / f"seed_{name}_{codec or 'none'}.arrow"), "wb") as sink:
                with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
                    writer.write_table(table)
    for name, table in (("dictionary", text.set_column(0, "text", text["text"].dictionary_encode())),
                        ("view", text.cast(pa.schema([("text", pa.string_view())])))):
        with pa.OSFile(str(HERE / "seeds" / f"seed_{name}.arrow"), "wb") as sink:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
    with pa.OSFile(str(HERE / "seeds" / "seed_file.arrow"), "wb") as sink:
        with pa.ipc.new_file(sink, numbers.schema) as writer:
            writer.write_table(numbers)


if __name__ == "__main__":
    rows = [row(i) for i in range(ROWS)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    rows = table.to_pylist()
    write_parquet(table)
    write_duckdb(table)
    write_arrow(table)
    write_others()
    write_seeds()
    (HERE / "expected.jsonl").write_text("".join(json.dumps(one) + "\n" for one in expected(rows)))
