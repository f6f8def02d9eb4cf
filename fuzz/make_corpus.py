#!/usr/bin/env python3
"""Writes the first inputs of the fuzz targets, fuzz/corpus/TARGET/*. Python 3.11, standard library alone."""
import gzip
import json
import math
import struct
from pathlib import Path

ROOT = Path(__file__).resolve().parent
GOLDEN = ROOT.parent / "tests" / "golden"


def put(target, name, data):
    folder = ROOT / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def safetensors(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def put_safetensors():
    put("safetensors", "golden", (GOLDEN / "checkpoint" / "tensors.safetensors").read_bytes())
    put("safetensors", "empty", safetensors({}))
    put("safetensors", "two", safetensors({
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "b": {"dtype": "BF16", "shape": [], "data_offsets": [8, 10]}}, bytes(range(10))))
    put("safetensors", "hole", safetensors({"a": {"dtype": "I64", "shape": [1], "data_offsets": [1, 9]}}, bytes(9)))
    put("safetensors", "overflow", safetensors(
        {"a": {"dtype": "F64", "shape": [1 << 62, 8], "data_offsets": [0, 0]}}))


def hf_folder(config, tensors):
    """config.json after its length, then model.safetensors of zeros: `tensors` has a dtype and a shape by name."""
    sizes = {"F32": 4, "BF16": 2, "I32": 4, "I64": 8, "U8": 1, "F8_E4M3": 1}
    header, data = {}, b""
    for name, (dtype, shape, *values) in tensors.items():
        begin = len(data)
        data += struct.pack(f"<{len(values)}q", *values) if values else bytes(math.prod(shape) * sizes[dtype])
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(config, separators=(",", ":")).encode()
    return struct.pack("<H", len(text)) + text + safetensors(header, data)


def put_hf_folders():
    config = dict(model_type="llama", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                  num_key_value_heads=1, vocab_size=4, max_position_embeddings=8, tie_word_embeddings=True,
                  rms_norm_eps=1e-5, hidden_act="silu")
    layer = "model.layers.0."
    others = {"model.embed_tokens.weight": ("BF16", [4, 8]), "model.norm.weight": ("BF16", [8]),
              layer + "input_layernorm.weight": ("BF16", [8]), layer + "post_attention_layernorm.weight": ("BF16", [8])}
    linear = [layer + f"self_attn.{p}_proj" for p in "qkvo"] + [layer + f"mlp.{p}_proj" for p in ("gate", "up", "down")]
    put("hf_folder", "plain", hf_folder(config, others | {f"{name}.weight": ("BF16", [8, 8]) for name in linear}))
    text = config | {"model_type": "qwen3_vl_text", "head_dim": 8,
                     "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
    decoder = {name.replace("model.", "model.language_model."): tensor for name, tensor in
               (others | {f"{name}.weight": ("BF16", [8, 8]) for name in linear} |
                {layer + f"self_attn.{p}_norm.weight": ("BF16", [8]) for p in "qk"}).items()}
    tower = {"model.visual.patch_embed.proj.weight": ("F32", [2, 3])}
    put("hf_folder", "text_decoder", hf_folder({"model_type": "qwen3_vl", "text_config": text}, decoder | tower))
    granite = config | {"model_type": "granitemoeshared", "num_local_experts": 2, "num_experts_per_tok": 2,
                        "shared_intermediate_size": 4, "attention_multiplier": 0.25, "residual_multiplier": 0.5}
    moe = {layer + "block_sparse_moe.router.layer.weight": ("BF16", [2, 8]),
           layer + "block_sparse_moe.input_linear.weight": ("BF16", [2, 16, 8]),
           layer + "block_sparse_moe.output_linear.weight": ("BF16", [2, 8, 8]),
           layer + "shared_mlp.input_linear.weight": ("BF16", [8, 8]),
           layer + "shared_mlp.output_linear.weight": ("BF16", [8, 4])}
    attention = {f"{name}.weight": ("BF16", [8, 8]) for name in linear[:4]}
    put("hf_folder", "fused_experts", hf_folder(granite, others | attention | moe))
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [4, 4]}
    weights = {f"{name}.weight": ("F8_E4M3", [8, 8]) for name in linear}
    scales = {f"{name}.weight_scale_inv": ("F32", [2, 2]) for name in linear}
    put("hf_folder", "fp8", hf_folder(config | {"quantization_config": fp8}, others | weights | scales))
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": True}}
    packed = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}
    weights = {f"{name}.weight_packed": ("I32", [8, 1]) for name in linear}
    scales = {f"{name}.weight_scale": ("BF16", [8, 2]) for name in linear}
    shapes = {f"{name}.weight_shape": ("I64", [2], 8, 8) for name in linear}
    put("hf_folder", "packed", hf_folder(config | {"quantization_config": packed}, shapes | others | weights | scales))


