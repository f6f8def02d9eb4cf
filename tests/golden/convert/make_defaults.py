#!/usr/bin/env python3
"""Writes defaults.json beside this script: for each architecture that Witan reads the values that transformers'
configuration class gives to all its keys (`defaults`), those that it has no value for, or none that gives a model
(`required`: one that works), and
the keys and values that older versions write into a config.json beside or instead of these (`older`: lists of values).

    make_defaults.py FOLDER ...    # folders made by pip install --target FOLDER transformers==VERSION

Made with Python 3.11 and transformers 5.24.0; the folders were of 4.30.2, 4.36.2, 4.41.2, 4.46.3, 4.51.3, 4.57.6 and
5.0.0 (for the classes in NEWEST 4.57.6 and 5.0.0, for those in GEMMAS 4.57.6, for those in HYBRID and V4 none). The file is committed; run this only to change it.
"""
import json
import os
import pathlib
import subprocess
import sys

NEWEST = ["Glm4MoeLite", "Glm4Moe", "MiniMaxM2", "Dots1", "SolarOpen", "Qwen2Moe", "FlexOlmo", "SmolLM3",
          "SeedOss", "ExaoneMoe", "Granite", "GraniteMoe", "GraniteMoeShared", "Ernie4_5", "Ernie4_5_Moe",
          "HunYuanDenseV1", "HunYuanMoEV1", "Qwen2VLText", "Qwen2_5_VLText", "Qwen3VLText", "Qwen3VLMoeText",
          "Glm4vMoeText", "DeepseekV32", "GlmMoeDsa"]
HYBRID = ["Qwen3Next", "Qwen3_5Text", "Qwen3_5MoeText", "NemotronH", "GraniteMoeHybrid", "KimiLinear"]
V4 = ["DeepseekV4"]
GEMMAS = ["Gemma3Text", "Gemma4Text", "Gemma4UnifiedText"]
SIBLINGS = ["Lfm2", "Lfm2Moe", "OlmoHybrid"]
CLASSES = ["Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "Olmoe", "Olmo2", "Olmo3", "GptOss", "DeepseekV2",
           "DeepseekV3", "GPT2", "Phi3", *NEWEST, *HYBRID, *V4, *GEMMAS, *SIBLINGS]
# The classes of GLM have 96 heads for 4096 channels, that of hunyuan_v1_moe one expert.
REQUIRED = {"deepseek_v2": {"num_experts_per_tok": 6}, "glm4_moe": {"head_dim": 128}, "glm4v_moe_text": {"head_dim": 128},
            "hunyuan_v1_moe": {"num_experts": 64, "moe_topk": 8},
            "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},
            "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16}}


def dump():
    """What the version of transformers that is on the path writes for a model of defaults."""
    import transformers

    made = {}
    for name in CLASSES:
        if hasattr(transformers, name + "Config"):
            config = getattr(transformers, name + "Config")()
            config.architectures = [name + ("LMHeadModel" if name == "GPT2" else "ForCausalLM")]
            config = json.loads(config.to_json_string(use_diff=False))
            config.pop("transformers_version", None)
            made[config.pop("model_type")] = config
    return made


def dump_of(folder):
    environment = dict(os.environ, PYTHONPATH=folder)
    return json.loads(subprocess.run([sys.executable, __file__, "--dump"], env=environment, check=True,
                                     capture_output=True, text=True).stdout.splitlines()[-1])


if sys.argv[1:] == ["--dump"]:
    print(json.dumps(dump()))
    sys.exit()
made = {}
for kind, defaults in dump().items():
    required = REQUIRED.get(kind, {})
    defaults = {key: value for key, value in defaults.items() if key not in required}
    made[kind] = {"defaults": defaults, "required": required, "older": {}}
for folder in sys.argv[1:]:
    for kind, defaults in dump_of(folder).items():
        if kind not in made:  # 4.57.6 and 5.0.0 call one Glm4vMoe_text
            continue
        older = made[kind]["older"]
        for key, value in defaults.items():
            known = older.get(key, []) + [made[kind]["defaults"].get(key)] * (key in made[kind]["defaults"])
            if json.dumps(value) not in map(json.dumps, known):
                older.setdefault(key, []).append(value)
lines = [f'"{kind}": {json.dumps(entry, sort_keys=True)}' for kind, entry in sorted(made.items())]
(pathlib.Path(__file__).parent / "defaults.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
