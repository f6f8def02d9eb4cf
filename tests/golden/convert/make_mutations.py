#!/usr/bin/env python3
"""Writes mutations.json beside this script: for each model here what transformers makes of its weights when keys of its
config.json are absent, null or others. `changes` has what was done to some model: an object of keys that were set, and
after it a list of keys that were taken away. For each of `models`, `outcomes` has logits of the last of the tokens of
expected.safetensors, a list for each model that came about, the unchanged one first; `mutations` has pairs of a change and
the outcome, by their numbers; null stands for files that transformers refuses, that lack tensors which it needs, or with
which it computes infinite values or NaN.

`make_mutations.py NAME ...` makes those of these models anew and keeps the others.

Made with Python 3.11, torch 2.15.0 (CPU) and transformers 5.24.0, float32. The file is committed; run this only to change
it.
"""
import json
import logging
import pathlib
import sys
import tempfile
import warnings

import torch
import transformers
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).parent
# All models but one of a model_type that transformers does not know, and vision-language models whose text decoder is
# of a type that has a model here. Of others the text decoder's keys are changed.
NAMES = sorted(path.parent.name for path in HERE.glob("*/config.json")
               if path.parent.name not in ("kimi_k2", "kimi_k25", "llava", "qwen3_5", "qwen3_5_moe", "qwen3_next_even",
                                               "gemma3", "gemma4", "nemotron_h_dense", "nemotron_h_latent",
                                               "nemotron_h_moe", "granitemoehybrid_dense", "granitemoehybrid_even", "lfm2_even", "lfm2_moe_even", "ernie4_5_moe_even"))
LOGITS = 8
DROP = object()
# Keys that say nothing of what is computed, or that would only make other tensors necessary.
LEFT_OUT = {"model_type", "architectures", "transformers_version", "dtype", "vocab_size", "bos_token_id", "eos_token_id",
            "pad_token_id", "use_cache"}
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
TEXTS = {"hidden_act": ["gelu", "gelu_pytorch_tanh", "relu", "swish", "no_such"],
         "activation_function": ["gelu", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "relu", "silu"],
         "topk_method": ["greedy", "group_limited_greedy", "noaux_tc", "no_such"],
         "scoring_func": ["softmax", "sigmoid"]}
