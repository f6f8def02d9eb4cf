#!/usr/bin/env python3
"""Writes muon.tsv, which tests/optim/muon_test.cpp expects, by the original implementations.

    make_muon.py MOONLIGHT DION EMERGING > muon.tsv

The arguments are checkouts of MoonshotAI/Moonlight (c2ad5b20c605), microsoft/dion (0a059a4542e5) and
NVIDIA-NeMo/Emerging-Optimizers (fd7729267109). Their functions are taken out of the sources, because the modules
import data sets and GPU kernels, and run in float64 by PyTorch 2.15 on a CPU: what they cast to bfloat16 stays float64.

A line is: what, rows, columns, then the values. Weights begin as cos(0.7 i + 0.3) and gradients of step t are
sin(1.7 i + 0.9 t) (1 + 0.1 i), i counting elements.
"""

import ast
import math
import pathlib
import sys

# The definitions that taken() executes use these names.
from itertools import chain, cycle, islice, repeat  # noqa: F401
from typing import Any, Iterator, Literal, Optional, Sequence, Tuple  # noqa: F401

import torch
from torch import Tensor  # noqa: F401

torch.Tensor.bfloat16 = torch.Tensor.double


def taken(path, *names):
    """The definitions of these names in a source, without decorators."""
    tree = ast.parse(pathlib.Path(path).read_text())
    scope = dict(globals())
    for node in tree.body:
        targets = [t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)]
        if getattr(node, "name", None) in names or set(targets) & set(names):
            if hasattr(node, "decorator_list"):
                node.decorator_list = []
            exec(compile(ast.Module([node], []), str(path), "exec"), scope)
    return [scope[name] for name in names]


moonlight, dion, emerging = map(pathlib.Path, sys.argv[1:4])
zeropower, Muon = taken(moonlight / "examples/toy_train.py", "zeropower_via_newtonschulz5", "Muon")
Muon.step.__globals__["zeropower_via_newtonschulz5"] = zeropower
_, polar_express = taken(dion / "dion/polar_express.py", "_POLAR_EXPRESS_COEFFS", "polar_express")
(rows_normalized,) = taken(dion / "dion/normuon.py", "_normuon_normalization_core")
(sets,) = taken(
    emerging / "emerging_optimizers/orthogonalized_optimizers/muon_utils.py", "_COEFFICIENT_SETS"
)


def weights(rows, columns):
    i = torch.arange(rows * columns, dtype=torch.float64)
    return torch.cos(0.7 * i + 0.3).reshape(rows, columns)


def gradient(rows, columns, t):
    i = torch.arange(rows * columns, dtype=torch.float64)
    return (torch.sin(1.7 * i + 0.9 * t) * (1 + 0.1 * i)).reshape(rows, columns)


def show(what, matrix):
    print("\t".join([what, *map(str, matrix.shape), *(repr(float(v)) for v in matrix.flatten())]))


for shape in [(4, 6), (7, 3), (5, 5)]:
    for nesterov in [True, False]:
        p = torch.nn.Parameter(weights(*shape))
        optimizer = Muon(lr=0.05, wd=0.1, muon_params=[p], momentum=0.9, nesterov=nesterov, ns_steps=5)
        for t in range(1, 4):
            p.grad = gradient(*shape, t)
            optimizer.step()
        show("nesterov" if nesterov else "momentum", p.data)
    show("polar_express", polar_express(gradient(*shape, 1)))
    x = gradient(*shape, 1)
    x = x / (x.norm() + 1e-7)
    for a, b, c in sets["deepseekv4"]:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    show("deepseek", x)
    p, buffer, v = weights(*shape), torch.zeros(shape, dtype=torch.float64), torch.zeros(shape[0], 1).double()
    for t in range(1, 4):
        g = gradient(*shape, t)
        buffer = 0.9 * buffer + g
        u, v = rows_normalized(zeropower(g + 0.9 * buffer, 5), v, torch.tensor(0.8, dtype=torch.float64))
        p = p * (1 - 0.05 * 0.1) - 0.05 * 0.2 * math.sqrt(max(shape)) * u
    show("normuon", p)
    show("normuon.v", v)
