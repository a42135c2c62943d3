"""Known methods as special cases, each a few settings of `DropMuon`.

Keyword arguments are passed on to `DropMuon`, so `muon(model, sampler="uniform")` is Drop-Muon with
Muon's own norms, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from dropmuon.optimizer import DropMuon
from dropmuon.samplers import Progressive, Serial, uniform
from dropmuon.samplers.schedules import ProbabilitiesLike
from dropmuon.step.rules import Sharp

__all__ = [
    "block_coordinate_descent",
    "gluon",
    "layerwise_gd",
    "muon",
    "rpt",
    "scion",
    "sgd",
    "sign_sgd",
]

Params = nn.Module | Iterable[Any]


def muon(params: Params, lr: float = 0.02, momentum: float = 0.95, **kwargs: Any) -> DropMuon:
    """Make Muon (Jordan et al., 2024): hidden matrices orthogonalised, the rest on AdamW."""
    settings = {"sampler": "full", "policy": "muon", "nesterov": True, "momentum_start": "zero"}
    return DropMuon(params, lr, momentum, **{**settings, **kwargs})


def scion(params: Params, lr: float = 3e-4, momentum: float = 0.9, **kwargs: Any) -> DropMuon:
    """Make unconstrained Scion (Pethick et al., 2025): an operator norm for every layer."""
    return DropMuon(params, lr, momentum, **{"sampler": "full", "policy": "scion", **kwargs})


def gluon(params: Params, lr: float = 0.02, momentum: float = 0.9, **kwargs: Any) -> DropMuon:
    """Make Gluon (Riabinin et al., 2025): LMO steps of every layer, each in any norm."""
    return DropMuon(params, lr, momentum, **{"sampler": "full", "policy": "spectral", **kwargs})


def sgd(params: Params, lr: float = 0.1, momentum: float = 0.9, **kwargs: Any) -> DropMuon:
    """Make SGD with momentum: Euclidean norms, whose sharp operator is the identity."""
    settings = {"sampler": "full", "policy": "euclidean", "step_rule": Sharp()}
    return DropMuon(params, lr, momentum, **{**settings, **kwargs})


def sign_sgd(params: Params, lr: float = 1e-3, momentum: float = 0.0, **kwargs: Any) -> DropMuon:
    """Make signSGD (Bernstein et al., 2018): the max-entry norm, whose LMO is the sign."""
    return DropMuon(params, lr, momentum, **{"sampler": "full", "policy": "sign", **kwargs})


def layerwise_gd(params: Params, lr: float = 0.1, **kwargs: Any) -> DropMuon:
    """Make Algorithm 2: sharp steps along the gradient itself, for any norms and any sampler."""
    settings = {"sampler": "uniform", "step_rule": Sharp(), "full_start": False}
    return DropMuon(params, lr, 0.0, **{**settings, **kwargs})


def block_coordinate_descent(
    params: Params, lr: float = 0.1, probabilities: ProbabilitiesLike = uniform, **kwargs: Any
) -> DropMuon:
    """Make Algorithm 3: one random layer per step, along its gradient."""
    settings = {"sampler": Serial(probabilities), "policy": "euclidean"}
    return layerwise_gd(params, lr, **{**settings, **kwargs})


def rpt(
    params: Params, lr: float = 0.1, probabilities: ProbabilitiesLike = uniform, **kwargs: Any
) -> DropMuon:
    """Make Randomized Progressive Training (Szlendak et al., 2024), in Euclidean norms."""
    settings = {"sampler": Progressive(probabilities), "policy": "euclidean"}
    return layerwise_gd(params, lr, **{**settings, **kwargs})