def put_manifest():
    put("manifest", "content", json.dumps({
        "format": "witan-checkpoint", "version": 1, "step": 4, "scalars": {"step": 4, "elapsed_s": 1.5, "data": "x"},
        "shards": [{"file": f"shard-{i:05}.safetensors", "bytes": 128, "xxh3_128": "0" * 32} for i in range(2)],
        "files": [{"file": "config.toml", "bytes": 5, "xxh3_128": "f" * 32}],
        "tensors": {"w": {"dtype": "F32", "shape": [4, 2], "parts": [{"shard": 0, "first_row": 0, "rows": 3},
                                                                     {"shard": 1, "first_row": 3, "rows": 1}]},
                    "scalar": {"dtype": "I64", "shape": [], "parts": [{"shard": 0, "first_row": 0, "rows": 1}]}}}))
    put("manifest", "empty", "{}")


def put_tokenizer():
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"added_tokens": [{"id": 4, "content": "<s>", "special": True}], "pre_tokenizer": byte_level,
                 "decoder": byte_level,
                 "model": {"type": "BPE", "vocab": {"i": 0, "t": 1, "it": 2, "\u0120t": 3, "\u0120": 5},
                           "merges": ["i t", ["\u0120", "t"]]}}
    put("tokenizer_json", "gpt2", json.dumps(tokenizer))
    split = {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+"}, "behavior": "Isolated", "invert": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, {**byte_level, "use_regex": False}]}
    tokenizer["normalizer"] = {"type": "NFC"}
    tokenizer["post_processor"] = byte_level
    put("tokenizer_json", "split", json.dumps(tokenizer, ensure_ascii=False))
    kinds = GOLDEN / "tokenizer" / "kinds"
    for name in ("metaspace", "normalized0", "unigram"):
        put("tokenizer_json", name, (kinds / f"{name}.json").read_bytes())
    for name in ("bpe_unknown", "unigram"):
        put("sentencepiece_model", name, (kinds / f"{name}.model").read_bytes())
    put("tiktoken", "words", b"".join((kinds / "ranks.tiktoken").read_bytes().splitlines(True)[256:300]))
    tekken = json.loads((kinds / "tekken.json").read_text())
    tekken["special_tokens"] = [{"rank": 0, "token_str": "<s>", "is_control": True}]
    tekken["config"] |= {"default_vocab_size": 270, "default_num_special_tokens": 2}
    tekken["vocab"] = tekken["vocab"][:268]
    put("tekken", "small", json.dumps(tekken))


def gguf(values, tensors=(), data=b""):
    """`values`: key to (type, value), or (type, [values]); `tensors`: (name, dims, type, offset)."""
    pack = {0: "<B", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q"}

    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def one(kind, value):
        return text(value) if kind == 8 else struct.pack(pack[kind], value)

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, (kind, value) in values.items():
        out += text(key)
        if isinstance(value, list):
            out += struct.pack("<IIQ", 9, kind, len(value)) + b"".join(one(kind, each) for each in value)
        else:
            out += struct.pack("<I", kind) + one(kind, value)
    for name, dims, kind, offset in tensors:
        out += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    return out + bytes(-len(out) % 32) + data


def put_gguf():
    put("gguf", "empty", gguf({}))
    put("gguf", "tensors", gguf({"general.architecture": (8, "llama"), "llama.block_count": (4, 1)},
                                [("a", [2, 3], 0, 0), ("b", [32, 1], 8, 32)], bytes(96)))
    sizes = {6: (32, 22), 8: (32, 34), 12: (256, 144), 13: (256, 176), 14: (256, 210), 39: (32, 17)}
    tensors, at, data = [], 0, b""
    for kind, (block, size) in sizes.items():
        tensors.append((f"t{kind}", [block, 1], kind, at))
        data += bytes((7 * i + kind) % 256 for i in range(size)) + bytes(-size % 32)
        at = len(data)
    put("gguf", "blocks", gguf({}, tensors, data))
    put("gguf", "overflow", gguf({}, [("a", [1 << 40, 1 << 40], 0, 0)]))
    put("gguf", "llama", gguf({
        "tokenizer.ggml.model": (8, "llama"),
        "tokenizer.ggml.tokens": (8, ["<unk>", "<s>", "\u2581", "i", "t", "it", "<u>", "<0x0A>"]),
        "tokenizer.ggml.scores": (6, [0.0, 0.0, -3.0, -2.0, -2.0, -1.0, 0.0, 0.0]),
        "tokenizer.ggml.token_type": (5, [2, 3, 1, 1, 1, 1, 4, 6])}))
    alphabet = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
    put("gguf", "gpt2", gguf({
        "tokenizer.ggml.model": (8, "gpt2"), "tokenizer.ggml.pre": (8, "deepseek-v3"),
        "tokenizer.ggml.tokens": (8, [*alphabet, "it", "<s>"]), "tokenizer.ggml.merges": (8, ["i t"]),
        "tokenizer.ggml.token_type": (5, [1] * 257 + [3])}))


def put_datasets():
    for name in ("u16", "i32", "i64_sentences"):
        index = (GOLDEN / "data" / f"{name}.idx").read_bytes()
        put("indexed_dataset", name, struct.pack("<H", len(index)) + index + (GOLDEN / "data" / f"{name}.bin").read_bytes())
    for name in ("gpt2_u16_llmc", "llama3_u32_llmc"):
        file = (GOLDEN / "data" / f"{name}.bin").read_bytes()
        put("token_bin", name, file[:12] + file[1024:1024 + 256])


def put_npy():
    for path in sorted((GOLDEN / "data").glob("*.npy")):
        put("npy", path.stem, path.read_bytes())


def put_routes():
    for name in ("small", "wide"):
        put("routes", name, (GOLDEN / "routes" / f"{name}.routes").read_bytes()[:-8])


def put_tables():
    for path in sorted((GOLDEN / "data" / "tables" / "seeds").glob("seed_*")):
        for mode in (0, 1):
            put(path.suffix[1:], f"{path.stem[5:]}_{mode}", bytes([mode]) + path.read_bytes())
    put("parquet", "values_delta", bytes.fromhex("020205080105020200"))
    put("parquet", "values_bytes", bytes.fromhex("020600") + b"\x02\x00\x00\x00ab")
    put("parquet", "values_shared", bytes.fromhex("020607") + bytes.fromhex("0801020002000000000801020402000000") + b"abcd")
    put("parquet", "values_dictionary", bytes.fromhex("020608") + bytes.fromhex("010800"))


def put_shards():
    for name in ("chat", "text"):
        shard = (GOLDEN / "data" / "tables" / f"{name}.mds").read_bytes()
        for mode in (0, 1):
            put("mds", f"{name}_{mode}", bytes([mode]) + shard)


def put_archives():
    """Headers have "SUM" for their checksums, which the target puts in."""
    for name in ("names_gnu", "names_pax", "webdataset"):
        archive = bytearray((GOLDEN / "data" / "tables" / f"{name}.tar").read_bytes())
        for block in range(0, len(archive) - 511, 512):
            if archive[block + 257:block + 262] == b"ustar":
                archive[block + 148:block + 156] = b"SUM" + bytes(5)
        for mode in (0, 1):
            put("webdataset", f"{name}_{mode}", bytes([mode]) + bytes(archive[:6 * 512]) + bytes(1024))


def put_rows():
    put("jsonl", "row", '{"text": "a \\u00e9\\ud83d\\ude00 \\"b\\"\\n", "meta": {"n": [1, -2.5e3, true, null]}}')
    put("jsonl", "twice", '{"text": "a", "text": "b"}')
    put("jsonl", "deep", '{"text": ' + "[" * 70)


def put_chat_templates():
    golden = json.loads((GOLDEN / "tokenizer" / "chat" / "chat.json").read_text())
    for one in golden["templates"]:
        put("chat_template", one["name"], one["source"])
    put("chat_template", "snippets", "\n".join(snippet["source"] for snippet in golden["snippets"] if "text" in snippet["expected"]))


def put_tasks():
    for task in sorted((GOLDEN / "tasks" / "tasks").glob("*.yaml")):
        put("tasks", task.stem.lstrip("_"), task.read_text())
    put("tasks", "choices", r"""['it"s', "b'c", ('\x41\u00e9\n', -1, 2.5e3), [True, None]]""")
    put("tasks", "code", "task: a\nprocess_docs: !function utils.f\nb: &x [1, ~, 'y']\nc: *x\n")
    put("tasks", "aliases", 'task: a\ndoc_to_text: &x [*x, "y"]\ndoc_to_choice: &c [a, b]\ndoc_to_target: *c\n')


def put_compressed():
    text = b"to be or not to be, " * 20
    put("compressed", "gzip", gzip.compress(text, mtime=0) + gzip.compress(b"more", mtime=0))
    put("compressed", "plain", text)
    put("compressed", "zstd", bytes.fromhex("28b52ffd2004210000") + b"text" + b"\x00")
    put("compressed", "zstd_raw", bytes.fromhex("28b52ffd2005290000") + b"plain")


def put_words():
    defaults = (ROOT.parent / "recipes" / "default.toml").read_text()
    put("toml", "default", defaults)
    put("toml", "few", "num_layers = 2\n[moe]\nnum_experts = 4\nmoe_layer_freq = \"[1,0]\"\nlr = 1e-3 # a comment\n")
    put("command_line", "flags", "--num-layers\n2\n--moe-router-topk=1\n--swiglu\n--no-moe-grouped-gemm\n--lr\n1e-4\n")
    put("command_line", "wrong", "--num-layrs\n2\n--dtype\nfloat16\n--seed\n-1\nword\n--\n-x\n")


def put_requests():
    put("completion_request", "text", json.dumps({
        "model": "m", "prompt": "The ", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "n": 2, "seed": 1, "stop": ["."],
        "echo": True, "logprobs": 1, "stream": False, "presence_penalty": 0, "logit_bias": {}, "best_of": 2}))
    put("completion_request", "tokens", '{"prompt": [[1, 2], [3]], "stream": true, "stream_options": {"include_usage": true}}')
    put("http_framing", "request", "POST http://a:1/b?c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n")
    put("http_framing", "folded", "\r\nGET / HTTP/1.1\r\nX: a\r\n b\r\n\r\n")
    put("chat_request", "text", json.dumps({
        "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}],
        "max_completion_tokens": 3, "logprobs": True, "top_logprobs": 2, "tools": [], "response_format": {"type": "text"}}))


def put_fetch():
    put("hub", "state", b"\0" + json.dumps({"sha": "0" * 40, "cardData": {"configs": [
        {"config_name": "default", "data_files": [{"split": "train", "path": ["a/*.parquet", "b/**"]}]},
        {"config_name": "text", "data_files": "a.txt"}, {"config_name": "sci", "data_dir": "sci"}]}}).encode())
    put("hub", "files", b"\1" + json.dumps([
        {"type": "directory", "path": "data"}, {"type": "file", "path": "README.md", "size": 12, "oid": "a" * 40},
        {"type": "file", "path": "data/\u00fc.parquet", "size": 134, "oid": "b" * 40,
         "lfs": {"oid": "c" * 64, "size": 1 << 33, "pointerSize": 134}}]).encode())
    put("http_head", "redirect", "HTTP/1.1 302 Found\r\nLocation: /api/resolve-cache/a b?x=1\r\nX-Linked-Size: 7\r\n\r\n")
    put("http_head", "page", 'Link: <https://huggingface.co/api/tree?cursor=a%3D>; rel="next", <x>; rel=prev\r\n')
    put("http_head", "wait", "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT\r\nRateLimit: \"api\";r=0;t=55\r\nETag: x\r\n")
    put("glob", "stars", "data/**/train-*-of-?[0-9].parquet\ndata/a/b/train-1-of-12.parquet")
    put("glob", "folder", "./sample/10BT/\nsample/10BT/000_00000.parquet")
    put("part_file", "ranges", "0 100\n200 300\n100 150\n900 1000\n7")
    line = {"path": "a/b.parquet", "size": 9, "sha256": "0" * 64, "commit": "1" * 40, "modified": 1700000000000000000}
    put("fetch_manifest", "files", "\n".join(map(json.dumps, [
        {"format": 1, "kind": "dataset", "repository": "owner/corpus"}, line,
        {**line, "path": "c", "git_blob": "2" * 40}])) + "\n{")


def put_unfinished():
    counts = dict.fromkeys(("documents", "empty_documents", "text_bytes", "rows", "bad_rows", "replaced"), 3)
    record = {"format": "witan-partial-shards", "version": 1, "key": "KEY", "source": 1, "visited": 2,
              "statistics": counts, "documents": 5, "tokens": 60,
              "quarantine": {"count": 1, "kept": 1, "first": "a.jsonl:3: bad", "bytes": 6}}
    put("journal", "piece", json.dumps(record))
    put("journal", "end", json.dumps({**record, "end": counts}))
    bad = {"count": 1, "rows": [{"source": 0, "line": 2, "reason": "bad", "row": "{"}]}
    part = {"source": 0, "position": 2, "rows": 2, "complete": False}
    none = {"count": 0, "rows": []}
    steps = [{"run": 0, "parts": [part], "bad": bad},
             {"run": -1, "parts": [{**part, "position": 3, "rows": 1, "complete": True}], "bad": none}, {"read": True},
             {"sorted": 30000, "files": {"sizes": [0, 0], "rows": [0, 0]}}]
    for count in range(1, 5):
        put("shuffle_journal", f"steps_{count}", b"\1" + "".join(json.dumps(s) + "\n" for s in steps[:count]).encode())
    put("shuffle_journal", "written", b"\1" + json.dumps({"written": {"sizes": [0, 0], "rows": [0, 0]}}).encode() + b"\n")
    rows = [(1, 2, b"a"), (1 << 62, 3, b""), ((1 << 64) - 1, 4, b"bcd")]
    ends = [sum(len(text) for _, _, text in rows[:i + 1]) for i in range(3)]
    put("sorted_run", "rows", b"WITANRUN" + struct.pack("<Q", 3) + b"".join(
        struct.pack("<QQQ", high, low, end) for (high, low, _), end in zip(rows, ends)) + b"abcd")
    put("sorted_run", "empty", b"WITANRUN" + bytes(8))
    arrays = [struct.pack("<4q", 3, 1, 2, 0), b"", struct.pack("<2i", 5, 6)]
    pad = lambda data: data + bytes(-len(data) % 64)
    put("index_cache", "arrays", pad(b"WITANIDX" + struct.pack("<4Q", 1, len(arrays), 0, 3)) + pad(b"key") +
        pad(struct.pack("<3Q", *map(len, arrays))) + b"".join(map(pad, arrays)))


def put_data_lists():
    put("data_lists", "blend", "0.7,data/a_text_document, 3e-1 , data/b")
    put("data_lists", "split", "969, 30,1")
    put("data_lists", "schedule", "100=1,0.5;2000=0,1")
    put("data_lists", "validation", "web=a.jsonl,code=b.jsonl")


def put_wire():
    def frame(kind, channel, payload=b"", size=None):
        return struct.pack("<IIQQ", kind, 0, channel, len(payload) if size is None else size) + payload

    def terms(kind, shape=(), counts=(), begins=(), words=(b"layers.0.moe", b"gate")):
        sizes = [*shape, *[0] * (5 - len(shape))]
        head = struct.pack("<IIIIiiQqqq5qqqIHH", kind, 0, 0, 1, 0, len(shape), 0, 3, len(counts) // 2, len(begins),
                           *sizes, 5, 1, 0, len(words[0]), len(words[1]))
        return head + struct.pack(f"<{len(counts) + len(begins)}q", *counts, *begins) + words[0] + words[1]

    data, failure, shutdown, heartbeat, departures = 4, 5, 6, 7, 8
    call, ready, offer, answer = range(4)
    exchange = frame(call, 1, terms(5, (4, 2), (1, 1, 2, 2))) + frame(ready, 1)
    put("frames", "data", b"\0" + exchange + frame(data, 1, bytes(5)) + frame(data, 1, bytes(2)) + frame(shutdown, 0))
    put("frames", "trickle", b"\3" + frame(heartbeat, 1) + frame(offer, 2, terms(1, (3,))) + frame(answer, 2, b"no"))
    put("frames", "dropped", b"\x80" + frame(data, 9, bytes(30)) + frame(data, 1, bytes(30)))
    put("frames", "failure", b"\0" + frame(failure, 0, struct.pack("<II", 2, 1) + b"no such shard") + frame(call, 3))
    put("frames", "departures", b"\0" + frame(departures, 0, struct.pack("<IIQIIQ", 1, 0, 7, 0, 0, 0)))
    put("frames", "uneven", b"\0" + frame(call, 1, terms(3, (4, 2), (), (0, 1, 4))))
    log = b"".join(struct.pack("<QQ", number, len(one)) + one
                   for number, one in ((7, terms(0, (4, 2))), (8, terms(5, (4, 2), (1, 1, 2, 2)))))
    put("frames", "log", b"\0" + frame(call, 1, log) + frame(call, 2, log[:-1]))
    put("frames", "bombs", b"\0" + frame(call, 1, b"", 1 << 60) + frame(data, 1, b"", 1 << 20))

    greeting = b"WITANRNK" + struct.pack("<II", 7, 0) + bytes(range(32))
    introduction = struct.pack("<iiii64s", 1, 2, 0, 1234, b"there") + bytes(32)
    put("handshake", "accepting", b"\0\0" + greeting + introduction)
    put("handshake", "connecting", b"\1\5" + greeting + struct.pack("<IiiI", 0, 0, 2, 0) + bytes(32))
    put("handshake", "another_version", b"\0\0" + greeting.replace(b"\7", b"\x08", 1))
    put("handshake", "both", b"\2\7" + struct.pack("<8i", 0, 2, 1, 1, 2, 0, 1234, 99))
    put("handshake", "crossing", b"\2\7" + struct.pack("<8i", 0, 2, 1, 1, 2, 0, 1234, 1))
    for message, offset in enumerate((0, 8, 70, 40), 0):
        put("handshake", f"changed_{message}", b"\2\0" + struct.pack("<8i", 0, 2, 1, 1, 2, 0, 1234, 99) +
            bytes([message, offset, 1]))

    def name(text):
        return bytes([len(text)]) + text

    places = struct.pack("<I", 2) + b"".join(map(name, (b"node0", b"", b"node1", b"10.0.0.1")))
    places += b"".join(struct.pack("<IH", *row) for row in ((0, 0), (1, 40001), (1, 40002)))
    put("rendezvous", "places", b"\x03\0" + struct.pack("<II", 0, len(places)) + places)
    put("rendezvous", "trickle", b"\x03\1" + struct.pack("<II", 0, len(places)) + places)
    put("rendezvous", "trouble", b"\x04\0" + struct.pack("<II", 1, 12) + b"rank 3 of 4 ")
    put("rendezvous", "bomb", b"\xff\0" + struct.pack("<II", 0, 0xffffffff))


if __name__ == "__main__":
    for write in (put_safetensors, put_hf_folders, put_manifest, put_tokenizer, put_gguf, put_datasets, put_npy,
                  put_routes, put_rows, put_tables, put_archives, put_shards, put_chat_templates, put_tasks,
                  put_compressed, put_words, put_requests, put_fetch, put_unfinished, put_data_lists, put_wire):
        write()
