"""Runs the peers and Witan in turns and prints the tables; called by compare_cpu.sh, which makes what this needs.

Each figure is the best round's median over steps after a warm-up, in milliseconds. Each round starts every program
anew: PyTorch eager and compiled, both as installed and with its matrix library told to use AVX-512, then `witan train`,
whose figures are those of its own metrics: data, clipping, optimizer and logging are in them.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
BUILD = TREE / "build/bench"
MODELS = {  # of the same active size
    "MoE, 8 experts, top-2": (["--experts", "8"], []),
    "dense": (["--experts", "0"], ["--num-experts", "0", "--ffn-hidden-size", "1024"]),
}


def output(command, **more):
    result = subprocess.run([str(c) for c in command], env={**os.environ, **more}, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{result.stderr[-2000:]}")
    return result.stdout


def torch_step(args, model, compiled, preload):
    threads = str(args.threads)
    # Freed memory stays with the process, as with tcmalloc: large tensors would be mapped and cleared anew every step.
    settings = {"OMP_NUM_THREADS": threads, "MALLOC_MMAP_THRESHOLD_": str(2**31), "MALLOC_TRIM_THRESHOLD_": str(2**32),
                "TORCHINDUCTOR_CACHE_DIR": str(args.home / "inductor")}
    if preload:
        settings["LD_PRELOAD"] = str(args.home / "as_intel.so")
    command = [sys.executable, HERE / "torch_cpu.py", "--threads", threads, "--steps", args.steps, *model]
    return float(output(command + (["--compiled"] if compiled else []), **settings))


class WitanRun:
    """A run that goes on for some steps each time, on tokens that are there."""

    def __init__(self, args, name, flags):
        self.steps, self.done = 3 * args.steps, 0
        self.folder = args.home / "runs" / name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.command = [BUILD / "witan", "train", "--runs-folder", self.folder.parent, "--run", name,
                        "--eval-interval", "0", "--eval-iters", "1", "--save-interval", "0", "--sample-tokens", "0",
                        "--lr-decay-iters", "1000", *flags]

    def step(self):
        before, self.done = self.done, self.done + self.steps
        output([*self.command, "--train-iters", self.done])
        lines = map(json.loads, (self.folder / "metrics.jsonl").read_text().splitlines())
        times = [line["step_s"] for line in lines if line["kind"] == "step" and line["step"] > before + 3]
        return 1e3 * statistics.median(times)


def compare_training(args):
    columns = ["eager", "compiled", "eager*", "compiled*", "witan"]
    print(f"| step of 8 x 256 tokens, {args.threads} threads, float32 | " + " | ".join(columns) +
          " | better of PyTorch / witan | with * |\n|" + "---|" * (len(columns) + 3))
    for name, (model, flags) in MODELS.items():
        run = WitanRun(args, "moe" if "MoE" in name else "dense", flags)
        measure = [lambda: torch_step(args, model, False, False), lambda: torch_step(args, model, True, False),
                   lambda: torch_step(args, model, False, True), lambda: torch_step(args, model, True, True), run.step]
        rounds = [[f() for f in measure] for _ in range(args.rounds)]
        best = [min(column) for column in zip(*rounds)]
        witan = best[-1]
        print(f"| {name} | " + " | ".join(f"{ms:.0f} ms" for ms in best) +
              f" | {min(best[:2]) / witan:.2f} | {min(best[2:4]) / witan:.2f} |", flush=True)
    print("\n* MKL told by a preloaded symbol to use AVX-512 on this processor; without it: AVX2.\n")


def compare_tokenizers(args):
    import tokenizers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    spec = args.home / "runs" / "moe" / "tokenizer.json"
    if not spec.exists():
        WitanRun(args, "moe", []).step()
    files = sorted({str(path.resolve()) for path in Path("/usr/share/perl").glob("*/pod/*.pod")})
    texts = [Path(path).read_text(encoding="utf-8", errors="replace") for path in files]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6

    theirs = Tokenizer.from_file(str(spec))
    peer = Tokenizer(models.BPE())
    peer.pre_tokenizer, peer.decoder = theirs.pre_tokenizer, decoders.ByteLevel()
    start = time.perf_counter()
    peer.train(files, trainers.BpeTrainer(vocab_size=4096, min_frequency=2, show_progress=False,
                                          special_tokens=["<|endoftext|>"],
                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    training = time.perf_counter() - start
    start = time.perf_counter()
    count = sum(len(theirs.encode(text).ids) for text in texts)
    encoding = megabytes / (time.perf_counter() - start)

    # The bench leaves the large vocabulary that it loads.
    found = json.loads(output([BUILD / "bench/tokenizer_bench", "--benchmark_filter=^(train|encode_text|load_200k)$",
                               "--benchmark_format=json"]))["benchmarks"]
    start = time.perf_counter()
    Tokenizer.from_file(str(Path(tempfile.gettempdir()) / "witan_tokenizer_bench.json"))
    loading = time.perf_counter() - start
    ours = {row["name"]: row for row in found}
    print(f"| {megabytes:.1f} MB of text, one thread, 4096 entries | tokenizers {tokenizers.__version__} | witan |\n"
          "|---|---|---|\n"
          f"| training | {training:.2f} s | {ours['train']['real_time'] / 1e3:.2f} s |\n"
          f"| encoding ({count} tokens) | {encoding:.1f} MB/s | {ours['encode_text']['bytes_per_second'] / 1e6:.1f} MB/s |\n"
          f"| loading a vocabulary of 200,000 | {loading:.2f} s | {ours['load_200k']['real_time'] / 1e3:.2f} s |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--skip-torch", action="store_true")
    parser.add_argument("--skip-tokenizers", action="store_true")
    args = parser.parse_args()
    import torch
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}; "
          f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n", flush=True)
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    if not args.skip_torch:
        compare_training(args)
    if not args.skip_tokenizers:
        compare_tokenizers(args)


if __name__ == "__main__":
    main()
