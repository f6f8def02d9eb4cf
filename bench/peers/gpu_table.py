"""The rows of gpu.sh: steps of the reference models in all layouts, and layers of experts, by Witan and by peers.

Prints one row of a Markdown table as soon as it is measured: milliseconds of both (of layers TFLOP/s, forward / forward
and backward), the ratio (above 1: Witan is faster), the floor of docs/performance-log.md where there is one. Ratios of
rows without a peer are to the row that they name: what the layout costs. Rows of generation have the time of a token
and the floor of reading the weights that it uses.
"""
import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent.parent
DENSE, MOE = "recipes/reference/dense.toml", "recipes/reference/moe.toml"

# T, d, n, E, K: the project's own shapes, then SonicMoE's published ones.
OWN_LAYERS = [(16384, 512, 1792, 64, 1), (32768, 2048, 1024, 64, 8), (16384, 4096, 14336, 8, 2), (32768, 2048, 768, 128, 8)]
PUBLISHED_LAYERS = [(24576, 1536, 256, 128, 8), (24576, 1536, 1024, 32, 2), (32768, 4096, 256, 256, 16),
                    (32768, 4096, 512, 128, 8), (32768, 4096, 1024, 64, 4), (32768, 4096, 512, 256, 16),
                    (32768, 4096, 1024, 128, 8), (32768, 4096, 2048, 64, 4)]

# Layers at full width: as few as Transformers can hold on a card of 141 GB, and as many as Witan can.
QWEN3 = ["--preset", "qwen3-30b-a3b", "--micro-batch-size", "4", "--global-batch-size", "4"]
QWEN3_5 = ["--preset", "qwen3.5-35b-a3b", "--micro-batch-size", "4", "--global-batch-size", "4"]
NEMOTRON = ["--preset", "nemotron-3-nano-30b-a3b", "--micro-batch-size", "2", "--global-batch-size", "2"]


def run(command, environment=None, limit=300):
    """What it printed; nothing where it failed, which is said on standard error."""
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=limit,
                          env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        print(f"failed ({done.returncode}): {' '.join(map(str, command))}\n{done.stderr[-2000:]}", file=sys.stderr)
        return None
    return done.stdout


