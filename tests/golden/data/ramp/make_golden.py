#!/usr/bin/env python3
"""Writes sizes.tsv: the global batch of each step of runs whose batch grows, by Megatron-LM's implementation.

    make_golden.py training.py > sizes.tsv

Run with megatron-core 0.16.1 (megatron/core/num_microbatches_calculator.py) on the PYTHONPATH. The argument is
megatron/training/training.py of github.com/NVIDIA/Megatron-LM at a52112dae955, of which update_train_iters() counts
the steps of a run over so many samples.

A line is: start, increment, samples of the ramp, full size, micro-batch size, data-parallel ranks, whether sizes are
decreased, samples of the run, its steps, then the sizes of steps one after the other as COUNTxSIZE.
"""

import ast
import importlib.util
import itertools
import pathlib
import sys
from types import SimpleNamespace


def calculator():
    # The module alone: the package around it needs a GPU's libraries.
    spec = importlib.util.find_spec("megatron")
    path = list(spec.submodule_search_locations)[0] + "/core/num_microbatches_calculator.py"
    spec = importlib.util.spec_from_file_location("num_microbatches_calculator", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def update_train_iters(path, module):
    scope = {
        "update_num_microbatches": module.update_num_microbatches,
        "get_current_global_batch_size": module.get_current_global_batch_size,
        "print_rank_0": lambda text: None,
    }
    for node in ast.walk(ast.parse(pathlib.Path(path).read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "update_train_iters":
            exec(compile(ast.Module([node], []), str(path), "exec"), scope)
    return scope["update_train_iters"]


CASES = (  # start, increment, samples, full, micro-batch, ranks, decreased, samples of the run
    (2, 2, 10, 8, 1, 1, False, 60),
    (4, 4, 48, 16, 2, 2, False, 200),
    (8, 8, 100, 32, 4, 2, False, 500),
    (8, 8, 96, 32, 4, 2, False, 97),
    (8, 8, 96, 32, 4, 2, False, 40),
    (6, 3, 71, 24, 2, 2, True, 300),
    (5, 7, 1000, 40, 1, 5, True, 2345),
    (32, 32, 65536, 1024, 4, 8, False, 200000),
    (1, 1, 7, 8, 1, 1, False, 30),
    (3, 1, 10, 13, 1, 1, False, 50),
    (16, 16, 5859375, 1536, 16, 1, False, 12000000),
)


def main():
    module = calculator()
    names = ("start", "increment", "samples", "full", "micro_batch", "ranks", "decreased", "train_samples", "steps", "sizes")
    print(*names, sep="\t")
    for start, increment, samples, full, micro, ranks, decreased, train in CASES:
        module.unset_num_microbatches_calculator()
        module.init_num_microbatches_calculator(1, [start, increment, samples], full, micro, ranks, decreased)
        args = SimpleNamespace(
            train_iters=None, train_samples=train, rampup_batch_size=[start, increment, samples], global_batch_size=full
        )
        update_train_iters(sys.argv[1], module)(args)
        consumed, sizes = 0, []
        for _ in range(args.train_iters):
            module.update_num_microbatches(consumed, consistency_check=True)
            sizes.append(module.get_num_microbatches() * micro * ranks)
            assert sizes[-1] == module.get_current_running_global_batch_size()
            consumed += sizes[-1]
        runs = [f"{len(list(group))}x{size}" for size, group in itertools.groupby(sizes)]
        print(start, increment, samples, full, micro, ranks, int(decreased), train, args.train_iters, " ".join(runs), sep="\t")


if __name__ == "__main__":
    main()
