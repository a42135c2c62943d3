"""Layers by block: the items of a model's main container, with stem and head around them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dropmuon import layer_groups
from tests.model.layer_members import ViT, members, names
from tests.models import PROBLEMS


class GPT(nn.Module):
    """Modules in a ModuleDict, as nanoGPT has them."""

    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(7, 4),
                "wpe": nn.Embedding(5, 4),
                "h": nn.ModuleList([nn.ModuleDict({"a": nn.Linear(4, 4)}) for _ in range(3)]),
                "ln_f": nn.LayerNorm(4),
            }
        )
        self.lm_head = nn.Linear(4, 7, bias=False)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 2, 1)
        self.bn1 = nn.BatchNorm2d(2)
        for n in range(4):
            stage = nn.Sequential(*(self.block() for _ in range(2)))
            self.add_module(f"layer{n + 1}", stage)
        self.fc = nn.Linear(2, 5)

    @staticmethod
    def block():
        return nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(2, 3)
        self.downs = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.mid = nn.Linear(3, 3)
        self.ups = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])
        self.leave = nn.Linear(3, 1)

    def forward(self, x):
        x, skips = self.enter(x), []
        for down in self.downs:
            x = down(x)
            skips.append(x)
        x = self.mid(x)
        for up in self.ups:
            x = up(torch.cat([x, skips.pop()], -1))
        return self.leave(x)


def test_blocks_of_a_gpt_are_its_list_with_stem_and_head_around():
    found = members(GPT(), by="block")
    assert list(found) == ["stem", "transformer.h.0", "transformer.h.1", "transformer.h.2", "head"]
    assert found["stem"] == ["transformer.wte.weight", "transformer.wpe.weight"]
    assert found["transformer.h.1"] == ["transformer.h.1.a.weight", "transformer.h.1.a.bias"]
    assert found["head"] == [
        "transformer.ln_f.weight",
        "transformer.ln_f.bias",
        "lm_head.weight",
    ]


def test_blocks_of_a_resnet_are_the_items_of_its_four_stages():
    found = members(ResNet(), by="block")
    stages = [f"layer{n}.{k}" for n in (1, 2, 3, 4) for k in (0, 1)]
    assert list(found) == ["stem", *stages, "head"]
    assert found["stem"] == ["conv1.weight", "conv1.bias", "bn1.weight", "bn1.bias"]
    assert found["head"] == ["fc.weight", "fc.bias"]
    assert len(found["layer3.1"]) == 4


def test_blocks_of_a_plain_sequential_are_its_items():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 1))
    assert names(model, by="block") == ["0", "2", "3"]


def test_blocks_of_a_sequential_of_sequentials_are_the_outer_ones():
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)) for _ in range(3))
    )
    assert names(model, by="block") == ["0", "1", "2"]
    inside = nn.ModuleDict({"stem": nn.Linear(3, 3), "blocks": nn.ModuleList(model)})
    assert names(inside, by="block") == ["stem", "blocks.0", "blocks.1", "blocks.2"]


def test_blocks_of_a_unet_have_its_middle_between_them():
    expected = ["stem", "downs.0", "downs.1", "mid", "ups.0", "ups.1", "head"]
    assert names(UNet(), by="block") == expected
    assert names(UNet(), by="block", example=torch.ones(1, 2)) == expected


def test_blocks_of_a_stock_problem_hold_whole_blocks():
    model, *_ = PROBLEMS["transformer"]()
    found = members(model, by="block")
    assert list(found) == ["stem", "blocks.0", "blocks.1", "head"]
    assert all(name.startswith("blocks.0.") for name in found["blocks.0"])
    assert sum(map(len, found.values())) == len(list(model.parameters()))


def test_a_model_without_blocks_is_told_what_to_use_instead():
    with pytest.raises(ValueError, match=r"ModuleList or Sequential.*by=\"module\""):
        layer_groups(nn.Linear(2, 2), by="block")


def test_parameters_of_the_root_are_in_the_stem_of_blocks_by_execution():
    found = members(ViT(), by="block", example=torch.ones(2, 2, 6))
    assert list(found) == ["stem", "blocks.0", "blocks.1", "head"]
    assert found["stem"] == ["embed.weight", "embed.bias", "cls_token", "pos_embed"]
