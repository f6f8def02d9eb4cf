#!/usr/bin/env python3
"""Writes shampoo.tsv: what Distributed Shampoo makes of three tensors and gradients that tests can form too.

Run with torch 2.15 and facebookresearch/optimizers at f60660661194de26d3ee78bae6d15820ff8e583d on the PYTHONPATH.
Numbers are float64 throughout: torch's default dtype, which the bias corrections have, is set to it, and the learning
rate, which the original keeps in float32, is a power of two. Dims are not merged (target_parameter_dimensionality).
"""

import math

import torch
from distributed_shampoo import (
    AdamPreconditionerConfig,
    CoupledNewtonConfig,
    DistributedShampoo,
    EigenConfig,
    RootInvShampooPreconditionerConfig,
    SGDPreconditionerConfig,
    SingleDeviceDistributedConfig,
    WeightDecayType,
)

SHAPES = {"matrix": (5, 3), "vector": (4,), "blocks": (7, 3)}
ADAM = AdamPreconditionerConfig(beta2=0.95, epsilon=1e-6)
# name: grafting, betas[1], exponent, root
CASES = {
    "adam": (ADAM, 0.9, None, EigenConfig()),
    "sgd": (SGDPreconditionerConfig(), 0.9, None, EigenConfig()),
    "none": (None, 0.9, None, EigenConfig()),
    "sum": (ADAM, 1.0, None, EigenConfig()),
    "exponent": (ADAM, 0.9, 0.4, EigenConfig()),
    "newton": (ADAM, 0.9, None, CoupledNewtonConfig(tolerance=1e-13)),
}


def gradient(shape, step):
    numbers = [((i * 7919 + step * 104729 + i * i * 31 + step * i * 17) % 1009) / 1009 - 0.5 for i in range(math.prod(shape))]
    return torch.tensor(numbers).reshape(shape)


def main():
    torch.set_default_dtype(torch.float64)
    print("case", "step", "tensor", "values", sep="\t")
    for name, (grafting, beta2, exponent, root) in CASES.items():
        parameters = {of: torch.nn.Parameter(torch.arange(math.prod(shape)).reshape(shape) / 8) for of, shape in SHAPES.items()}
        extra = {} if exponent is None else {"inverse_exponent_override": {1: exponent, 2: exponent}}
        optimizer = DistributedShampoo(
            parameters.values(),
            lr=0.125,
            betas=(0.8, beta2),
            epsilon=1e-3,
            weight_decay=0.0625,
            weight_decay_type=WeightDecayType.DECOUPLED,
            max_preconditioner_dim=5,
            precondition_frequency=3,
            start_preconditioning_step=4,
            grafting_config=grafting,
            distributed_config=SingleDeviceDistributedConfig(target_parameter_dimensionality=2),
            preconditioner_config=RootInvShampooPreconditionerConfig(
                amortized_computation_config=root,
                factor_matrix_dtype=torch.float64,
                inv_factor_matrix_dtype=torch.float64,
                **extra,
            ),
        )
        for step in range(1, 11):
            for of, parameter in parameters.items():
                parameter.grad = gradient(SHAPES[of], step)
            optimizer.step()
            if step in (3, 4, 6, 10):
                for of, parameter in parameters.items():
                    print(name, step, of, " ".join(map(repr, parameter.flatten().tolist())), sep="\t")


main()