# Given to every model, whether it has the key or not.
EVERYWHERE = {
    "attention_bias": [True], "mlp_bias": [True], "tie_word_embeddings": [True, False, DROP, None], "head_dim": [4, 8, None],
    "num_key_value_heads": [None, DROP, 1, 2, 4], "sliding_window": [3, 1, 0, None, DROP, False], "use_sliding_window": [True],
    "max_window_layers": [0, 1, 9], "layer_types": ["FULL", "SLIDING", "ALTERNATE", [], None, DROP],
    "partial_rotary_factor": [0.5, 1.0, 0, None], "rope_interleave": [True, False, None, DROP, 0],
    "rope_interleaved": [True, False], "clip_qkv": [0, 0.5, None, DROP, -1.0, False],
    "norm_topk_prob": [True, False, None, DROP, 0], "n_group": [None, DROP, 1, 2, 0], "topk_group": [None, DROP, 1, 2, 0],
    "routed_scaling_factor": [2.5, 1, 0, None, DROP], "moe_layer_freq": [1, 2, 0], "decoder_sparse_step": [1, 2, 0],
    "mlp_only_layers": [[], [0], [1], None], "first_k_dense_replace": [0, 1, 2, None, DROP], "n_shared_experts": [0, None],
    "scale_attn_by_inverse_layer_idx": [True], "scale_attn_weights": [False], "reorder_and_upcast_attn": [True],
    "swiglu_limit": [0, 2.0, None, DROP], "swiglu_alpha": [1.0, 0, None], "scoring_func": ["softmax", "sigmoid"],
    "topk_method": TEXTS["topk_method"] + [None, DROP], "original_max_position_embeddings": [8], "num_experts": [None, 4],
    "num_local_experts": [None, 4], "num_experts_per_tok": [1, 2], "router_jitter_noise": [0.5], "hidden_act": TEXTS["hidden_act"],
    "rms_norm_eps": [0.1, 0, DROP, None], "layer_norm_epsilon": [0.1, 0, DROP, None], "qk_layernorm": [True, False],
    "is_decoder": [True], "add_cross_attention": [True], "pretraining_tp": [2], "attention_multiplier": [0.5],
    "tie_last_hidden_states": [True], "num_hidden_layers": [1], "chunk_size_feed_forward": [1], "q_lora_rank": [0],
    "max_position_embeddings": [16, 1, DROP, None], "n_positions": [DROP, None], "rope_theta": [5e5, 1e4, 1, 0, None, 7],
}
WINDOWS = [dict(use_sliding_window=use, sliding_window=sees, max_window_layers=first, layer_types=types)
           for use in (True, False, DROP) for sees in (4, None, DROP) for first in (0, 1, DROP)
           for types in (DROP, "FULL", "SLIDING", "ALTERNATE")]
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
ROPES = [dict(rope_type="default"), dict(rope_type="linear", factor=2.0), dict(YARN), dict(LLAMA3), dict(rope_type="no_such")]
OF_ROPE = {
    "rope_theta": [DROP, None, 5e5, 0, 1], "rope_type": [DROP, None, "linear", "default"], "type": ["linear", "yarn", None],
    "factor": [DROP, None, 0, 1, 1.0, 0.5, 3], "partial_rotary_factor": [0.5, 1, None, 0], "beta_fast": [0, None, 4, 1],
    "beta_slow": [0, None, 2, 64], "mscale": [0, None, 0.7, 1.0], "mscale_all_dim": [0, None, 0.7, 1.0],
    "attention_factor": [0, None, 1.0, 1.2, 0.5], "truncate": [True, False, None, 0],
    "original_max_position_embeddings": [DROP, None, 0, 8], "low_freq_factor": [DROP, None, 0, 2.0],
    "high_freq_factor": [DROP, None, 1.0, 2.0], "something_else": [1],
}


