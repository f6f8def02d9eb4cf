#!/usr/bin/env python3
"""Makes tiny random models of Megatron-Core, their checkpoints and their logits, for tests/convert/megatron_test.cpp, and
checks what `witan export --format megatron` writes.

    make_golden.py write FOLDER         each model: torch_dist/ and legacy/ checkpoints, expected.safetensors
    make_golden.py check FOLDER MODEL   loads FOLDER (as Witan exported MODEL) into Megatron-Core: the same logits

Made with torch 2.15.0 and megatron-core 0.16.1 on a CPU. Neither needs a GPU, but Megatron-Core asks for one here and
there: what it asks is answered below. Of the packages whose kernels it takes for recurrent layers (mamba_ssm, fla) and
of Transformer Engine, which need one, plain functions of the same meaning stand in.
"""

import argparse
import contextlib
import copy
import json
import os
import queue
import re
import shutil
import struct
import sys
import types

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29637")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch


class GatedNorm(torch.nn.Module):
    """mamba_ssm's: x silu(z), normalised in groups."""

    def __init__(self, width, eps, group_size, norm_before_gate, device, dtype):
        super().__init__()
        self.eps, self.group = eps, group_size
        self.weight = torch.nn.Parameter(torch.ones(width, dtype=dtype))

    def forward(self, x, z):
        x = x * torch.nn.functional.silu(z)
        groups = x.reshape(*x.shape[:-1], -1, self.group)
        groups = groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + self.eps)
        return groups.reshape(x.shape) * self.weight


def scan(x, dt, A, B, C, chunk_size, D, dt_bias, **_):
    """The recurrence of Mamba-2: x [b, l, h, p], dt [b, l, h], A, D, dt_bias [h], B and C [b, l, g, n]."""
    heads = x.shape[2] // B.shape[2]
    B, C = B.repeat_interleave(heads, 2), C.repeat_interleave(heads, 2)
    dt = torch.nn.functional.softplus(dt + dt_bias)
    state, y = torch.zeros(*x.shape[:1], *x.shape[2:], B.shape[-1]), []
    for t in range(x.shape[1]):
        state = state * torch.exp(dt[:, t] * A)[..., None, None]
        state = state + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        y.append((state * C[:, t, :, None]).sum(-1) + D[:, None] * x[:, t])
    return torch.stack(y, 1)


def l2norm(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def stand_in(name, **members):
    parts = name.split(".")
    for i in range(len(parts)):
        sys.modules.setdefault(".".join(parts[:i + 1]), types.ModuleType(parts[i]))
    for key, value in members.items():
        setattr(sys.modules[name], key, value)


stand_in("mamba_ssm.ops.triton.layernorm_gated", RMSNorm=GatedNorm)
stand_in("mamba_ssm.ops.triton.ssd_combined", mamba_chunk_scan_combined=scan, mamba_split_conv1d_scan_combined=None)
stand_in("fla.modules.l2norm", l2norm=l2norm)
stand_in("fla.ops.gated_delta_rule", chunk_gated_delta_rule=None)
import megatron.core.tensor_parallel.random as random_states
import megatron.core.transformer.moe.moe_utils as moe_utils
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.models.mamba.mamba_model import MambaModel
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.ssm import mamba_block
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.moe import moe_layer
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
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
    mamba_block.TENorm = WrappedTorchNorm
    moe_layer.HAVE_TE, moe_layer.TELinear = True, WholeLinear
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


class WholeLinear(torch.nn.Linear):
    """Transformer Engine's TELinear of a matrix that every rank has."""

    def __init__(self, inputs, outputs, **_):
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x):
        return super().forward(x), None

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        return make_sharded_tensors_for_checkpoint(self.state_dict(keep_vars=True), prefix, {}, sharded_offsets)


class CentredNorm(WrappedTorchNorm):
    """Torch's RMSNorm multiplies by the weight; Transformer Engine's by 1 + weight with apply_layernorm_1p."""

    def __new__(cls, config, hidden_size, eps=1e-5, **_):
        return Centred(hidden_size, eps) if config.layernorm_zero_centered_gamma else torch.nn.RMSNorm(hidden_size, eps)


