"""Damaged input files given to the real program: mutations.py WITAN WORK CASES SEED [FORMAT [CASE]].

Each case mutates a good file of tests/golden, fuzz/corpus or WORK's small run and gives it to the command that reads
it, with 2 s of processor time and 1 GiB of addresses. The command must succeed, or end with the exit code of an error
and a message that names the file. Prints counts for each format and the first faults, whose files it keeps in
WORK/faults; ends with 1 if there were any. FORMAT and CASE repeat one. Uses the standard library alone, and all cores
(JOBS=N: N).
"""
import base64
import collections
import multiprocessing
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

WITAN, WORK, CASES, SEED = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
ROOT = Path(__file__).resolve().parents[2]
GOLDEN, CORPUS = ROOT / "tests/golden", ROOT / "fuzz/corpus"
CPU_SECONDS, MEMORY, WALL_SECONDS = 2, 1 << 30, 60
ENDS = {0: "read", 2: "usage", 3: "config", 4: "data", 5: "checkpoint", 6: "diverged"}  # 8, out of memory: a bomb



def tiktoken_file():
    """Ranks of all bytes and of two words."""
    pieces = [bytes([byte]) for byte in range(256)] + [b"th", b"the"]
    file = WORK / "good.tiktoken"
    file.write_text("".join(f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in enumerate(pieces)))
    return file


IMPORT = ["--run", "made", "--runs-folder", "NEW"]
ENCODE = ["tokenizer", "encode", "a b", "--tokenizer"]
STATS = ["data", "stats", "--bad-row-share", "1"]
RUN = ["--run", "small", "--runs-folder", "RUNS"]
# Of each format: files, and the command that reads one. FILE is the mutated file, FOLDER its folder and PARENT that
# one's, which have what lies beside the good file; RUNS has the small run, and what is made goes to NEW.
FORMATS = {
    "config.json": (GOLDEN.glob("convert/*/config.json"), ["import", "FOLDER", *IMPORT]),
    "safetensors": (GOLDEN.glob("convert/*/model.safetensors"), ["import", "FOLDER", *IMPORT]),
    "megatron": (GOLDEN.glob("convert_megatron/*/torch_dist/iter_*/*"), ["import", "PARENT", *IMPORT]),
    "gguf": (GOLDEN.glob("gguf/*.gguf"), ["import", "FILE", *IMPORT]),
    "tokenizer.json": (GOLDEN.glob("tokenizer/kinds/*.json"), [*ENCODE, "FILE"]),
    "sentencepiece": (CORPUS.glob("sentencepiece_model/*"), [*ENCODE, "FILE"]),
    "tiktoken": ([tiktoken_file()], [*ENCODE, "FILE#cl100k"]),
    "parquet": (GOLDEN.glob("data/tables/**/*.parquet"), [*STATS, "FILE"]),
    "arrow": (GOLDEN.glob("data/tables/**/*.arrow"), [*STATS, "FILE"]),
    "jsonl": (GOLDEN.glob("data/**/*.jsonl"), [*STATS, "FILE"]),
    "tar": (GOLDEN.glob("data/tables/*.tar"), [*STATS, "FILE"]),
    "mds": (GOLDEN.glob("data/tables/*.mds"), [*STATS, "FILE"]),
    "idx": (GOLDEN.glob("data/*.idx"), ["data", "stats", "PREFIX"]),
    "config.toml": (ROOT.glob("recipes/*.toml"), ["config", "show", "--config", "FILE"]),
    "manifest.json": (WORK.glob("runs/small/checkpoints/*/manifest.json"), ["export", *RUN, "NEW/out"]),
    "metrics.jsonl": (WORK.glob("runs/small/metrics.jsonl"), ["report", "--json", *RUN]),
    "chat template": (CORPUS.glob("chat_template/*"),
                      ["chat", *RUN, "--chat-template", "FILE", "--context", "4096", "--threads", "1", "--max-tokens",
                       "1"]),
}
FORMATS = {name: (sorted(files), command) for name, (files, command) in FORMATS.items()}
ENDINGS = {"sentencepiece": ".model", "tiktoken": ".tiktoken", "jsonl": ".jsonl", "chat template": ".jinja"}
NUMBERS = [b"0", b"-1", b"1e308", b"2147483648", b"9223372036854775807", b"18446744073709551616", b"0.5", b"null",
           b"\"\"", b"[]", b"{}", b"true", b"[" * 300, b"{\"a\":" * 300]
WORDS = [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF]


def mutate(data, other, draw):
    """One small change of the kinds that break readers: of bits, sizes, ends, order and numbers."""
    at = draw.randrange(len(data) + 1)
    if draw.random() < 0.3:  # most formats say in their first or last bytes how to read the others
        at = min(at, draw.randrange(64)) if draw.random() < 0.5 else max(at, len(data) - draw.randrange(1, 64))
    length = min(1 << draw.randrange(11), len(data) - at)
    kind = draw.randrange(9)
    if kind == 0 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1:]
    if kind == 1:
        word = draw.choice(WORDS)
        width = draw.choice([size for size in (1, 2, 4, 8) if word < 1 << 8 * size])
        return data[:at] + struct.pack("<Q", word)[:width] + data[at + width:]
    if kind == 2:
        return data[:at] + data[at + length:]
    if kind == 3:
        return data[:at + length] + data[at:at + length] * draw.choice([1, 2, 100]) + data[at + length:]
    if kind == 4:
        return data[:at]
    if kind == 5:
        return data[:at] + draw.randbytes(length) + data[at + length:]
    if kind == 6:
        there = draw.randrange(len(other) + 1)
        return data[:at] + other[there:there + length] + data[at + length:]
    tokens = list(re.finditer(rb"-?\d+(\.\d+)?|\"[^\"\n]{0,80}\"|\b(true|false|null)\b", data[:1 << 16]))
    if tokens:
        token = draw.choice(tokens)
        new = draw.choice(NUMBERS) if kind == 7 else draw.choice(tokens).group()
        return data[:token.start()] + new + data[token.end():]
    return data[:at] + b"\x00\xff\x1b" + data[at:]


