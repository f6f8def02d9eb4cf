#!/usr/bin/env python3
"""Makes tiny random models of Megatron-Core, their checkpoints and their logits, for tests/convert/megatron_test.cpp, and
checks what `witan export --format megatron` writes.

    make_golden.py write FOLDER         each model: torch_dist/ and legacy/ checkpoints, expected.safetensors
    make_golden.py check FOLDER MODEL   loads FOLDER (as Witan exported MODEL) into Megatron-Core: the same logits

Made with torch 2.15.0 and megatron-core 0.16.1 on a CPU. Neither needs a GPU, but Megatron-Core asks for one here and
there: what it asks is answered below.
"""

import argparse
import contextlib
import json
import os
import queue
import shutil
import struct
import sys

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29637")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import megatron.core.tensor_parallel.random as random_states
import megatron.core.transformer.moe.moe_utils as moe_utils
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

WORDS, LENGTH = 40, 12


class NoStates:
    """In place of the states of CUDA's random numbers."""

    def is_initialized(self):
        return True

    def fork(self, *_):
        return contextlib.nullcontext()


def without_gpu():
    random_states._CUDA_RNG_STATE_TRACKER = NoStates()
    random_states._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
    moe_utils.te_general_gemm = None
    multi_latent_attention.TELinear = ()
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.synchronize = lambda *_: None
    filesystem_async._process_memory = lambda: 0
    filesystem_async._get_write_results_queue = queue.Queue

    class Once(queue.Queue):
        def task_done(self):
            pass

    def in_this_process(transforms, use_msc, rank, buckets, results):
        written = {}
        for i, bucket in enumerate(buckets):
            mine, count = Once(), Once()
            count.put(i)
            filesystem_async.FileSystemWriterAsync.write_preloaded_data(transforms, i, bucket, mine, count, False)
            written[i] = mine.get()[1]
        results.put(written)

    filesystem_async.FileSystemWriterAsync.write_preloaded_data_multiproc = staticmethod(in_this_process)


class SameHeads(DotProductAttention):
    """Of latent attention, where keys and values have heads of one size: only Transformer Engine knows others."""

    def __init__(self, *args, k_channels=None, v_channels=None, **keys):
        assert k_channels == v_channels
        super().__init__(*args, **keys)


COMMON = dict(num_layers=2, hidden_size=16, num_attention_heads=4, add_bias_linear=False, attention_dropout=0.0,
              hidden_dropout=0.0, norm_epsilon=1e-5, swiglu=True, normalization="RMSNorm",
              untie_embeddings_and_output_weights=True, position_embedding_type="rope", max_position_embeddings=32)
EXPERTS = dict(num_experts=4, moe_router_topk=2, moe_ffn_hidden_size=12, moe_router_pre_softmax=False,
               moe_router_score_function="softmax", moe_router_enable_expert_bias=False)
# The arguments of Megatron-LM's program, from which both Witan's configuration and this model are made.
MODELS = {
    "dense": dict(COMMON, ffn_hidden_size=24, group_query_attention=True, num_query_groups=2, kv_channels=4,
                  untie_embeddings_and_output_weights=False, rotary_base=500000, rotary_percent=1.0),
    "gpt": dict(COMMON, ffn_hidden_size=32, group_query_attention=False, kv_channels=4, swiglu=False,
                normalization="LayerNorm", add_bias_linear=True, position_embedding_type="learned_absolute"),
    "experts": dict(COMMON, **EXPERTS, ffn_hidden_size=24, group_query_attention=True, num_query_groups=2,
                    kv_channels=8, qk_layernorm=True),
    "shared": dict(COMMON, **dict(EXPERTS, moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True),
                   ffn_hidden_size=24, group_query_attention=True, num_query_groups=2, kv_channels=4,
                   moe_layer_freq=[0, 1], moe_shared_expert_intermediate_size=8, moe_router_topk_scaling_factor=2.5),
    "latent": dict(dict(COMMON, norm_epsilon=1e-6), **EXPERTS, ffn_hidden_size=24, multi_latent_attention=True, q_lora_rank=12, kv_lora_rank=8,
                   qk_head_dim=4, qk_pos_emb_head_dim=4, v_head_dim=8, qk_layernorm=True, rope_type="rope",
                   rotary_base=10000, rotary_percent=1.0),
}


