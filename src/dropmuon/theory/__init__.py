"""The theory of the paper: costs, iterations, optimal probabilities. NumPy and SciPy, no torch.

The paper's cost model, its convergence theorems as numbers of iterations, and the probabilities
that minimise the product of the two; beyond the paper, the shares of a batch that layers need, and
what a step sends and takes on many accelerators.
Layers are counted from 0, the layer next to the input.
"""

from __future__ import annotations

from dropmuon.theory.comparisons import (
    Comparison,
    against_full,
    grouped_by_cost,
    grouped_evenly,
    relative_cost,
    transformer_exact,
    transformer_limit,
)
from dropmuon.theory.complexity import (
    GeneralizedIterations,
    Regime,
    generalized_weights,
    iterations_generalized,
    iterations_smooth,
    relative_iterations,
    smooth_weights,
)
from dropmuon.theory.costs import (
    Costs,
    StepCosts,
    cost_of_set,
    distribution_of,
    expected_cost,
    tail_costs,
)
from dropmuon.theory.generalized import (
    GeneralizedSolution,
    full_update_is_optimal_generalized,
    generalized_cost,
    generalized_squared_cost,
    solve_generalized,
    solve_generalized_squared,
)
from dropmuon.theory.leading_order import StochasticCase
from dropmuon.theory.partitions import (
    PartitionSolution,
    TauChoice,
    best_tau,
    contiguous_blocks,
    nice_factor,
    optimal_partition,
    same_position_blocks,
)
from dropmuon.theory.progressive import (
    ProgramSolution,
    full_update_is_optimal,
    optimal_progressive,
    progressive_cost,
    solve_covering_program,
    solve_linear_program,
)
from dropmuon.theory.scale import H100, Machine, StepTime, collective_seconds, step_seconds
from dropmuon.theory.set_search import optimal_sets
from dropmuon.theory.shares import (
    SharesSolution,
    optimal_shares,
    optimal_shares_by_bound,
)
from dropmuon.theory.smoothness import NonMonotoneWarning, Smoothness
from dropmuon.theory.stochastic import (
    PartsVariance,
    StochasticBound,
    StochasticIterations,
    admissible_eta,
    horizon_momentum,
    horizon_radii,
    iterations_stochastic,
    parts_variance,
    stochastic_bound,
)
from dropmuon.theory.traffic import (
    Collective,
    Spread,
    Weight,
    moving_matrices,
    share_out,
    step_traffic,
)

__all__ = [
    "H100",
    "Collective",
    "Comparison",
    "Costs",
    "GeneralizedIterations",
    "GeneralizedSolution",
    "Machine",
    "NonMonotoneWarning",
    "PartitionSolution",
    "PartsVariance",
    "ProgramSolution",
    "Regime",
    "SharesSolution",
    "Smoothness",
    "Spread",
    "StepCosts",
    "StepTime",
    "StochasticBound",
    "StochasticCase",
    "StochasticIterations",
    "TauChoice",
    "Weight",
    "admissible_eta",
    "against_full",
    "best_tau",
    "collective_seconds",
    "contiguous_blocks",
    "cost_of_set",
    "distribution_of",
    "expected_cost",
    "full_update_is_optimal",
    "full_update_is_optimal_generalized",
    "generalized_cost",
    "generalized_squared_cost",
    "generalized_weights",
    "grouped_by_cost",
    "grouped_evenly",
    "horizon_momentum",
    "horizon_radii",
    "iterations_generalized",
    "iterations_smooth",
    "iterations_stochastic",
    "moving_matrices",
    "nice_factor",
    "optimal_partition",
    "optimal_progressive",
    "optimal_sets",
    "optimal_shares",
    "optimal_shares_by_bound",
    "parts_variance",
    "progressive_cost",
    "relative_cost",
    "relative_iterations",
    "same_position_blocks",
    "share_out",
    "smooth_weights",
    "solve_covering_program",
    "solve_generalized",
    "solve_generalized_squared",
    "solve_linear_program",
    "step_seconds",
    "step_traffic",
    "stochastic_bound",
    "tail_costs",
    "transformer_exact",
    "transformer_limit",
]
