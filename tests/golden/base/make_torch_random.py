#!/usr/bin/env python3
"""Prints the values that tests/base/torch_random_test.cpp expects, as PyTorch makes them (run with torch 2.15, CPU)."""

import torch

torch.set_printoptions(precision=9)
torch.manual_seed(1234)
calls = [
    ("normal 40", torch.empty(40).normal_()),
    ("uniform 3, fan-in 3", torch.nn.Linear(3, 1, bias=False).weight.data.flatten()),
    ("uniform 6, fan-in 1024", torch.nn.Linear(1024, 1, bias=False).weight.data.flatten()[:6]),
    ("normal 16", torch.empty(16).normal_()),
]
for name, values in calls:
    print(f"// {name}\n{{{', '.join(float(v).hex() for v in values)}}}")