class Centred(torch.nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.zeros(width)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


def delta_spec(config, spec):
    """Gated DeltaNet in the layers that linear_attention_freq chooses, and norms that are centred at zero."""
    spec.layer_specs = [copy.deepcopy(layer) for layer in spec.layer_specs]
    for chosen, layer in zip(config.linear_attention_freq, spec.layer_specs):
        parts = layer.submodules
        parts.input_layernorm = CentredNorm
        if parts.pre_mlp_layernorm is not None:
            parts.pre_mlp_layernorm = CentredNorm
        parts.sharded_state_dict_keys_map = dict(parts.sharded_state_dict_keys_map)
        if not chosen:
            parts.self_attention.submodules.q_layernorm = parts.self_attention.submodules.k_layernorm = CentredNorm
            continue
        parts.sharded_state_dict_keys_map["input_layernorm."] = "self_attention.in_proj.layer_norm_"
        parts.self_attention = ModuleSpec(module=GatedDeltaNet, submodules=GatedDeltaNetSubmodules(
            in_proj=ColumnParallelLinear, out_norm=CentredNorm, out_proj=RowParallelLinear))
    spec.layer_norm = CentredNorm


def hybrid_spec(config):
    """The layers of megatron.core.models.mamba.mamba_layer_specs, without Transformer Engine."""
    def layer(kind, parts, fused):
        return ModuleSpec(module=kind, submodules=type(parts)(**{**parts.__dict__, "sharded_state_dict_keys_map": fused}))
    moe = get_moe_module_spec(use_te=False, num_experts=4, moe_grouped_gemm=False)
    return ModuleSpec(module=mamba_block.MambaStack, submodules=mamba_block.MambaStackSubmodules(
        mamba_layer=layer(MambaLayer, MambaLayerSubmodules(
            norm=WrappedTorchNorm, mamba_bda=get_bias_dropout_add,
            mixer=ModuleSpec(module=MambaMixer, submodules=MambaMixerSubmodules(
                in_proj=ColumnParallelLinear, out_proj=RowParallelLinear))),
            {"norm.": "mixer.in_proj.layer_norm_"}),
        attention_layer=layer(TransformerLayer, TransformerLayerSubmodules(
            input_layernorm=WrappedTorchNorm, self_attn_bda=get_bias_dropout_add,
            self_attention=ModuleSpec(module=SelfAttention, params={"attn_mask_type": AttnMaskType.causal},
                                      submodules=SelfAttentionSubmodules(
                                          linear_qkv=ColumnParallelLinear, core_attention=DotProductAttention,
                                          linear_proj=RowParallelLinear))),
            {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}),
        mlp_layer=layer(MLPLayer, TransformerLayerSubmodules(
            pre_mlp_layernorm=WrappedTorchNorm, mlp_bda=get_bias_dropout_add,
            mlp=ModuleSpec(module=MLP, submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear,
                                                                linear_fc2=RowParallelLinear))),
            {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}),
        moe_layer=layer(TransformerLayer, TransformerLayerSubmodules(
            pre_mlp_layernorm=WrappedTorchNorm, mlp_bda=get_bias_dropout_add, mlp=moe), {})))


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
    "mamba": dict(COMMON, **dict(EXPERTS, moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True),
                  num_layers=5, hybrid_override_pattern="ME*-M", is_hybrid_model=True, mamba_num_heads=4,
                  mamba_head_dim=6, mamba_state_dim=5, mamba_num_groups=2, ffn_hidden_size=24, swiglu=False,
                  squared_relu=True, group_query_attention=True, num_query_groups=2, kv_channels=6,
                  position_embedding_type="none", moe_shared_expert_intermediate_size=8, moe_latent_size=10,
                  moe_router_topk_scaling_factor=2.5),
    "delta": dict(COMMON, **EXPERTS, num_layers=3, ffn_hidden_size=24, group_query_attention=True, num_query_groups=2,
                  kv_channels=8, qk_layernorm=True, apply_layernorm_1p=True, attention_output_gate=True,
                  experimental_attention_variant="gated_delta_net", linear_attention_freq=[1, 0, 1],
                  linear_conv_kernel_dim=3, linear_key_head_dim=6, linear_value_head_dim=10, linear_num_key_heads=2,
                  linear_num_value_heads=4, rotary_percent=0.5, rotary_base=10000,
                  moe_shared_expert_intermediate_size=8, moe_shared_expert_gate=True),
}
RECURRENT = ("mamba_num_heads", "mamba_head_dim", "mamba_state_dim", "mamba_num_groups", "experimental_attention_variant",
             "linear_attention_freq", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim",
             "linear_num_key_heads", "linear_num_value_heads", "attention_output_gate")


def squared_relu(x):
    return torch.nn.functional.relu(x).square()


