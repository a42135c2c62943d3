"""Expectations over S ~ D of the constants of each layer."""

from __future__ import annotations

import numpy as np

from dropmuon.samplers.base import FloatArray
from dropmuon.theory.distributions import Sampling, distribution_of
from dropmuon.theory.smoothness import Smoothness

__all__ = ["Means"]


class Means:
    """Sets as rows, layers as columns, and means over the sets.

    Attributes:
        p: the probability of each set.
        member: whether the set holds the layer.
        l0: L0_{i,S}.
        l1: L1_{i,S}.
        reached: P(i in S), positive for every layer.
    """

    def __init__(self, sampler: Sampling, smoothness: Smoothness, progress: float) -> None:
        distribution = distribution_of(sampler, smoothness.num_layers, progress)
        self.p = np.array(list(distribution.values()))
        self.l0 = np.stack([smoothness.constants(0, s) for s in distribution])
        self.l1 = np.stack([smoothness.constants(1, s) for s in distribution])
        self.member = np.zeros(self.l0.shape, dtype=np.bool_)
        for row, layers in zip(self.member, distribution, strict=True):
            row[list(layers)] = True
        self.reached = self.over(self.member.astype(np.float64))
        if not self.reached.all():
            i = int((self.reached == 0).argmax())
            raise ValueError(
                f"sampler must reach every layer, got probability 0 for layer {i}; "
                "give a positive probability to a set that holds it"
            )

    def over(self, values: FloatArray) -> FloatArray:
        """Return the mean of each column, E[value_{i,S}]."""
        mean: FloatArray = self.p @ values
        return mean

    def positive_l1(self) -> FloatArray:
        """Return E[1{i in S} L1_{i,S}], which the weights divide by."""
        l1 = self.over(self.l1)
        if not l1.all():
            i = int((l1 == 0).argmax())
            raise ValueError(
                f"smoothness must have L1 > 0 in every layer here, got 0 in layer {i}; give it a "
                "small positive L1, or use iterations_smooth where all are 0"
            )
        return l1

    def ratio(self) -> FloatArray:
        """Return E[L0_{i,S} / L1_{i,S}], 0 where a layer has no L1 and its term vanishes."""
        matters = self.over(self.l1) > 0
        open_ = self.member & matters & (self.l1 == 0) & (self.l0 > 0)
        if open_.any():
            i = int(open_.any(axis=0).argmax())
            raise ValueError(
                f"smoothness must have L1 > 0 for all sets with layer {i} or for none, got both; "
                "give the zeros a small positive L1"
            )
        return self.over(np.divide(self.l0, self.l1, out=np.zeros_like(self.l0), where=self.l1 > 0))
