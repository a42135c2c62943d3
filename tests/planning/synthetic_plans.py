"""Measurements and plans of layers whose constants and costs are given instead of measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dropmuon.planning import MeasuredCosts, NoiseEstimate, Plan, SmoothnessEstimate
from dropmuon.planning.bounds.comparison import Bounds
from dropmuon.planning.bounds.estimated_smoothness import summarize
from dropmuon.planning.bounds.probe import planned_sets
from dropmuon.planning.timing import Timings
from dropmuon.samplers.base import ActiveSet, FloatArray
from dropmuon.theory import Regime, StepCosts, StochasticCase

Draw = Callable[[np.random.Generator, tuple[int, ...]], FloatArray]


def estimate_of(
    layers: Sequence[str], ratios: dict[ActiveSet, FloatArray], duals: FloatArray
) -> SmoothnessEstimate:
    """Return the estimate that follows from these ratios."""
    return SmoothnessEstimate(tuple(layers), *summarize(duals, ratios, 0.9, 0), ratios, duals, 0.9)


def costs_of(layers: Sequence[str]) -> MeasuredCosts:
    b = len(layers)
    parts = StepCosts(0.001, [0.002] * b, [0.004] * b, [0.001] * b)
    by_cutoff = np.array([0.001 + 0.002 * b + 0.005 * (b - s) for s in range(b)])
    turning = (True,) * b
    return MeasuredCosts(tuple(layers), parts, parts, by_cutoff, by_cutoff, 5, 0.0, (), turning)


def plan_by_bounds(
    costs: MeasuredCosts, estimate: SmoothnessEstimate, regime: Regime = "smooth", seed: int = 0
) -> Plan:
    """Return the plan that follows from costs and constants."""
    case = StochasticCase(1.0, 0.1, 1.0, 2.0) if regime == "stochastic" else None
    return Plan(costs, None, Bounds(costs, estimate, regime, 2, seed, case), None, seed)


def noise_of(
    ratios: Sequence[float],
    growth: float = 0.0,
    steps: int = 40,
    spread: float = 0.0,
    examples: int = 1024,
) -> NoiseEstimate:
    """Return what is measured if noise grows to these ratios with a power of the steps."""
    rng, b = np.random.default_rng(0), len(ratios)
    time = np.arange(1, steps + 1) / steps
    noise = np.outer(time**growth, ratios) * np.exp(spread * rng.normal(size=(steps, b)))
    return NoiseEstimate(tuple(layer_names(b)), examples, np.ones((steps, b)), noise, 4, 0.0)


def plan_of(full: list[float], alone: list[float], points: int = 4, **arguments: Any) -> Plan:
    """Return a plan for layers whose constants grow from `alone` to `full` with the set."""
    b = len(full)
    layers = layer_names(b)
    ratios = {}
    for active in planned_sets(layers):
        share = (len(active) - 1) / max(b - 1, 1)
        table = np.full((points, b), np.nan)
        for i in active:
            table[:, i] = alone[i] + share * (full[i] - alone[i])
        ratios[active] = table
    estimate = estimate_of(layers, ratios, np.ones((points, b)))
    return plan_by_bounds(costs_of(layers), estimate, **arguments)


def random_plan(layers: Sequence[str], case: int, points: int = 6, **arguments: Any) -> Plan:
    """Return a plan for random layers with L0 and L1 above 0 that grow with the active set."""
    rng, b = np.random.default_rng(case), len(layers)
    duals = rng.uniform(0.5, 2.0, (points, b))
    flat, slope = rng.uniform(0.5, 4.0, b), rng.uniform(0.2, 3.0, b)
    own = rng.uniform(0.05, 1.0, b)
    noise = rng.uniform(0.8, 1.0, (points, b))
    ratios = {}
    for active in planned_sets(layers):
        grown = own + (1.0 - own) * len(active) / b
        table = np.full((points, b), np.nan)
        inside = list(active)
        table[:, inside] = ((flat + slope * duals) * noise * grown)[:, inside]
        ratios[active] = table
    return plan_by_bounds(costs_of(layers), estimate_of(layers, ratios, duals), **arguments)


def layer_names(count: int) -> list[str]:
    """Return names that suggest no repeated blocks."""
    return [f"layer{i}" for i in range(count)]


def transformer_layers(blocks: int) -> list[str]:
    """Return the names of the layers of a transformer."""
    inner = [f"blocks.{k}.{part}" for k in range(blocks) for part in ("attention", "mlp")]
    return ["embedding", *inner, "head"]


def speedups(plan: Plan) -> dict[str, float]:
    """Return the predicted speed-up of each family on fresh batches."""
    return {option.name: option.fresh.speedup for option in plan.options}


def timings_of(
    costs: StepCosts, rounds: int, noise: Callable[[], float], cutoffs: list[int] | None = None
) -> Timings:
    """Return what a timer would measure if the additive model held."""
    b, timings = costs.num_layers, Timings()
    for _ in range(rounds):
        for s in range(b) if cutoffs is None else cutoffs:
            timings.forward[s].append(float(costs.forward.sum()) + noise())
            timings.backward[s].append(float(costs.backward[s:].sum()) + noise())
            timings.update[s].append(costs.overhead + float(costs.sharp[s:].sum()) + noise())
        for j in range(b):
            timings.alone[j].append(costs.overhead + float(costs.sharp[j]) + noise())
    return timings


def flat_operations(b: int) -> StepCosts:
    return StepCosts(0.0, np.ones(b), np.ones(b), np.ones(b))


def often_near_one(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Draw ratios up to 1, many of them close to it."""
    return rng.uniform(0.0, 1.0, shape)


def seldom_near_one(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Draw ratios up to 1, few of them close to it: the density falls to 0 there."""
    return rng.beta(2.0, 2.0, shape)


def small_problem() -> tuple[nn.Module, Any, list[tuple[Tensor, Tensor]]]:
    """Return a model of three layers, its loss and batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    batches = [(torch.randn(16, 6), torch.randint(0, 3, (16,))) for _ in range(3)]
    return model, lambda m, batch: F.cross_entropy(m(batch[0]), batch[1]), batches
