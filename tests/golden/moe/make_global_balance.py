"""Writes global_balance.json: the global balance loss by Megatron-LM's own code, of two ranks with two micro-batches.

    python make_global_balance.py MEGATRON_CORE

MEGATRON_CORE is the folder megatron/core. Made with megatron-core 0.16.1 and torch 2.15.0 on a CPU, in float64.
TopKRouter._apply_global_aux_loss() and the functions that it calls are taken from transformer/moe as they stand, since
the package as a whole needs GPUs; sums over ranks are made here.
"""

import ast
import json
import pathlib
import sys
from typing import Optional, Union

import torch

RANKS, ROUNDS, TOKENS, EXPERTS, TOPK = 2, 2, 12, 5, 2


def functions(path, names, given):
    tree = ast.parse(pathlib.Path(path).read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
    tree.body = found
    exec(compile(tree, str(path), "exec"), given)
    return given


class Group:
    def size(self):
        return RANKS


class Router:
    """What the method reads of a TopKRouter."""

    def __init__(self):
        self.global_tokens_per_expert = torch.zeros(EXPERTS, dtype=torch.float64)
        self.ga_steps = torch.tensor(0.0, dtype=torch.float64)
        self.topk = TOPK
        self.tp_dp_cp_group = Group()
        self.config = type("Config", (), {"num_moe_experts": EXPERTS, "moe_router_fusion": False})

    def get_aux_loss_coeff(self, name):
        return 1.0

    def attach_and_log_load_balancing_loss(self, probs, coefficient, loss, *rest, **more):
        return loss


def main(core):
    folder = pathlib.Path(core) / "transformer/moe"
    counts_of_ranks = []
    given = {"torch": torch, "Optional": Optional, "Union": Union,
             "reduce_from_tensor_model_parallel_region": lambda local, group: counts_of_ranks[-1]}
    functions(folder / "moe_utils.py", ["switch_load_balancing_loss_func", "get_tokens_per_expert_and_token_count"],
              given)
    apply = functions(folder / "router.py", ["_apply_global_aux_loss"], given)["_apply_global_aux_loss"]
    generator = torch.Generator().manual_seed(17)
    logits = torch.randn(RANKS, ROUNDS, TOKENS, EXPERTS, generator=generator, dtype=torch.float64)
    logits[..., 1] += torch.tensor([[2.0, -1.0], [0.5, 1.0]], dtype=torch.float64)[..., None]
    logits[..., 4] -= 30  # nobody chooses it
    logits.requires_grad_()
    probs = torch.softmax(logits, -1)
    chosen = torch.zeros_like(probs).scatter(-1, logits.topk(TOPK, -1).indices, 1)
    routers = [Router() for _ in range(RANKS)]
    losses = []
    for m in range(ROUNDS):
        counts_of_ranks.append(chosen[:, m].sum((0, 1)))
        # Each rank's is its share; the sum over ranks is what Megatron-LM logs, and a mean over ranks of 1s.
        losses.append(sum(apply(routers[r], probs[r, m], probs[r, m], chosen[r, m]) for r in range(RANKS)))
    golden = {"ranks": RANKS, "rounds": ROUNDS, "tokens": TOKENS, "experts": EXPERTS, "topk": TOPK,
              "logits": logits.flatten(0, 1).flatten(1).tolist(), "losses": [loss.item() for loss in losses],
              "gradient": torch.autograd.grad(sum(losses), logits)[0].flatten(0, 1).flatten(1).tolist()}
    here = pathlib.Path(__file__).parent
    (here / "global_balance.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
