#!/usr/bin/env python3
"""Writes loss_scale.tsv: the scale of Megatron-LM's DynamicGradScaler after steps that overflow and steps that do not.

Run with torch 2.15 and megatron-core 0.16.0 (megatron/core/optimizer/grad_scaler.py) on the PYTHONPATH:
    make_loss_scale.py > loss_scale.tsv
"""

import importlib.util
import random
import sys

import torch

CASES = (  # initial, least, window, hysteresis, share of steps that overflow
    (4294967296.0, 1.0, 5, 2, 0.3),
    (65536.0, 4096.0, 3, 1, 0.5),
    (8.0, 1.0, 4, 3, 0.4),
    (3.0, 2.0, 2, 2, 0.5),
)


def scaler_class():
    # The module alone: the package around it needs a GPU's libraries.
    spec = importlib.util.find_spec("megatron")
    path = list(spec.submodule_search_locations)[0] + "/core/optimizer/grad_scaler.py"
    spec = importlib.util.spec_from_file_location("grad_scaler", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.DynamicGradScaler


def main():
    of_cpu = torch.tensor
    torch.tensor = lambda *args, **named: of_cpu(*args, **{**named, "device": "cpu"})
    draw = random.Random(7)
    out = sys.stdout
    print("initial", "least", "window", "hysteresis", "overflow", "scale", "growth", "left", sep="\t", file=out)
    for initial, least, window, hysteresis, share in CASES:
        scaler = scaler_class()(initial, least, 2.0, 0.5, window, hysteresis)
        for _ in range(60):
            overflow = draw.random() < share
            scaler.update(overflow)
            state = scaler.state_dict()
            print(initial, least, window, hysteresis, int(overflow), state["scale"].item(), state["growth_tracker"],
                  state["hysteresis_tracker"], sep="\t", file=out)


main()