def others(key, value):
    """Other values that a key with this one may have."""
    if isinstance(value, bool):
        return [not value, int(not value)]
    if isinstance(value, int):
        return [value + 1, 2 * value, value // 2, 1, float(value)]
    if isinstance(value, float):
        return [2 * value, value / 2, 1]
    if isinstance(value, str):
        return TEXTS.get(key, []) + ["no_such"]
    return []


def types_of(config, word):
    layers = config.get("num_hidden_layers", config.get("n_layer", len(config.get("layers_block_type", []))))
    return {"FULL": [FULL] * layers, "SLIDING": [SLIDING] * layers,
            "ALTERNATE": [(FULL, SLIDING)[layer % 2] for layer in range(layers)],
            "LINEAR": [LINEAR] * layers, "HYBRID": [(LINEAR, FULL)[layer % 2] for layer in range(layers)]}[word]


def ropes(config):
    """Changes of rotary positions: in the present spelling, the older one, and the one by types of layers."""
    given = config.get("rope_parameters")
    if given is None:
        return
    nested = FULL in given
    for scaling in ROPES + [None, {}, dict(type="linear", factor=2.0)]:
        yield dict(rope_parameters=scaling)
        yield dict(rope_parameters=DROP, rope_scaling=scaling)
        yield dict(rope_parameters=DROP, rope_scaling=scaling, rope_theta=7e3)
        yield dict(rope_scaling=scaling)
    bases = [given[FULL], given[SLIDING]] if nested else [given, *ROPES[1:4]]
    for at, base in enumerate(bases):
        for key, values in OF_ROPE.items():
            for value in values:
                part = dict(base) if nested else {"rope_theta": 1e4, **base}
                part.pop(key, None) if value is DROP else part.update({key: value})
                yield dict(rope_parameters={**given, (FULL, SLIDING)[at]: part} if nested else part)
    if nested:
        for key in (FULL, SLIDING):
            for part in (None, {}, dict(YARN, rope_theta=5e5), dict(rope_type="linear", factor=2.0)):
                yield dict(rope_parameters={**given, key: part})
            yield dict(rope_parameters={k: v for k, v in given.items() if k != key})


def changes(config, defaults):
    for key, value in config.items():
        if key not in LEFT_OUT:
            for other in [DROP, None, 0, False, *others(key, value)]:
                yield {key: other}
    for key in defaults:
        if key not in LEFT_OUT and key not in config:
            for other in [None, 0, False, *others(key, defaults[key])]:
                yield {key: other}
    for key, values in EVERYWHERE.items():
        for value in values:
            yield {key: value}
    if "n_layer" not in config and "linear_num_key_heads" not in config:
        yield from WINDOWS
    if "query_pre_attn_scalar" in config:
        for base in (7e3, 1, 0, None):
            yield dict(rope_parameters=DROP, rope_local_base_freq=base)
            yield dict(rope_local_base_freq=base)
        for period in (1, 2, 3, 0, None):
            yield dict(layer_types=DROP, sliding_window_pattern=period)
            yield dict(sliding_window_pattern=period)
        for value in (5.0, 1, 0, None):
            yield dict(attn_logit_softcapping=value)
            yield dict(final_logit_softcapping=value)
        for value in (6, 16, 1, 0, None, 6.5):
            yield dict(query_pre_attn_scalar=value)
        yield dict(use_bidirectional_attention=True)
        for function in ("gelu", "silu", "no_such"):
            yield dict(hidden_activation=function)
    if "attention_k_eq_v" in config:
        for channels in (10, 6, 0, None):
            yield dict(per_layer_config=DROP, global_head_dim=channels, num_global_key_value_heads=1)
            yield dict(global_head_dim=channels)
        for groups in (1, 2, None):
            yield dict(per_layer_config=DROP, global_head_dim=10, num_global_key_value_heads=groups)
            yield dict(num_global_key_value_heads=groups)
        heads = dict(head_dim=10, num_key_value_heads=1)
        for overrides in (None, {}, {"1": heads}, {"1": heads, "3": heads, "0": {}},
                          {"1": heads, "3": heads, "0": dict(head_dim=6)},
                          {"1": heads, "3": dict(heads, sliding_window=3)}, {"1": heads, "3": dict(head_dim=10)}):
            yield dict(per_layer_config=overrides)
        for value in (5.0, 1, 0, None):
            yield dict(final_logit_softcapping=value)
        for tokens in ("vision", "all"):
            yield dict(use_bidirectional_attention=tokens)
        for function in ("gelu", "silu", "no_such"):
            yield dict(hidden_activation=function)
        for factor in (0.1, 0.4, 0.9, 1.0):
            yield dict(rope_parameters={**config["rope_parameters"], FULL: dict(
                rope_type="proportional", rope_theta=1e4, partial_rotary_factor=factor)})
            yield dict(rope_parameters={**config["rope_parameters"], SLIDING: dict(
                rope_type="proportional", rope_theta=1e4, partial_rotary_factor=factor, factor=2.0)})
    if "linear_num_key_heads" in config:
        for types in (DROP, None, "LINEAR", "HYBRID"):
            for interval in (DROP, 1, 2, 3, 9, 0, None):
                yield dict(layer_types=types, full_attention_interval=interval)
        for switch in ("attn_output_gate", "mtp_use_dedicated_embeddings"):
            yield {switch: True}
    yield from ropes(config)
    if "n_group" in config:
        for method in ("greedy", "group_limited_greedy", DROP):
            for group in (1, 2, None, DROP):
                yield dict(topk_method=method, n_group=group, topk_group=1)


def mutations(config, defaults):
    seen = {json.dumps([{}, []])}
    for change in changes(config, defaults):
        values = {key: value for key, value in change.items() if value is not DROP}
        for key, value in values.items():
            if key == "layer_types" and isinstance(value, str):
                values[key] = types_of(config, value)
        values = {key: value for key, value in values.items() if key not in config or
                  json.dumps(config[key]) != json.dumps(value)}
        dropped = sorted(key for key, value in change.items() if value is DROP and key in config)
        text = json.dumps([values, dropped], sort_keys=True)
        if text not in seen:
            seen.add(text)
            yield values, dropped


def logits_of(folder, tokens):
    """None where there is no such model."""
    try:
        nested = "text_config" in json.loads((folder / "config.json").read_text())
        auto = transformers.AutoModelForImageTextToText if nested else transformers.AutoModelForCausalLM
        model, info = auto.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
            output_loading_info=True)
        if info["missing_keys"] or info["mismatched_keys"] or info.get("error_msgs"):
            return None
        with torch.no_grad():
            found = model.eval()(tokens).logits[0, -1]
    except Exception:  # whatever it is that transformers raises
        return None
    return [float(f"{value:.6g}") for value in found[:LOGITS].tolist()] if found.isfinite().all() else None


