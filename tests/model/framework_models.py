"""Real models of the transformers library: tiny configurations with random weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

__all__ = ["MODELS", "tiny_model"]

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
}
_TEXT = {**_SIZES, "vocab_size": 50, "max_position_embeddings": 16}
_GROUPED = {**_TEXT, "num_key_value_heads": 2}
_IMAGE = {**_SIZES, "image_size": 8, "patch_size": 4}
_STAGES: dict[str, Any] = {"hidden_sizes": [8, 16], "depths": [2, 2], "num_labels": 3}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "GPT-2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "vocab_size": 50, **_IDS},
    ),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "Mixtral": ("MixtralForCausalLM", "MixtralConfig", {**_GROUPED, "num_local_experts": 4}),
    "BERT": ("BertForSequenceClassification", "BertConfig", _TEXT),
    "T5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 50},
    ),
    "ViT": ("ViTForImageClassification", "ViTConfig", {**_IMAGE, "num_labels": 3}),
    "Whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 16,
            "vocab_size": 50,
            "decoder_start_token_id": 1,
            **_IDS,
        },
    ),
    "CLIP": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": {**_TEXT, **_IDS}, "vision_config": _IMAGE, "projection_dim": 16},
    ),
    "ResNet": (
        "ResNetForImageClassification",
        "ResNetConfig",
        {**_STAGES, "embedding_size": 8, "layer_type": "basic"},
    ),
    "ConvNeXt": ("ConvNextForImageClassification", "ConvNextConfig", {**_STAGES, "num_stages": 2}),
    "Swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "window_size": 2,
            "num_labels": 3,
        },
    ),
    "GPT-OSS": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {**_GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "Llama 4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {**_GROUPED, "head_dim": 8, "num_local_experts": 4, "intermediate_size_mlp": 64, **_IDS},
    ),
    "Phi-3": ("Phi3ForCausalLM", "Phi3Config", {**_GROUPED, **_IDS}),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _TEXT),
    "BERT for masked tokens": ("BertForMaskedLM", "BertConfig", _TEXT),
    "BERT without a head": ("BertModel", "BertConfig", _TEXT),
    "ViT without a head": ("ViTModel", "ViTConfig", _IMAGE),
    "GPT-2 without a head": (
        "GPT2Model",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "vocab_size": 50, **_IDS},
    ),
}
"""Class, class of its configuration, and settings of each model."""


def tiny_model(name: str) -> nn.Module:
    """Return a model by name, or skip the test where its library is missing."""
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers: pip install 'dropmuon[frameworks]'"
    )
    kind, config, settings = MODELS[name]
    make: Callable[[Any], nn.Module] = getattr(transformers, kind)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(getattr(transformers, config)(**settings))
