#!/usr/bin/env python3
"""Writes experts.tsv, which tests/moe/layer/golden_experts_test.cpp reads: layers of transformers on random weights,
their outputs and gradients of sum(y * dy), in float64. A line is a name and values in hexadecimal, of a row-major tensor.

Made with torch 2.15.0 and transformers 5.23.0, on a CPU:  make_experts.py > experts.tsv
"""

import torch
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.qwen2_moe.configuration_qwen2_moe import Qwen2MoeConfig
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock

torch.set_default_dtype(torch.float64)
torch.manual_seed(7)
E, K, D, F, T = 4, 2, 5, 3, 6


def show(name, tensor):
    print("\t".join([name] + [float(v).hex() for v in tensor.detach().flatten()]))


def gpt_oss():
    """Experts with biases; a clamp that is reached, by inputs of deviation 4."""
    config = GptOssConfig(num_local_experts=E, num_experts_per_tok=K, hidden_size=D, intermediate_size=F)
    config._experts_implementation = "eager"
    experts = GptOssExperts(config)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter)
    x = (4 * torch.randn(T, D)).requires_grad_()
    ids = torch.stack([torch.randperm(E - 1)[:K] for _ in range(T)])  # the last expert stays without tokens
    weights = torch.rand(T, K).requires_grad_()
    y = experts(x, ids, weights)
    dy = torch.randn(T, D)
    (y * dy).sum().backward()

    # Interleaved gates and ups, [E, D, 2F] -> all gates, then all ups, [E, 2F, D].
    def apart(t):
        return torch.cat([t[..., ::2], t[..., 1::2]], -1)

    show("gpt_oss.x", x)
    show("gpt_oss.ids", ids)
    show("gpt_oss.weights", weights)
    show("gpt_oss.dy", dy)
    show("gpt_oss.y", y)
    show("gpt_oss.dx", x.grad)
    show("gpt_oss.dweights", weights.grad)
    for name, of in (("", lambda p: p), ("d", lambda p: p.grad)):
        show(f"gpt_oss.{name}gate_up_proj", apart(of(experts.gate_up_proj)).transpose(1, 2))
        show(f"gpt_oss.{name}down_proj", of(experts.down_proj).transpose(1, 2))
        show(f"gpt_oss.{name}gate_up_proj_bias", apart(of(experts.gate_up_proj_bias)))
        show(f"gpt_oss.{name}down_proj_bias", of(experts.down_proj_bias))


def qwen2_moe():
    """The whole layer: softmax over all experts, weights as they are, a shared expert of its own size with a gate."""
    config = Qwen2MoeConfig(num_experts=E, num_experts_per_tok=K, hidden_size=D, moe_intermediate_size=F,
                            shared_expert_intermediate_size=4, norm_topk_prob=False)
    config._experts_implementation = "eager"
    layer = Qwen2MoeSparseMoeBlock(config)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, T, D).requires_grad_()
    y = layer(x)
    y = y[0] if isinstance(y, tuple) else y
    dy = torch.randn(1, T, D)
    (y * dy).sum().backward()
    show("qwen2_moe.x", x)
    show("qwen2_moe.dy", dy)
    show("qwen2_moe.y", y)
    show("qwen2_moe.dx", x.grad)
    shared = layer.shared_expert
    for name, of in (("", lambda p: p), ("d", lambda p: p.grad)):
        show(f"qwen2_moe.{name}router", of(layer.gate.weight))
        show(f"qwen2_moe.{name}gate_up_proj", of(layer.experts.gate_up_proj))
        show(f"qwen2_moe.{name}down_proj", of(layer.experts.down_proj))
        show(f"qwen2_moe.{name}shared_gate_up_proj", torch.cat([of(shared.gate_proj.weight), of(shared.up_proj.weight)]))
        show(f"qwen2_moe.{name}shared_down_proj", of(shared.down_proj.weight))
        show(f"qwen2_moe.{name}shared_gate", of(layer.shared_expert_gate.weight))


gpt_oss()
qwen2_moe()
