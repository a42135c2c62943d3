"""What for my model: measure costs and smoothness, choose a sampler, predict the gain."""

from __future__ import annotations

from dropmuon.planning.costs import MeasuredCosts, measure_costs
from dropmuon.planning.planner import Option, Plan, plan
from dropmuon.planning.problem import Problem
from dropmuon.planning.smoothness import SmoothnessEstimate, estimate_smoothness

__all__ = [
    "MeasuredCosts",
    "Option",
    "Plan",
    "Problem",
    "SmoothnessEstimate",
    "estimate_smoothness",
    "measure_costs",
    "plan",
]