def build(args):
    latent = args.get("multi_latent_attention", False)
    kind = MLATransformerConfig if latent else TransformerConfig
    gated = args["swiglu"]
    keys = dict(num_layers=args["num_layers"], hidden_size=args["hidden_size"],
                ffn_hidden_size=args["ffn_hidden_size"], num_attention_heads=args["num_attention_heads"],
                normalization=args["normalization"], layernorm_epsilon=args["norm_epsilon"], gated_linear_unit=gated,
                activation_func=torch.nn.functional.silu if gated else squared_relu if args.get("squared_relu")
                else torch.nn.functional.gelu,
                add_bias_linear=args["add_bias_linear"], attention_dropout=0.0, hidden_dropout=0.0,
                qk_layernorm=args.get("qk_layernorm", False), use_cpu_initialization=True,
                bias_activation_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False)
    if latent:
        keys.update({k: args[k] for k in ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim",
                                          "v_head_dim", "rope_type", "rotary_base")})
    else:
        groups = args["num_query_groups"] if args["group_query_attention"] else args["num_attention_heads"]
        keys.update(num_query_groups=groups, kv_channels=args["kv_channels"])
    keys.update({k: args[k] for k in RECURRENT if k in args})
    if "hybrid_override_pattern" in args:
        keys.update(use_mamba_mem_eff_path=False)
    if "linear_attention_freq" in args:
        keys.update(deterministic_mode=True, layernorm_zero_centered_gamma=args["apply_layernorm_1p"])
    if args.get("num_experts"):
        keys.update(num_moe_experts=args["num_experts"], moe_token_dispatcher_type="allgather", moe_grouped_gemm=False,
                    moe_router_load_balancing_type="none", moe_aux_loss_coeff=0.0,
                    **{k: args[k] for k in ("moe_router_topk", "moe_ffn_hidden_size", "moe_router_pre_softmax",
                                            "moe_router_score_function", "moe_router_enable_expert_bias",
                                            "moe_layer_freq", "moe_shared_expert_intermediate_size",
                                            "moe_router_topk_scaling_factor", "moe_shared_expert_gate",
                                            "moe_latent_size") if args.get(k) is not None})
    config = kind(**keys)
    config.moe_layer_freq = args.get("moe_layer_freq", 1)
    if "hybrid_override_pattern" in args:
        return MambaModel(config, hybrid_spec(config), vocab_size=WORDS,
                          max_sequence_length=args["max_position_embeddings"],
                          hybrid_override_pattern=args["hybrid_override_pattern"],
                          share_embeddings_and_output_weights=not args["untie_embeddings_and_output_weights"]).eval()
    centred = config.layernorm_zero_centered_gamma
    config.layernorm_zero_centered_gamma = False  # which Torch's norms refuse
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    config.layernorm_zero_centered_gamma = centred
    if "linear_attention_freq" in args:
        delta_spec(config, spec)
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


def parts_of(name, args):
    """The rows of the parts that a recurrent mixer's tensor joins."""
    if "mixer." in name:
        inner, groups = args["mamba_num_heads"] * args["mamba_head_dim"], args["mamba_num_groups"] * args["mamba_state_dim"]
        sizes = [inner, inner, groups, groups, args["mamba_num_heads"]]
        return sizes if "in_proj" in name else sizes[1:4]
    heads = args["linear_num_value_heads"]
    keys, values = args["linear_num_key_heads"] * args["linear_key_head_dim"], heads * args["linear_value_head_dim"]
    sizes = [keys, keys, values, values, heads, heads]
    return sizes if "in_proj" in name else sizes[:3]


def ranks_of(state, ranks, args):
    """The state as `ranks` tensor-parallel ranks save it."""
    parts = [{} for _ in range(ranks)]
    for name, value in state.items():
        if re.fullmatch(r"decoder\.layers\.\d+\.norm\.weight", name):  # as Transformer Engine's layers hold it
            name = name.replace("norm.weight", "mixer.in_proj.layer_norm_weight")
        for rank, part in enumerate(parts):
            if not torch.is_tensor(value):
                part[name] = value
            elif "linear_fc1." in name and args["swiglu"]:
                gate, up = value.chunk(2, 0)
                part[name] = torch.cat([gate.chunk(ranks, 0)[rank], up.chunk(ranks, 0)[rank]]).clone()
            elif ".in_proj.weight" in name or ".conv1d." in name:
                part[name] = torch.cat([one.chunk(ranks, 0)[rank] for one in value.split(parts_of(name, args))]).clone()
            elif name.endswith((".A_log", ".D", ".dt_bias", "mixer.norm.weight")):
                part[name] = value.chunk(ranks, 0)[rank].clone()
            elif ".out_proj.weight" in name:
                part[name] = value.chunk(ranks, 1)[rank].clone()
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
            if key.endswith("out_norm.weight"):  # Witan adds 1, which rounds other numbers
                tensor.copy_((tensor * 1024).round() / 1024)
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