class Table:
    def __init__(self, options):
        self.options = options
        self.peers = [peer for peer in options.peers.split(",") if peer]
        self.measured = {}  # milliseconds of Witan's steps, by row

    def wants(self, name):
        return self.options.only.lower() in name.lower()

    def step(self, arguments, processes=1):
        """Milliseconds of a step of `witan bench step`, of as many processes."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "step.json"
            command = [self.options.witan, "bench", "step", "--steps", str(self.options.steps), "--json", str(out),
                       *arguments]
            ok = run(command) is not None if processes == 1 else self.run_processes(command, processes)
            return 1e3 * json.loads(out.read_text())["lines"][0]["seconds"] if ok and out.exists() else None

    @staticmethod
    def run_processes(command, processes):
        """As a launcher starts them, without one: each with a GPU of its own."""
        port = str(20000 + os.getpid() % 20000 + int(time.monotonic()) % 7)
        started = [
            subprocess.Popen(command, cwd=TREE, stdout=subprocess.DEVNULL, env={
                **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
            for rank in range(processes)
        ]
        try:
            return all([one.wait(timeout=300) == 0 for one in started])
        except subprocess.TimeoutExpired:
            for one in started:
                one.kill()
            return False

    @staticmethod
    @functools.cache
    def torch(gpus, *arguments):
        """Milliseconds of PyTorch's step."""
        program = [str(HERE / "torch_step.py"), *arguments]
        launcher = [sys.executable] if gpus == 1 else [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)]
        printed = run([*launcher, *program], limit=420)
        lines = [line for line in (printed or "").splitlines() if line.startswith("{")]
        return json.loads(lines[-1])["ms"] if lines else None

    @staticmethod
    @functools.cache
    def transformers(*arguments):
        """Milliseconds of Transformers' step."""
        printed = run([sys.executable, str(HERE / "hf_step.py"), *arguments], limit=420)
        lines = [line for line in (printed or "").splitlines() if line.startswith("{")]
        return json.loads(lines[-1])["ms_step"] if lines else None

    def row(self, name, gpus, arguments, peer=None, beside=None, floor=None, processes=1, by="torch"):
        """`peer`: a function of nothing that returns its milliseconds, `by` whom. `beside`: a row before this one."""
        if gpus > self.options.gpus or not self.wants(name):
            return
        ranks = ["--ranks", str(gpus), "--global-batch-size", str(8 * gpus)] if gpus > 1 and processes == 1 else []
        if processes > 1:
            ranks = ["--global-batch-size", str(8 * gpus)]
        ms = self.step([*arguments, *ranks], processes)
        self.measured[name] = ms
        other = peer() if peer and ms and by in self.peers else self.measured.get(beside)
        ratio = f"{other / ms:.2f}" if ms and other else ""
        print("|", " | ".join([name, f"{ms:.2f} ms" if ms else "failed", f"{other:.2f} ms" if other else "",
                               ratio + (f" of {beside}" if beside and ratio else ""), f"{floor} ms" if floor else ""]),
              "|", flush=True)

    def generation(self, name, arguments):
        """Rows of 1, 8 and 32 texts at a time, with prompts of 1024 tokens."""
        if not self.wants(name):
            return
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "generate.json"
            ok = run([self.options.witan, "bench", "generate", "--prompt", "1024", "--tokens", "64", "--json", str(out),
                      *arguments])
            found = json.loads(out.read_text()) if ok is not None else {"lines": []}
        for line in found["lines"]:
            texts = line["name"].split()[3]
            share = found["floor_share_" + texts]
            print("|", " | ".join([f"{name}, {texts} at a time", f"{1e3 * line['seconds']:.2f} ms", "",
                                   f"{share:.2f} of the floor", f"{1e3 * share * line['seconds']:.2f} ms"]), "|",
                  flush=True)

    def layer(self, shape, peers):
        T, d, n, E, K = shape
        name = f"layer, T {T}, d {d}, n {n}, E {E}, K {K}"
        if not self.wants(name):
            return
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "layer.json"
            ok = run([self.options.witan, "bench", "moe-layer", "--gradient-dtype", "bfloat16", "--tokens", str(T), "--hidden",
                      str(d), "--ffn", str(n), "--experts", str(E), "--topk", str(K), "--json", str(out)])
            if ok is None:
                return
            lines = json.loads(out.read_text())["lines"]
        forward, both = (next(6e-12 * T * K * d * n * factor / line["seconds"] for line in lines if line["name"] == wanted)
                         for wanted, factor in (("routing given, forward", 1), ("routing given, forward and backward", 3)))
        texts, best = [], 0
        for peer, found in peers.get(shape, {}).items():
            best = max(best, found["tflops"])
            texts.append(f"{peer} {found['forward_tflops']} / {found['tflops']}" + ("" if found["right"] else " (wrong)"))
        print("|", " | ".join([name, f"{forward:.0f} / {both:.0f}", "; ".join(texts), f"{both / best:.2f}" if best else "",
                               ""]), "|", flush=True)

    def layer_peers(self, shapes):
        wanted = [s for s in shapes if self.wants("layer, T {}, d {}, n {}, E {}, K {}".format(*s))]
        found = {}
        of_layers = [peer for peer in self.peers if peer not in ("torch", "transformers")]
        if not wanted or not of_layers:
            return found
        printed = run([sys.executable, str(HERE / "moe_layer.py"), "--peers", ",".join(of_layers), "--limit", "280",
                       *(",".join(map(str, shape)) for shape in wanted)], limit=900) or ""
        for line in printed.splitlines():
            if line.startswith("{"):
                one = json.loads(line)
                found.setdefault(tuple(map(int, one["shape"].split(","))), {})[one["peer"]] = one
        return found


