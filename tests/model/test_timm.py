"""Models of timm, where it can be imported.

timm imports torchvision, whose wheels for CPUs may lack the operators for boxes that they declare
results for. No model here uses these: declared without a kernel, torchvision can be imported.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dropmuon import DropMuon
from dropmuon.norms import AdamW

if not hasattr(torch.ops.torchvision, "nms"):
    for name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{name}", "(Tensor boxes, Tensor scores, float x) -> Tensor"
        )
timm = pytest.importorskip("timm", reason="timm needs a torchvision that fits torch")

MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "vit_tiny_patch16_224": ({"img_size": 32, "depth": 3, "embed_dim": 32, "num_heads": 2}, 32, 5),
    "convnext_atto": ({"depths": (1, 1, 2, 1), "dims": (8, 16, 24, 32)}, 32, 10),
    "swin_tiny_patch4_window7_224": (
        {"img_size": 56, "depths": (1, 1, 2, 1), "embed_dim": 16, "num_heads": (1, 2, 2, 2)},
        56,
        10,
    ),
    "regnetx_002": ({}, 32, 15),
    "resnet18": ({}, 32, 10),
    "efficientnet_b0": ({"drop_path_rate": 0.0}, 32, 18),
}
"""Settings, the side of an image, and the number of layers."""

VECTORS = ("cls_token", "pos_embed", "relative_position_bias_table", "gamma")


def made(name: str) -> tuple[nn.Module, torch.Tensor]:
    settings, side, _ = MODELS[name]
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5, **settings), torch.randn(4, 3, side, side)


@pytest.mark.parametrize("name", MODELS)
def test_blocks_are_found_and_only_matrices_are_orthogonalised(name: str) -> None:
    model, x = made(name)
    optimizer = DropMuon(model, policy="muon", by="block", example=x)
    assert len(optimizer.layers) == MODELS[name][2]
    assert optimizer.layers[-1] == "head"
    for member in optimizer.roster.members():
        is_vector = member.parameter.ndim < 2 or member.name.endswith(VECTORS)
        assert not is_vector or isinstance(member.norm, AdamW), member.name


@pytest.mark.parametrize("name", MODELS)
def test_gradients_above_the_cutoff_are_exact(name: str) -> None:
    model, x = made(name)
    model.eval()  # batch norm of few images would hide what differs
    whole = copy.deepcopy(model)
    optimizer = DropMuon(model, policy="muon", by="block", example=x)
    target = torch.arange(4)
    F.cross_entropy(whole(x), target).backward()
    for cutoff in range(0, len(optimizer.layers), 3):
        optimizer.zero_grad()
        optimizer.activate(range(cutoff, len(optimizer.layers)))
        F.cross_entropy(model(x), target).backward()
        full = dict(whole.named_parameters())
        for member in optimizer.roster.members():
            if member.layer >= cutoff:
                torch.testing.assert_close(member.parameter.grad, full[member.name].grad)
            else:
                assert member.parameter.grad is None
