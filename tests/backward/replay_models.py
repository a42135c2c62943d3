"""Models whose frozen layers are replayed, by name."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F

from tests.backward.replay_runs import regression


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(inplace=True)) for _ in range(3)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class InPlaceResidual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8)) for _ in range(3)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            skip, x = x, block(x)
            x += skip
        x *= 2
        return self.head(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.downs = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)])
        self.middle = nn.Linear(8, 8)
        self.ups = nn.ModuleList([nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(16, 8)])
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        skips = []
        for down in self.downs:
            x = F.gelu(down(x))
            skips.append(x)
        x = F.gelu(self.middle(x))
        for up in self.ups:
            x = F.gelu(up(torch.cat([x, skips.pop()], -1)))
        return self.head(x)


class Transformer(nn.Module):
    def __init__(self, dropout=0.2):
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, 8))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 12, dropout=dropout, batch_first=True)
            for _ in range(3)
        )
        self.mix = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.embed(x)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        x = x + self.mix(x, x, x)[0]
        return self.head(x[:, 0])


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.LSTM(6, 8, num_layers=2, batch_first=True, dropout=0.3)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        states, (last, _) = self.front(x)
        return self.head(torch.tanh(self.hidden(states[:, -1] + last[-1])))


def mlp():
    sizes = [6, 8, 8, 8]
    hidden = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(8, 3))


def cnn(momentum):
    def stage(a, b):
        conv = nn.Conv2d(a, b, 3, padding=1)
        norm = nn.BatchNorm2d(b, momentum=momentum)
        return [conv, norm, nn.ReLU(inplace=True), nn.Dropout(0.2)]

    stages = [*stage(2, 4), *stage(4, 5), nn.MaxPool2d(2), *stage(5, 4)]
    return nn.Sequential(*stages, nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(16, 3))


def normed(kind):
    def layer(a, b):
        return kind(nn.Linear(a, b))

    return nn.Sequential(layer(6, 8), nn.ReLU(), layer(8, 8), nn.ReLU(), layer(8, 3))


FAMILY = {
    "mlp": (mlp, (10, 6)),
    "cnn": (lambda: cnn(0.1), (10, 2, 4, 4)),
    "cnn, cumulative": (lambda: cnn(None), (10, 2, 4, 4)),
    "transformer": (Transformer, (5, 4, 6)),
    "residual": (Residual, (10, 6)),
    "residual in place": (InPlaceResidual, (10, 6)),
    "unet": (UNet, (10, 6)),
    "lstm": (Recurrent, (5, 4, 6)),
    "weight norm": (lambda: normed(nn.utils.parametrizations.weight_norm), (10, 6)),
    "spectral norm": (lambda: normed(nn.utils.parametrizations.spectral_norm), (10, 6)),
}


def problem(name):
    build, shape = FAMILY[name]
    return lambda: (build(), regression(*shape))