def rows(table):
    dense, moe = ["--config", DENSE], ["--config", MOE]
    torch_dense, torch_moe = (lambda gpus: lambda: table.torch(gpus, "--experts", "0")), (lambda gpus: lambda: table.torch(gpus))
    one, moe_one = "dense reference", "MoE reference"
    table.row(one, 1, dense, torch_dense(1), floor=32)
    table.row("dense reference, deterministic", 1, [*dense, "--deterministic"], beside=one)
    table.row(moe_one, 1, moe, torch_moe(1), floor=62)
    table.row("MoE reference, moments in bfloat16", 1,
              [*moe, "--exp-avg-dtype", "bfloat16", "--exp-avg-sq-dtype", "bfloat16"], beside=moe_one)
    wide = "MoE reference, gradients in float32"
    table.row(wide, 1, [*moe, "--gradient-dtype", "float32"], torch_moe(1))
    table.row("MoE reference, gradients in float32, deterministic", 1,
              [*moe, "--gradient-dtype", "float32", "--deterministic"], beside=wide)
    for gpus, floor in ((2, 49), (4, 43)):
        experts = f"MoE reference, experts over {gpus} GPUs"
        table.row(experts, gpus, moe, torch_moe(gpus), floor=floor)
        table.row(f"{experts}, a process each", gpus, moe, beside=experts, processes=gpus)
        table.row(f"{experts}, skew 4x", gpus, [*moe, "--skew", "4x"], beside=experts)
        for text, flags in (("replicate", []), ("ZeRO-1", ["--use-distributed-optimizer", "true"]),
                            ("FSDP", ["--data-parallel-sharding-strategy", "optim_grads_params"]),
                            (f"tensor {gpus}", ["--tensor-model-parallel-size", str(gpus)]),
                            (f"context {gpus}", ["--context-parallel-size", str(gpus)])):
            table.row(f"dense reference, {text}, {gpus} GPUs", gpus, [*dense, *flags], beside=one)
    def by_transformers(*arguments):
        return lambda: table.transformers(*arguments)

    table.row("Qwen3-30B-A3B, 6 layers", 1, [*QWEN3, "--num-layers", "6"], by_transformers("--layers", "6"),
              by="transformers")
    table.row("Qwen3.5-35B-A3B, 4 layers", 1, [*QWEN3_5, "--num-layers", "4"],
              by_transformers("--model", "qwen3.5-35b-a3b", "--layers", "4", "--unchecked"), by="transformers")
    table.row("Qwen3.5-35B-A3B, 8 layers, gradients in bfloat16", 1,
              [*QWEN3_5, "--num-layers", "8", "--gradient-dtype", "bfloat16"])
    for pattern in ("MEMEM*E", "MEMEM*EMEME"):
        hybrid = ["--num-layers", str(len(pattern)), "--hybrid-override-pattern", pattern]
        peer = by_transformers("--model", "nemotron-3-nano-30b-a3b", "--pattern", pattern)
        table.row(f"Nemotron 3 Nano, {pattern}", 1, [*NEMOTRON, *hybrid], peer if len(pattern) == 7 else None,
                  by="transformers")
    table.generation("generation, Qwen3-30B-A3B, 12 layers", ["--preset", "qwen3-30b-a3b", "--num-layers", "12"])
    table.generation("generation, Qwen3.5-35B-A3B, 12 layers", ["--preset", "qwen3.5-35b-a3b", "--num-layers", "12"])
    table.generation("generation, Nemotron 3 Nano, 14 layers",
                     ["--preset", "nemotron-3-nano-30b-a3b", "--num-layers", "14", "--hybrid-override-pattern",
                      "MEMEM*EMEMEM*E"])
    shapes = OWN_LAYERS + PUBLISHED_LAYERS
    peers = table.layer_peers(shapes)
    for shape in shapes:
        table.layer(shape, peers)


def main():
    parser = argparse.ArgumentParser(prog="gpu.sh")
    parser.add_argument("--gpus", type=int, default=0, help="use so many (0: all)")
    parser.add_argument("--only", default="", help="rows whose names contain this")
    parser.add_argument("--peers", default="torch,transformers,gather,scatter,sonic",
                        help="torch, transformers: steps; the others, of layers, are those of moe_layer.py; empty: none")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("witan", nargs="?", default="build/cuda/witan")
    options = parser.parse_args()
    if options.gpus == 0:
        listed = run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]) or ""
        options.gpus = len(listed.split())
    print("| work | Witan | peer | ratio | floor |\n|---|---|---|---|---|", flush=True)
    rows(Table(options))


if __name__ == "__main__":
    main()
