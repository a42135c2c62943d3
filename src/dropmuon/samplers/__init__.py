"""Who moves: distributions over active sets of layers.

Layers are counted from 0, the layer next to the input. No sampler knows a model or a tensor.
"""

from __future__ import annotations

from dropmuon.samplers.arbitrary import Arbitrary
from dropmuon.samplers.base import ActiveSet, Sampler
from dropmuon.samplers.full import Full
from dropmuon.samplers.names import by_name
from dropmuon.samplers.nice import Nice
from dropmuon.samplers.partition import Partition
from dropmuon.samplers.progressive import Progressive
from dropmuon.samplers.random_subset import RandomSubset
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
from dropmuon.samplers.serial import Serial
from dropmuon.samplers.submodel import Submodel

__all__ = [
    "ActiveSet",
    "Arbitrary",
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
    "Schedule",
    "Serial",
    "Submodel",
    "as_schedule",
    "by_name",
    "epoch_shift",
    "exponential",
    "linear",
    "quadratic",
    "uniform",
]
