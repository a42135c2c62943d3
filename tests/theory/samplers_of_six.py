"""Samplers of every kind, of six layers."""

from __future__ import annotations

from dropmuon import samplers
from dropmuon.samplers import Sampler

__all__ = ["SAMPLERS", "B"]

B = 6
SAMPLERS: list[Sampler] = [
    samplers.Full(),
    samplers.Progressive("uniform"),
    samplers.Progressive("exponential"),
    samplers.Progressive([0.5, 0.0, 0.0, 0.25, 0.0, 0.25]),
    samplers.Progressive(samplers.epoch_shift(0.7)),
    samplers.Nice(1),
    samplers.Nice(3),
    samplers.Nice(B),
    samplers.RandomSubset(),
    samplers.Submodel(3, [0.1, 0.2, 0.3, 0.4]),
    samplers.Submodel(1, "quadratic"),
    samplers.Partition([(0, 3), (1, 5), (2, 4)], [0.2, 0.3, 0.5]),
    samplers.Partition.contiguous(B, 4),
    samplers.Serial("linear"),
    samplers.Arbitrary({(0, 1): 0.25, (0, 2, 5): 0.25, (3, 4, 5): 0.5}),
    samplers.Arbitrary({(0,): 0.1, tuple(range(B)): 0.4, (2,): 0.5}),
]
