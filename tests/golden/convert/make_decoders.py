#!/usr/bin/env python3
"""Writes decoders.txt beside this script: the model_type of every text decoder of transformers, one a line. These are
the types that AutoModelForCausalLM loads, the types of text_config in models that AutoModelForImageTextToText loads, and
mistral4, which neither of the two names. A model that has a text_config of one type is listed by that type alone.

Made with transformers 5.24.0. The file is committed; run this only to change it.
"""
import pathlib

from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
                                                    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)


def text_type(name):
    """None where text_config may be of any type, and where there is none."""
    kind = CONFIG_MAPPING[name]
    text = {**(getattr(kind, "sub_configs_defaults", None) or {}), **(kind.sub_configs or {})}.get("text_config")
    return getattr(getattr(text, "config_class", text), "model_type", None) or None


types = {"mistral4", *(text_type(name) or name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), *filter(None, map(text_type, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES))}
(pathlib.Path(__file__).parent / "decoders.txt").write_text("".join(f"{name}\n" for name in sorted(types)))
