"""The models of the lab: each a `Sequential` whose named items are the layers, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from dropmuon.checks import unknown_name, whole_number
from dropmuon.lab.models.cnn import cnn
from dropmuon.lab.models.gpt import gpt
from dropmuon.lab.models.mlp import mlp
from dropmuon.lab.models.resnet import resnet18

__all__ = ["MODELS", "PAPER_CHANNELS", "Family", "build", "family_of", "item_of"]

PAPER_CHANNELS = (
    (8, 16, 32),
    (16, 32, 64),
    (64, 128, 256),
    (128, 256, 512),
    (64, 16, 8),
    (256, 128, 64),
)
"""The channel configurations of the paper's 3-layer CNNs."""

Make = Callable[[tuple[int, ...], int, Sequence[int], bool], nn.Sequential]


@dataclass(frozen=True)
class Family:
    """How to make a model, what data it takes, and its usual widths and policy."""

    make: Make
    kind: str
    channels: tuple[int, ...]
    policy: str


MODELS = {
    "cnn": Family(cnn, "images", (8, 16, 32), "spectral"),
    "mlp": Family(mlp, "images", (512, 512, 512), "spectral"),
    "resnet18": Family(resnet18, "images", (64, 128, 256, 512), "spectral"),
    "gpt": Family(gpt, "bytes", (128, 128, 128, 128), "muon"),
}


def family_of(name: str) -> Family:
    """Return the family of this name."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name]


def build(
    name: str,
    shape: tuple[int, ...],
    num_classes: int,
    channels: Sequence[int] | None = None,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Make a model for inputs of this shape, with random weights from PyTorch's generator.

    Args:
        name: cnn, mlp, resnet18 or gpt.
        shape: of one input, (C, H, W) for images and (context,) for bytes.
        num_classes: how many classes the model distinguishes.
        channels: widths in order; one per block for cnn, mlp and gpt, one per stage for resnet18.
        batch_norm: before each ReLU, in cnn and mlp; resnet18 always has it.
    """
    family = family_of(name)
    widths = tuple(channels or family.channels)
    for width in widths:
        whole_number("channels", width)
    return family.make(shape, num_classes, widths, batch_norm)


def item_of(name: str, parameter: object = None) -> str:
    """Return the layer of a parameter, for `by=`: the item of the `Sequential` that holds it."""
    return name.partition(".")[0]
