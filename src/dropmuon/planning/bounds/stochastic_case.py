"""What the stochastic theorem needs of a model beside its smoothness: gap, noise and norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dropmuon.planning.bounds.probe import geometry
from dropmuon.planning.noise import NoiseEstimate
from dropmuon.planning.problem import Problem
from dropmuon.theory import StochasticCase

__all__ = ["measure_case"]

_MOST_BATCHES = 8
"""Batches that the loss at the start is the mean of."""


def measure_case(
    problem: Problem, optimizer_settings: Mapping[str, Any], noise: NoiseEstimate | None
) -> StochasticCase:
    """Measure delta^0, sigma and rho for Theorem "stoch_rt_l0l1_iter".

    delta^0 is the mean loss at the start, as if 0 were the least. sigma_i is the root of the noise
    that pieces of batches showed, of the noisiest window of the run: the theorem asks for a bound
    at all points. rho follows from the norm and the shape of every parameter.
    """
    if noise is None:
        raise ValueError(
            "regime='stochastic' needs the noise of gradients, but the batches cannot be cut; give "
            "batches of tensors whose first axis is that of the examples"
        )
    with problem.prepared(optimizer_settings) as optimizer:
        count = min(_MOST_BATCHES, len(problem.batches))
        gap = float(np.mean([float(problem.value(index).detach()) for index in range(count)]))
        rho = [
            optimizer.step_rule.layer_norm.rho(
                geometry(member).rho(member.parameter.shape) for member in layer
            )
            for layer in optimizer.roster.layers
        ]
    if gap <= 0:
        raise ValueError(
            f"regime='stochastic' takes 0 for the least loss, got a loss of {gap:g} at the start; "
            "add a constant that makes the loss positive"
        )
    windows = [noise.noise[start:end].mean(axis=0) for start, end in noise.windows]
    sigma = np.sqrt(np.maximum(np.max(windows, axis=0), 0.0))
    low, high = zip(*rho, strict=True)
    return StochasticCase(gap, sigma, np.array(low), np.array(high))
