"""Plans for layers whose constants and costs are given instead of measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dropmuon.planning import MeasuredCosts, Plan, SmoothnessEstimate
from dropmuon.planning.planner import recommend
from dropmuon.planning.sets import planned_sets
from dropmuon.planning.smoothness import summarize
from dropmuon.samplers.base import ActiveSet, FloatArray
from dropmuon.theory import StepCosts


def estimated(layers: Sequence[str], ratios: dict[ActiveSet, FloatArray], duals: FloatArray):
    """What an estimate of these ratios would be."""
    return SmoothnessEstimate(tuple(layers), *summarize(duals, ratios, 0.9, 0), ratios, duals, 0.9)


def measured(layers: Sequence[str]) -> MeasuredCosts:
    b = len(layers)
    parts = StepCosts(0.001, [0.002] * b, [0.004] * b, [0.001] * b)
    by_cutoff = np.array([0.001 + 0.002 * b + 0.005 * (b - s) for s in range(b)])
    return MeasuredCosts(tuple(layers), parts, parts, by_cutoff, by_cutoff, 5, 0.0)


def made_up(full: list[float], alone: list[float], points: int = 4, **arguments) -> Plan:
    """A plan for layers whose constants grow from `alone` to `full` with the active set."""
    b = len(full)
    layers = [f"layer{i}" for i in range(b)]
    ratios = {}
    for active in planned_sets(layers):
        share = (len(active) - 1) / max(b - 1, 1)
        table = np.full((points, b), np.nan)
        for i in active:
            table[:, i] = alone[i] + share * (full[i] - alone[i])
        ratios[active] = table
    estimate = estimated(layers, ratios, np.ones((points, b)))
    return recommend(measured(layers), estimate, 2, **arguments)


def random_plan(layers: Sequence[str], case: int, points: int = 6, **arguments) -> Plan:
    """A plan for random layers with L0 and L1 above 0 that grow with the active set."""
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
    return recommend(measured(layers), estimated(layers, ratios, duals), 2, **arguments)


def transformer(blocks: int) -> list[str]:
    """The names of layers of a transformer."""
    inner = [f"blocks.{k}.{part}" for k in range(blocks) for part in ("attention", "mlp")]
    return ["embedding", *inner, "head"]


def by_family(plan: Plan) -> dict[str, float]:
    return {option.candidate.family: option.fresh.speedup for option in plan.options}
