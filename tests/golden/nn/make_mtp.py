#!/usr/bin/env python3
"""Writes mtp.tsv, which tests/model/mtp_test.cpp reads: a tiny GPTModel of Megatron-LM with two modules of multi-token
prediction, in float64. The first lines are the losses of the model and of each module; then of every parameter's
gradient g of the loss with theirs the sum of g_i cos(0.7 i). A line is the parameter's name in Witan, the phase of its
values and that sum; parameters are sin(1.3 i + phase) / 2, and 1 more in norms.

Made with megatron-core 0.16.1 and torch 2.15.0, on a CPU, with the layers that need no GPU:  make_mtp.py > mtp.tsv
"""

import contextlib
import os
import sys

import torch

torch.set_default_dtype(torch.float64)
# The loss and the rotation are formed in float32, whatever the model's dtype: here in float64 too.
torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
torch.cuda.current_device = lambda: "cpu"

from megatron.core import parallel_state  # noqa: E402
from megatron.core.models.gpt import gpt_layer_specs  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker  # noqa: E402
from megatron.core.transformer import multi_token_prediction  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()  # nothing is drawn
V, D, H, F, L, MODULES, B, S = 16, 8, 2, 12, 2, 2, 2, 7
HD, FACTOR = D // H, 0.3
TOKENS = [[(5 * i * i + 3 * i + 2 * b) % V for i in range(S + 1)] for b in range(B)]
MASK = [[0.0 if (i + b) % 5 == 2 else 1.0 for i in range(S)] for b in range(B)]


def model():
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(
        num_layers=L, hidden_size=D, num_attention_heads=H, num_query_groups=H, ffn_hidden_size=F,
        use_cpu_initialization=True, params_dtype=torch.float64, normalization="RMSNorm", gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, add_bias_linear=False, layernorm_epsilon=1e-5, hidden_dropout=0.0,
        attention_dropout=0.0, bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        apply_rope_fusion=False, attention_softmax_in_fp32=False, gradient_accumulation_fusion=False,
        persist_layer_norm=False, mtp_num_layers=MODULES, mtp_loss_scaling_factor=FACTOR)
    spec = gpt_layer_specs.get_gpt_layer_local_spec(normalization="RMSNorm")
    mtp = gpt_layer_specs.get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
    return GPTModel(config, spec, V, S, position_embedding_type="rope", share_embeddings_and_output_weights=False,
                    mtp_block_spec=mtp)


def names():
    """Witan's parameters, in order, each with Megatron-LM's, and which rows of it they are."""
    whole = slice(None)
    qkv = {p: [h * 3 * HD + i * HD + c for h in range(H) for c in range(HD)] for i, p in enumerate("qkv")}
    rows = [("embedding.weight", "embedding.word_embeddings.weight", whole)]

    def block(ours, theirs):
        rows.append((f"{ours}.attention_norm.weight", f"{theirs}.input_layernorm.weight", whole))
        for p in "qkv":
            rows.append((f"{ours}.attention.{p}_proj.weight", f"{theirs}.self_attention.linear_qkv.weight", qkv[p]))
        rows.append((f"{ours}.attention.o_proj.weight", f"{theirs}.self_attention.linear_proj.weight", whole))
        rows.append((f"{ours}.mlp_norm.weight", f"{theirs}.pre_mlp_layernorm.weight", whole))
        rows.append((f"{ours}.mlp.gate_up_proj.weight", f"{theirs}.mlp.linear_fc1.weight", whole))
        rows.append((f"{ours}.mlp.down_proj.weight", f"{theirs}.mlp.linear_fc2.weight", whole))

    for layer in range(L):
        block(f"layers.{layer}", f"decoder.layers.{layer}")
    rows.append(("final_norm.weight", "decoder.final_layernorm.weight", whole))
    rows.append(("head.weight", "output_layer.weight", whole))
    for k in range(MODULES):
        ours, theirs = f"mtp.{k}", f"mtp.layers.{k}"
        for part in ("enorm", "hnorm", "eh_proj"):
            rows.append((f"{ours}.{part}.weight", f"{theirs}.{part}.weight", whole))
        block(f"{ours}.block", f"{theirs}.transformer_layer")
        rows.append((f"{ours}.norm.weight", f"{theirs}.final_layernorm.weight", whole))
    return rows


def main():
    gpt = model()
    theirs = dict(gpt.named_parameters())
    known = {name for _, name, _ in names()}
    assert known == set(theirs), known ^ set(theirs)
    for phase, (ours, name, rows) in enumerate(names()):
        with torch.no_grad():
            part = theirs[name][rows]
            values = torch.sin(1.3 * torch.arange(part.numel(), dtype=torch.float64) + phase) / 2
            theirs[name][rows] = values.reshape(part.shape) + (1 if "norm" in ours else 0)
    tokens, mask = torch.tensor(TOKENS), torch.tensor(MASK)
    found = []
    multi_token_prediction.MTPLossLoggingHelper.save_loss_to_tracker = (
        lambda loss, *rest, **more: found.append(loss.item()))
    hidden = torch.triu(torch.ones(1, 1, S, S, dtype=torch.bool), diagonal=1)
    each = gpt(tokens[:, :-1], torch.arange(S).expand(B, S), hidden, labels=tokens[:, 1:], loss_mask=mask)
    loss = (each * mask).sum() / mask.sum()
    loss.backward()
    print(f"loss\t0\t{loss.item()!r}")
    for k, value in enumerate(found):
        print(f"mtp_{k + 1}\t0\t{value!r}")
    for phase, (ours, name, rows) in enumerate(names()):
        gradient = theirs[name].grad[rows].flatten()
        total = (gradient * torch.cos(0.7 * torch.arange(gradient.numel(), dtype=torch.float64))).sum()
        print(f"{ours}\t{phase}\t{total.item()!r}")


if __name__ == "__main__":
    sys.exit(main())