def build(args):
    latent = args.get("multi_latent_attention", False)
    kind = MLATransformerConfig if latent else TransformerConfig
    gated = args["swiglu"]
    keys = dict(num_layers=args["num_layers"], hidden_size=args["hidden_size"],
                ffn_hidden_size=args["ffn_hidden_size"], num_attention_heads=args["num_attention_heads"],
                normalization=args["normalization"], layernorm_epsilon=args["norm_epsilon"], gated_linear_unit=gated,
                activation_func=torch.nn.functional.silu if gated else torch.nn.functional.gelu,
                add_bias_linear=args["add_bias_linear"], attention_dropout=0.0, hidden_dropout=0.0,
                qk_layernorm=args.get("qk_layernorm", False), use_cpu_initialization=True,
                bias_activation_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False)
    if latent:
        keys.update({k: args[k] for k in ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim",
                                          "v_head_dim", "rope_type", "rotary_base")})
    else:
        groups = args["num_query_groups"] if args["group_query_attention"] else args["num_attention_heads"]
        keys.update(num_query_groups=groups, kv_channels=args["kv_channels"])
    if args.get("num_experts"):
        keys.update(num_moe_experts=args["num_experts"], moe_token_dispatcher_type="allgather", moe_grouped_gemm=False,
                    moe_router_load_balancing_type="none", moe_aux_loss_coeff=0.0,
                    **{k: args[k] for k in ("moe_router_topk", "moe_ffn_hidden_size", "moe_router_pre_softmax",
                                            "moe_router_score_function", "moe_router_enable_expert_bias",
                                            "moe_layer_freq", "moe_shared_expert_intermediate_size",
                                            "moe_router_topk_scaling_factor") if args.get(k) is not None})
    config = kind(**keys)
    config.moe_layer_freq = args.get("moe_layer_freq", 1)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    if latent:
        config.kv_channels = args["v_head_dim"]
        for layer in spec.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = SameHeads
    model = GPTModel(config, spec, vocab_size=WORDS,
                     max_sequence_length=args["max_position_embeddings"],
                     position_embedding_type=args["position_embedding_type"],
                     rotary_percent=args.get("rotary_percent", 1.0), rotary_base=args.get("rotary_base", 10000),
                     share_embeddings_and_output_weights=not args["untie_embeddings_and_output_weights"])
    # As Transformer Engine's layers are named, which Megatron-LM builds: the norm before experts stands alone, those of
    # latents are part of the layers behind them.
    for layer in model.decoder.layers:
        layer.submodules_config.sharded_state_dict_keys_map = dict(
            layer.submodules_config.sharded_state_dict_keys_map or {})
        if type(layer.mlp).__name__ == "MoELayer":
            layer.submodules_config.sharded_state_dict_keys_map.pop("pre_mlp_layernorm.", None)
        if latent:
            for part in ("q", "kv"):
                layer.submodules_config.sharded_state_dict_keys_map[f"self_attention.{part}_layernorm."] = (
                    f"self_attention.linear_{part}_up_proj.layer_norm_")
    return model.eval()


def logits(model):
    ids = (torch.arange(LENGTH) * 7 % WORDS)[None]
    mask = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
    with torch.no_grad():
        return ids[0], model(ids, torch.arange(LENGTH)[None], mask)[0].float()


