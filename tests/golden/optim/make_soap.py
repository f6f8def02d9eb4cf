#!/usr/bin/env python3
"""Writes soap.tsv: what SOAP makes of three tensors and gradients that tests can form too.

Run with torch 2.15 and soap.py of nikhilvyas/SOAP at a1e553530fde97d0e6b307d7c82ac6d38b072340 on the PYTHONPATH. The
original finds bases in float32; here that is float64, as all else, so that ours can be compared in every digit.
"""

import math

import torch
from soap import SOAP

SHAPES = {"matrix": (4, 4), "long": (7, 3), "vector": (5,)}


def gradient(shape, step):
    numbers = [((i * 7919 + step * 104729 + i * i * 31 + step * i * 17) % 1009) / 1009 - 0.5 for i in range(math.prod(shape))]
    return torch.tensor(numbers).reshape(shape)


def main():
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = lambda self: self
    print("case", "step", "tensor", "values", sep="\t")
    parameters = {of: torch.nn.Parameter(torch.arange(math.prod(shape)).reshape(shape) / 8) for of, shape in SHAPES.items()}
    optimizer = SOAP(
        parameters.values(),
        lr=0.125,
        betas=(0.8, 0.95),
        shampoo_beta=0.9,
        eps=1e-6,
        weight_decay=0.0625,
        precondition_frequency=3,
        max_precond_dim=5,
    )
    for step in range(1, 11):
        for of, parameter in parameters.items():
            parameter.grad = gradient(SHAPES[of], step)
        optimizer.step()
        if step in (1, 2, 4, 6, 10):
            for of, parameter in parameters.items():
                print("soap", step, of, " ".join(map(repr, parameter.flatten().tolist())), sep="\t")


main()
