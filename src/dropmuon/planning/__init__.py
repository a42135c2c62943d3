"""The planner: measure costs, estimate smoothness, choose a sampler, predict the speed-up."""

from __future__ import annotations

from dropmuon.planning.estimated_smoothness import SmoothnessEstimate, estimate_smoothness
from dropmuon.planning.measured_costs import MeasuredCosts, measure_costs
from dropmuon.planning.planner import Option, Plan, plan
from dropmuon.planning.problem import Problem

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
