"""Writes balance.json: losses of balance, z-loss and quantile balancing by Megatron-LM's own functions.

    python make_balance.py MEGATRON_LM_CHECKOUT

Made with Megatron-LM at commit d98e8a64ddf34856e74b24714e3bedb2f5a39553 and torch 2.15.0 on a CPU, in float64. Only the
functions named below are taken from megatron/core/transformer/moe/moe_utils.py, since the package as a whole needs
GPUs.
"""

import ast
import json
import pathlib
import sys
from typing import List, Optional, Tuple, Union

import torch

NAMES = ["switch_load_balancing_loss_func", "z_loss_func", "qb_dual_update"]
SEQUENCES, LENGTH, EXPERTS, TOPK = 2, 12, 6, 2


def functions(checkout):
    path = pathlib.Path(checkout) / "megatron/core/transformer/moe/moe_utils.py"
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in NAMES]
    names = {"torch": torch, "List": List, "Optional": Optional, "Tuple": Tuple, "Union": Union}
    exec(compile(tree, str(path), "exec"), names)
    return [names[name] for name in NAMES]


def main(checkout):
    balance, z_loss, qb_dual_update = functions(checkout)
    generator = torch.Generator().manual_seed(16)
    tokens = SEQUENCES * LENGTH
    logits = torch.randn(tokens, EXPERTS, generator=generator, dtype=torch.float64)
    logits[:, 2] += 1.5
    logits[:, 4] -= 30  # nobody chooses it
    logits.requires_grad_()
    probs = torch.softmax(logits, -1)
    chosen = torch.zeros_like(probs).scatter(1, logits.topk(TOPK, 1).indices, 1)
    micro_batch = balance(probs, chosen.sum(0), tokens, TOPK, EXPERTS, 1.0)
    # As Megatron-LM's router: sequences side by side, tokens along dim 0.
    side_by_side = lambda x: x.reshape(SEQUENCES, LENGTH, EXPERTS).transpose(0, 1).reshape(LENGTH, -1)
    sequence = balance(side_by_side(probs), side_by_side(chosen).sum(0), LENGTH, TOPK, EXPERTS, 1.0) / SEQUENCES
    z = z_loss(logits, 1.0)
    gradient = lambda loss: torch.autograd.grad(loss, logits, retain_graph=True)[0].flatten().tolist()
    golden = {
        "sequences": SEQUENCES, "length": LENGTH, "experts": EXPERTS, "topk": TOPK,
        "logits": logits.flatten().tolist(),
        "micro_batch": micro_batch.item(), "micro_batch_gradient": gradient(micro_batch),
        "sequence": sequence.item(), "sequence_gradient": gradient(sequence),
        "z": z.item(), "z_gradient": gradient(z),
        "quantile": [],
    }
    # Three steps of two micro-batches, each updated as by _update_router_qb_beta() with an average of 0.
    beta = torch.zeros(EXPERTS, dtype=torch.float64)
    for step in range(3):
        found = []
        for micro in range(2):
            scores = torch.randn(tokens, EXPERTS, generator=generator, dtype=torch.float64)
            scores += torch.linspace(-1, 1, EXPERTS, dtype=torch.float64)
            indices, local = qb_dual_update(scores, TOPK, beta)
            found.append(local)
            golden["quantile"].append({"beta": beta.tolist(), "logits": scores.flatten().tolist(),
                                       "indices": indices.flatten().tolist(), "found": local.tolist()})
        beta = torch.stack(found).mean(0)
        beta = (beta - beta.mean()).float().double()
    golden["last_beta"] = beta.tolist()
    here = pathlib.Path(__file__).parent
    (here / "balance.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
