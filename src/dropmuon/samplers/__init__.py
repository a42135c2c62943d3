"""Samplers: distributions over active sets of layers.

Layers are counted from 0, the layer next to the input. Samplers depend on neither models nor
tensors.
"""

from __future__ import annotations

from dropmuon.samplers.base import ActiveSet, Sampler
from dropmuon.samplers.categorical import Arbitrary, Categorical
from dropmuon.samplers.progressive import Full, Progressive, SamplerName, Shares, by_name
from dropmuon.samplers.schedules import (
    Custom,
    EpochShift,
    Fixed,
    ProbabilitiesLike,
    Schedule,
    as_schedule,
    epoch_shift,
    exponential,
    linear,
    quadratic,
    uniform,
)
from dropmuon.samplers.subsets import Nice, Partition, RandomSubset, Serial, Submodel

__all__ = [
    "ActiveSet",
    "Arbitrary",
    "Categorical",
    "Custom",
    "EpochShift",
    "Fixed",
    "Full",
    "Nice",
    "Partition",
    "ProbabilitiesLike",
    "Progressive",
    "RandomSubset",
    "Sampler",
    "SamplerName",
    "Schedule",
    "Serial",
    "Shares",
    "Submodel",
    "as_schedule",
    "by_name",
    "epoch_shift",
    "exponential",
    "linear",
    "quadratic",
    "uniform",
]