def read_by_model(folder, defaults):
    """What a model of Qwen3-Next or Qwen3.5 reads of a configuration, as text; None where there is no such model."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder).to_dict()
    except Exception:  # whatever it is that transformers raises
        return None
    return json.dumps({key: config.get(key) for key in defaults}, sort_keys=True)


def close(a, b):
    return max(abs(x - y) for x, y in zip(a, b)) <= 1e-5 * max(map(abs, b))


def mutate(name):
    source = HERE / name
    whole = json.loads((source / "config.json").read_text())
    config = whole.get("text_config", whole)
    defaults = json.loads((HERE / "defaults.json").read_text())[config["model_type"]]["defaults"]
    tokens = load_file(source / "expected.safetensors")["tokens"][:1]
    outcomes, made, known = [logits_of(source, tokens)], [], {None: None}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "model.safetensors").symlink_to(source / "model.safetensors")
        for values, dropped in mutations(config, defaults):
            changed = {key: value for key, value in {**config, **values}.items() if key not in dropped}
            if config is not whole:
                changed = {**whole, "text_config": changed}
            (folder / "config.json").write_text(json.dumps(changed))
            if "linear_num_key_heads" in config:  # whose models take long
                reads = read_by_model(folder, defaults)
                if reads not in known:
                    known[reads] = logits_of(folder, tokens)
                found = known[reads]
            else:
                found = logits_of(folder, tokens)
            which = None
            if found is not None:
                which = next((i for i, known in enumerate(outcomes) if close(found, known)), len(outcomes))
                if which == len(outcomes):
                    outcomes.append(found)
            made.append([which, values] + ([dropped] if dropped else []))
    print(name, len(made), "mutations,", sum(one[0] is None for one in made), "refused,", len(outcomes), "models",
          flush=True)
    return {"outcomes": outcomes, "mutations": made}


def write(models):
    compact = dict(separators=(",", ":"))
    changes, lines = {}, []
    for name, model in models.items():
        pairs = [[changes.setdefault(json.dumps(change, **compact), len(changes)), which]
                 for which, *change in model["mutations"]]
        lines.append(f'"{name}": ' + json.dumps({"outcomes": model["outcomes"], "mutations": pairs}, **compact))
    (HERE / "mutations.json").write_text('{"changes": [\n' + ",\n".join(changes) + '\n],\n"models": {\n' +
                                         ",\n".join(lines) + "\n}}\n")


def known():
    """The models in the file, as mutate() returns them."""
    made = json.loads((HERE / "mutations.json").read_text())
    return {name: {"outcomes": one["outcomes"],
                   "mutations": [[which, *made["changes"][change]] for change, which in one["mutations"]]}
            for name, one in made["models"].items()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    transformers.logging.set_verbosity(50)
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    assert torch.__version__.startswith("2.15") and transformers.__version__ == "5.24.0"
    wanted = sys.argv[1:]
    models = known() if wanted else {}
    write(dict(sorted((models | {name: mutate(name) for name in wanted or NAMES}).items())))
