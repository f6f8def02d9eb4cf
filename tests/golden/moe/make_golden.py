#!/usr/bin/env python3
"""Writes megatron_routing.json: what Megatron-Core's routing functions choose, and with what weights.

Made with megatron-core 0.16.1 and torch 2.15.0 on Python 3.11; neither is needed to run the tests. From float64
logits, of which it takes softmax and sigmoid in float32. sqrtsoftplus, which that release does not have, is PyTorch's
softplus under a root, with the weights of sigmoid.
"""

import json
import pathlib

import torch
from megatron.core.transformer.moe import moe_utils

TOKENS, EXPERTS = 12, 8


def dense(probs, chosen):
    return {"weights": probs.flatten().tolist(), "chosen": chosen.int().flatten().tolist()}


def topk(logits, name, **args):
    bias = args.get("expert_bias")
    probs, chosen = moe_utils.topk_routing_with_score_function(logits, **args)
    shown = {key: value for key, value in args.items() if key != "expert_bias"}
    return {"name": name, "bias": bias.tolist() if bias is not None else [], **shown, **dense(probs, chosen)}


def sqrtsoftplus(logits, k):
    scores = torch.nn.functional.softplus(logits).sqrt()
    best = scores.topk(k, dim=1)
    weights = best.values / (best.values.sum(dim=1, keepdim=True) + 1e-20)
    probs = torch.zeros_like(logits).scatter(1, best.indices, weights)
    return {"name": "sqrtsoftplus", "bias": [], "score_function": "sqrtsoftplus", "topk": k, **dense(probs, probs > 0)}


def sinkhorn(logits, k):
    normalised = moe_utils.sinkhorn(logits)
    chosen = torch.zeros_like(logits).scatter(1, normalised.topk(k, dim=1).indices, 1).bool()
    scores = torch.softmax(logits, dim=1) if k > 1 else torch.sigmoid(logits)
    return {"name": "sinkhorn", "topk": k, "normalised": normalised.flatten().tolist(), **dense(scores * chosen, chosen)}


def main():
    torch.manual_seed(20)
    logits = 2 * torch.randn(TOKENS, EXPERTS, dtype=torch.float64)
    bias = 0.3 * torch.randn(EXPERTS, dtype=torch.float32)
    cases = [
        topk(logits, "softmax of the chosen", topk=3, score_function="softmax"),
        topk(logits, "softmax before", topk=3, score_function="softmax", use_pre_softmax=True, scaling_factor=2.5),
        topk(logits, "softmax of the chosen, groups", topk=4, score_function="softmax", num_groups=4, group_topk=2),
        topk(logits, "softmax before, groups", topk=4, score_function="softmax", use_pre_softmax=True, num_groups=4,
             group_topk=2, scaling_factor=16.0),
        topk(logits, "softmax before, groups by their best", topk=2, score_function="softmax", use_pre_softmax=True,
             num_groups=4, group_topk=2),
        topk(logits, "sigmoid", topk=3, score_function="sigmoid", scaling_factor=2.5),
        topk(logits, "sigmoid, one", topk=1, score_function="sigmoid"),
        topk(logits, "sigmoid, bias", topk=3, score_function="sigmoid", expert_bias=bias),
        topk(logits, "sigmoid, bias and groups", topk=4, score_function="sigmoid", expert_bias=bias, num_groups=4,
             group_topk=2, scaling_factor=2.5),
        sqrtsoftplus(logits, 3),
    ]
    golden = {
        "tokens": TOKENS,
        "experts": EXPERTS,
        "logits": logits.flatten().tolist(),
        "topk_routing_with_score_function": cases,
        "sinkhorn": [sinkhorn(logits, 1), sinkhorn(logits, 2)],
    }
    path = pathlib.Path(__file__).with_name("megatron_routing.json")
    path.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
