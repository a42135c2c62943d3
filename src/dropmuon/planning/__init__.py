"""The planner: measure costs and noise, predict what parts and turns gain, recommend settings."""

from __future__ import annotations

from dropmuon.planning.bounds.estimated_smoothness import SmoothnessEstimate, estimate_smoothness
from dropmuon.planning.measured_costs import MeasuredCosts, measure_costs
from dropmuon.planning.noise import NoiseEstimate, measure_noise
from dropmuon.planning.options import Option, Prediction
from dropmuon.planning.planner import Plan, plan
from dropmuon.planning.problem import Problem

__all__ = [
    "MeasuredCosts",
    "NoiseEstimate",
    "Option",
    "Plan",
    "Prediction",
    "Problem",
    "SmoothnessEstimate",
    "estimate_smoothness",
    "measure_costs",
    "measure_noise",
    "plan",
]