def prepared(name, seed_file, data, place):
    """Puts the mutated file where the command finds it, with what belongs to it. Returns what stands for each word."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "new").mkdir(parents=True)
    runs = WORK / "runs"
    if runs in seed_file.parents:
        runs = place / "runs"
        shutil.copytree(WORK / "runs", runs, dirs_exist_ok=True)
        file = place / seed_file.relative_to(WORK)
    elif name in ("config.json", "safetensors", "idx"):
        shutil.copytree(seed_file.parent, place / "in", ignore=lambda _, names: {"gradient", "expected.safetensors"})
        file = place / "in" / seed_file.name
    elif name == "megatron":
        shutil.copytree(seed_file.parents[1], place / "in")
        file = place / "in" / seed_file.relative_to(seed_file.parents[1])
    else:
        (place / "in").mkdir()
        file = place / "in" / ("input" + ENDINGS.get(name, seed_file.suffix))
    file.write_bytes(data)
    return {"FILE": file, "FOLDER": file.parent, "PARENT": file.parents[1], "PREFIX": file.with_suffix(""),
            "RUNS": runs, "NEW": place / "new"}


def run(command, place, memory):
    """Exit code (negative: a signal), what was said, and MiB of memory."""
    limits = ["prlimit", f"--cpu={CPU_SECONDS}", "--core=0"] + ([f"--as={memory}"] if memory else [])
    with open(place / "said", "w+b") as said:
        process = subprocess.Popen(limits + [WITAN] + command, stdin=subprocess.PIPE, stdout=said, stderr=said,
                                   env=os.environ | {"XDG_CACHE_HOME": str(place / "new"), "OMP_NUM_THREADS": "1"})
        try:
            process.communicate(b"hello\n", timeout=WALL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        said.seek(0)
        return process.returncode, said.read().decode(errors="replace")


def fault_of(code, said, words):
    if "Sanitizer" in said or "runtime error:" in said:
        return "the sanitizer reports an error"
    if code < 0:
        return f"ended by signal {-code}"
    if code not in ENDS:
        return f"exit code {code}"
    if code != 0 and not any(str(words[word]) in said for word in ("FILE", "FOLDER", "PARENT", "PREFIX")):
        return f"exit code {code}, and the message does not name the file"
    return ""


def given(name, seed_file, data, memory):
    """The command's exit code for these bytes in place of the good file, and what is wrong with its end."""
    place = WORK / f"place-{os.getpid()}"
    words = prepared(name, seed_file, data, place)

    def put(found):
        return str(words.get(found.group(), found.group()))

    code, said = run([re.sub(r"^[A-Z]+", put, word) for word in FORMATS[name][1]], place, memory)
    fault = fault_of(code, said, words)
    return code, fault and f"{fault}, of {seed_file}:\n{said[-600:]}"


def is_read(task):
    name, seed_file, memory = task
    return given(name, seed_file, seed_file.read_bytes(), memory)[0] == 0


def one_case(task):
    name, seeds, case, memory = task
    draw = random.Random(f"{SEED}/{name}/{case}")
    seed_file, other = draw.choice(seeds), draw.choice(seeds).read_bytes()
    data = seed_file.read_bytes()
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        data = mutate(data, other, draw)
    code, fault = given(name, seed_file, data, memory)
    if fault:
        kept = WORK / "faults" / f"{name.replace(' ', '-')}-{case}"
        shutil.copytree(WORK / f"place-{os.getpid()}", kept, dirs_exist_ok=True)
        fault = f"{name}: case {case}, kept in {kept}: {fault}"
    return code, fault


def main():
    names = [sys.argv[5]] if len(sys.argv) > 5 else list(FORMATS)
    cases = [int(sys.argv[6])] if len(sys.argv) > 6 else range(CASES)
    place = WORK / "first"
    place.mkdir()
    memory = MEMORY if run(["--version"], place, MEMORY)[0] == 0 else 0
    if not memory:
        print("mutations: a sanitizer's shadow takes more than 1 GiB of addresses: they are not limited")
    faults = 0
    with multiprocessing.Pool(int(os.environ.get("JOBS", len(os.sched_getaffinity(0))))) as pool:
        for name in names:
            files = FORMATS[name][0]
            read = pool.map(is_read, [(name, file, memory) for file in files])
            seeds = [file for file, good in zip(files, read) if good]
            if not seeds:
                sys.exit(f"mutations: none of the {len(files)} good files of {name} is read")
            codes, found = collections.Counter(), []
            for code, fault in pool.imap(one_case, [(name, seeds, case, memory) for case in cases], 8):
                codes[code] += 1
                if fault:
                    found.append(fault)
            ends = ", ".join(f"{codes[code]} {ENDS.get(code, code)}" for code in sorted(codes))
            print(f"mutations: {name}: {len(cases)} inputs of {len(seeds)} files: {ends}; {len(found)} faults",
                  flush=True)
            for fault in found[:3]:
                print(fault, file=sys.stderr, flush=True)
            faults += len(found)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
