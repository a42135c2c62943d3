"""Images that are never twice the same: shifted by a few pixels, colour ones also mirrored."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["augment"]


def augment(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image at random, the border filled by reflection; mirror half of the colour ones.

    Images of 32 pixels move by up to 4, of 28 by up to 2, of 8 by 1. What is drawn depends on the
    generator alone, not on the device of the (N, C, H, W) inputs.
    """
    if inputs.ndim != 4:
        raise ValueError(
            f"inputs must be images of shape (N, C, H, W), got {tuple(inputs.shape)}; "
            "train on bytes without augmentation"
        )
    count, channels, height, width = inputs.shape
    rows = _shifted(count, height, generator)
    columns = _shifted(count, width, generator)
    if channels == 3:
        mirrored = _drawn(2, count, generator).bool()
        columns = torch.where(mirrored, width - 1 - columns, columns)
    rows, columns = rows.to(inputs.device), columns.to(inputs.device)
    images = torch.arange(count, device=inputs.device)[:, None, None, None]
    planes = torch.arange(channels, device=inputs.device)[:, None, None]
    return inputs[images, planes, rows[:, None, :, None], columns[:, None, None, :]]


def _shifted(count: int, side: int, generator: torch.Generator) -> Tensor:
    """For each image, where each of its rows comes from: (count, side)."""
    reach = min(_reach(side), side - 1)
    shift = _drawn(2 * reach + 1, count, generator) - reach
    place = torch.arange(side, device=generator.device) + shift
    return (side - 1) - ((side - 1) - place.abs()).abs()


def _reach(side: int) -> int:
    if side >= 32:
        return 4
    return 2 if side >= 16 else 1


def _drawn(below: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(below, (count, 1), generator=generator, device=generator.device)
