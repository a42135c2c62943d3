"""Tiny random models of transformers, each with an example of its input; no hub is reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

transformers = pytest.importorskip(
    "transformers", reason="needs transformers: pip install -e '.[frameworks]'"
)

__all__ = ["TINY", "tiny"]

TEXT = {"vocab_size": 32, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {"image_size": 16, "num_channels": 3}


def tiny(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model and keyword arguments of a forward pass that returns a loss."""
    torch.manual_seed(0)
    return TINY[name]()


def tokens(high: int = 32) -> torch.Tensor:
    return torch.randint(3, high, (2, 8))


def pixels(size: int = 16) -> torch.Tensor:
    return torch.randn(2, 3, size, size)


def gpt2() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=3, n_head=2, bos_token_id=1,
        eos_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    ids = tokens()
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def llama() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.LlamaConfig(
        **TEXT, **TOKENS, num_hidden_layers=3, num_key_value_heads=2, max_position_embeddings=16
    )
    ids = tokens()
    return transformers.LlamaForCausalLM(config), {"input_ids": ids, "labels": ids}


def mixtral() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.MixtralConfig(
        **TEXT, **TOKENS, num_hidden_layers=2, num_key_value_heads=2, num_local_experts=4,
        max_position_embeddings=16,
    )  # fmt: skip
    ids = tokens()
    return transformers.MixtralForCausalLM(config), {"input_ids": ids, "labels": ids}


def bert() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.BertConfig(**TEXT, num_hidden_layers=3, max_position_embeddings=16)
    model = transformers.BertForSequenceClassification(config)
    return model, {"input_ids": tokens(), "labels": torch.tensor([0, 1])}


def t5() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_decoder_layers=3,
        num_heads=2, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
        tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), {
        "input_ids": tokens(),
        "labels": tokens(),
    }


def bart() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.BartConfig(
        vocab_size=32, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
        max_position_embeddings=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=2, forced_eos_token_id=2,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config), {
        "input_ids": tokens(),
        "labels": tokens(),
    }


def whisper() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.WhisperConfig(
        vocab_size=32, num_mel_bins=4, d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_source_positions=8, max_target_positions=16, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, begin_suppress_tokens=None,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(2, 4, 16),
        "labels": tokens(),
    }


def vit() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32,
        patch_size=8, **IMAGE,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    return model, {"pixel_values": pixels(), "labels": torch.tensor([0, 1])}


def _clip_parts() -> tuple[dict[str, Any], dict[str, Any]]:
    text = {**TEXT, **TOKENS, "num_hidden_layers": 2, "max_position_embeddings": 16}
    vision = {
        **{key: TEXT[key] for key in ("hidden_size", "num_attention_heads", "intermediate_size")},
        **IMAGE, "num_hidden_layers": 2, "patch_size": 8,
    }  # fmt: skip
    return text, vision


def clip() -> tuple[nn.Module, dict[str, Any]]:
    text, vision = _clip_parts()
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    return transformers.CLIPModel(config), {
        "input_ids": tokens(),
        "pixel_values": pixels(),
        "return_loss": True,
    }


def llava() -> tuple[nn.Module, dict[str, Any]]:
    _, vision = _clip_parts()
    text = {**TEXT, **TOKENS, "num_hidden_layers": 3, "num_key_value_heads": 2}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**vision),
        text_config=transformers.LlamaConfig(**text, max_position_embeddings=32),
        image_token_index=31,
        vision_feature_layer=-1,
        tie_word_embeddings=False,
    )
    ids = torch.cat([torch.full((2, 4), 31), tokens(31)], 1)  # four patches, then text
    return transformers.LlavaForConditionalGeneration(config), {
        "input_ids": ids,
        "pixel_values": pixels(),
        "labels": ids.masked_fill(ids == 31, -100),
    }


def swin() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[2, 1, 3], num_heads=[1, 2, 2],
        window_size=2,
    )  # fmt: skip
    model = transformers.SwinForImageClassification(config)
    return model, {"pixel_values": pixels(), "labels": torch.tensor([0, 1])}


def convnext() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ConvNextConfig(
        hidden_sizes=[4, 8, 16, 32], depths=[1, 1, 2, 1], image_size=32, patch_size=2
    )
    model = transformers.ConvNextForImageClassification(config)
    return model, {"pixel_values": pixels(32), "labels": torch.tensor([0, 1])}


def regnet() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.RegNetConfig(
        embedding_size=4, hidden_sizes=[4, 8, 8, 16], depths=[1, 1, 2, 1], groups_width=4,
        layer_type="y",
    )  # fmt: skip
    model = transformers.RegNetForImageClassification(config)
    return model, {"pixel_values": pixels(32), "labels": torch.tensor([0, 1])}


def resnet() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8, 8, 16], depths=[2, 2, 2, 1], layer_type="basic"
    )
    model = transformers.ResNetForImageClassification(config)
    return model, {"pixel_values": pixels(32), "labels": torch.tensor([0, 1])}


TINY: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    made.__name__: made
    for made in (
        *(gpt2, llama, mixtral, bert, t5, bart, whisper, vit, clip, llava),
        *(swin, convnext, regnet, resnet),
    )
}
"""Makers by name."""
