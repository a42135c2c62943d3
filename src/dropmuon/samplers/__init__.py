"""Samplers: distributions over active sets of layers.

Layers are counted from 0, the layer next to the input. Samplers depend on neither models nor
tensors.
"""

from __future__ import annotations

from typing import Literal

from dropmuon.checks import unknown_name
from dropmuon.samplers.adaptive import Adaptive
from dropmuon.samplers.base import ActiveSet, Sampler
from dropmuon.samplers.categorical import Arbitrary, Categorical
from dropmuon.samplers.progressive import Full, Progressive, Shares
from dropmuon.samplers.schedules import (
    SCHEDULES,
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
from dropmuon.samplers.stratified import Stratified
from dropmuon.samplers.subsets import Nice, Partition, RandomSubset, Serial, Submodel

__all__ = [
    "ActiveSet",
    "Adaptive",
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
    "Stratified",
    "Submodel",
    "as_schedule",
    "by_name",
    "epoch_shift",
    "exponential",
    "linear",
    "quadratic",
    "uniform",
]

SamplerName = Literal[
    "full", "uniform", "linear", "quadratic", "exponential", "epoch-shift", "adaptive"
]
"""The samplers that have a name: all layers, progressive with the schedule of that name, or
shares that follow the noise."""


def by_name(sampler: str | Sampler) -> Sampler:
    """Return the sampler of this name; a sampler is returned as it is.

    "full" is `Full()`, "adaptive" is `Adaptive()`; the name of a schedule is `Progressive` with
    that schedule.
    """
    if isinstance(sampler, Sampler):
        return sampler
    if not isinstance(sampler, str):
        raise TypeError(
            f"sampler must be a name or a Sampler, got {sampler!r}; "
            "use 'uniform' or an object such as Progressive()"
        )
    if sampler in SCHEDULES:
        return Progressive(SCHEDULES[sampler])
    others: dict[str, type[Sampler]] = {"full": Full, "adaptive": Adaptive}
    if sampler not in others:
        raise unknown_name("sampler", sampler, [*others, *SCHEDULES])
    return others[sampler]()