def write_safetensors(path, tensors):
    header, at, body = {}, 0, b""
    for name, tensor in tensors.items():
        data = tensor.contiguous().numpy().tobytes()
        kind = {torch.float32: "F32", torch.int64: "I64"}[tensor.dtype]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def ranks_of(state, ranks, args):
    """The state as `ranks` tensor-parallel ranks save it."""
    parts = [{} for _ in range(ranks)]
    for name, value in state.items():
        for rank, part in enumerate(parts):
            if not torch.is_tensor(value):
                part[name] = value
            elif "linear_fc1." in name and args["swiglu"]:
                gate, up = value.chunk(2, 0)
                part[name] = torch.cat([gate.chunk(ranks, 0)[rank], up.chunk(ranks, 0)[rank]]).clone()
            elif any(k in name for k in ("linear_fc1.", "linear_qkv.", "word_embeddings", "output_layer", "q_up_proj.",
                                         "kv_up_proj.", "linear_q_proj.")):
                part[name] = value.chunk(ranks, 0)[rank].clone()
            elif "linear_fc2.weight" in name or "linear_proj.weight" in name:
                part[name] = value.chunk(ranks, 1)[rank].clone()
            else:
                part[name] = value.clone()
    return parts


def write(out, name, args):
    torch.manual_seed(len(name))
    model = build(args)
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if torch.is_tensor(tensor):
                tensor.copy_(torch.randn_like(tensor) * 0.3 + (1.0 if "norm" in key and "weight" in key else 0.0))
    ids, expected = logits(model)
    folder = os.path.join(out, name)
    shutil.rmtree(folder, ignore_errors=True)
    saved = argparse.Namespace(**args, padded_vocab_size=WORDS, params_dtype=torch.float32,
                               tensor_model_parallel_size=2, pipeline_model_parallel_size=1,
                               expert_model_parallel_size=1)
    iteration = os.path.join(folder, "torch_dist", "iter_0000005")
    os.makedirs(iteration)
    dist_checkpointing.save({"model": model.sharded_state_dict(prefix=""), "args": saved, "iteration": 5,
                             "checkpoint_version": 3.0}, iteration)
    with open(os.path.join(folder, "torch_dist", "latest_checkpointed_iteration.txt"), "w") as file:
        file.write("5")
    for rank, part in enumerate(ranks_of(model.state_dict(), 2, args)):
        path = os.path.join(folder, "legacy", f"mp_rank_{rank:02d}")
        os.makedirs(path)
        torch.save({"args": saved, "checkpoint_version": 3.0, "iteration": 5, "model": part},
                   os.path.join(path, "model_optim_rng.pt"))
    write_safetensors(os.path.join(folder, "expected.safetensors"), {"input_ids": ids, "logits": expected})


def check(folder, name, golden):
    """Loads with megatron.core.dist_checkpointing, as Megatron-LM does, and compares logits."""
    model = build(MODELS[name])
    with open(os.path.join(folder, "latest_checkpointed_iteration.txt")) as file:
        tag = file.read().strip()
    path = os.path.join(folder, tag)
    state = dist_checkpointing.load({"model": model.sharded_state_dict(prefix="")}, path)["model"]
    model.load_state_dict(state)
    args = dist_checkpointing.load_common_state_dict(path)["args"]
    for key, value in MODELS[name].items():
        if getattr(args, key, None) != value:
            print(f"{name}: args.{key} = {getattr(args, key)}, not {value}")
    _, found = logits(model)
    with open(golden, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))["logits"]
        data = file.read()[header["data_offsets"][0]:header["data_offsets"][1]]
    expected = torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(found.shape)
    assert torch.equal(found, expected), (found - expected).abs().max()
    print(f"{name}: {len(state)} tensors, logits equal to the bit")


def main():
    without_gpu()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    if sys.argv[1] == "write":
        for name, args in MODELS.items():
            write(sys.argv[2], name, args)
    else:
        here = os.path.dirname(os.path.abspath(__file__))
        check(sys.argv[2], sys.argv[3], os.path.join(here, sys.argv[3], "expected.safetensors"))


if __name__ == "__main__":
    main()
