"""Layers of a model by name, for tests to compare."""

from __future__ import annotations

import torch
from torch import nn

from dropmuon.model.layers import model_layers


def names(model, **options):
    return list(model_layers(model, **options).names)


def members(model, **options):
    roster = model_layers(model, **options)
    found = ([member.name for member in layer] for layer in roster.layers)
    return dict(zip(roster.names, found, strict=True))


def train(optimizer, loss_of, steps):
    losses = []
    for _ in range(steps):
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.embed = nn.Linear(6, 4)
        self.cls_token = nn.Parameter(torch.ones(1, 1, 4))
        self.pos_embed = nn.Parameter(torch.ones(1, 3, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.embed(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])
