"""`plan`: measure a model, compare ways to train it, and recommend one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from dropmuon.checks import whole_number
from dropmuon.planning import figure, report, storage
from dropmuon.planning.bounds.comparison import Bounds
from dropmuon.planning.bounds.estimated_smoothness import SmoothnessEstimate, estimate_smoothness
from dropmuon.planning.bounds.probe import planned_sets
from dropmuon.planning.bounds.stochastic_case import measure_case
from dropmuon.planning.gains import Gains, SmallerBatch
from dropmuon.planning.measured_costs import MeasuredCosts, measure_costs
from dropmuon.planning.noise import NoiseEstimate, measure_noise
from dropmuon.planning.options import Option
from dropmuon.planning.problem import Loss, Problem
from dropmuon.planning.timing import check_budget
from dropmuon.samplers import Sampler
from dropmuon.samplers.base import FloatArray
from dropmuon.step.rules import StepRule
from dropmuon.theory.complexity import Regime, check_regime

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Plan", "plan"]

OnProgress = Callable[[str, float], None]

_BATCHES_SHARE, _COSTS_SHARE, _NOISE_SHARE = 0.1, 0.4, 0.4
"""The shares of the budget for drawing batches; of what is left then, for measuring costs; and of
what is left after that, for measuring noise where smoothness is estimated, too."""

_LEAST_LEFT = 0.01
"""The share of the budget that each part has at least."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The measurements of a model, and how to train it.

    Attributes:
        costs: the measured costs of a step.
        noise: the measured noise of every layer's gradient; None where batches cannot be cut.
        bounds: samplers as the paper's bounds compare them, which then decide; None unless a
            regime was given.
        steps: the length of the run to plan for, as given.
        seed: seed of the intervals.
    """

    costs: MeasuredCosts
    noise: NoiseEstimate | None = None
    bounds: Bounds | None = None
    steps: int | None = None
    seed: int = 0

    @cached_property
    def gains(self) -> Gains:
        """Parts and turns, as measurements predict them."""
        return Gains(self.costs, self.noise, self.steps, self.seed)

    @property
    def options(self) -> tuple[Option, ...]:
        """What was compared, full updates first: by measurements, or by bounds if asked for."""
        return self.gains.options if self.bounds is None else self.bounds.options

    @property
    def best(self) -> Option:
        """What is recommended."""
        return self.gains.best if self.bounds is None else self.bounds.best

    @property
    def settings(self) -> dict[str, Any]:
        """The recommended settings, for `DropMuon(model, lr=lr, **plan.settings)`."""
        return dict(self.best.settings)

    @property
    def gain_expected(self) -> bool:
        """Whether anything is recommended over full updates."""
        return self.best is not self.options[0]

    @property
    def predicted_speedup(self) -> float:
        """The time of full updates over that of what is recommended, on fresh batches."""
        return self.best.fresh.speedup

    @property
    def sampler(self) -> Sampler:
        """The recommended sampler; with `parts` more than 1 it needs them, see `settings`."""
        return self.best.sampler

    @property
    def parts(self) -> int:
        """The recommended number of parts of a batch."""
        return int(self.best.settings.get("parts", 1))

    @property
    def turns(self) -> int:
        """The recommended number of turns."""
        return int(self.best.settings.get("turns", 1))

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of a batch that each layer's gradient is computed from."""
        b = len(self.costs.layers)
        return tuple((self.sampler.expected_parts(b, self.parts) / self.parts).tolist())

    @property
    def critical_batch_sizes(self) -> FloatArray | None:
        """The batch at which the noise of each layer's gradient equals its signal, over the run."""
        return self.gains.critical_batch_sizes

    @property
    def critical_batch_size(self) -> float | None:
        """The same for the whole model."""
        return self.gains.critical_batch_size

    @property
    def full_from(self) -> int | None:
        """The step from which on parts should have shares of 1, by the trend of the noise."""
        return self.gains.full_from

    @property
    def smaller_batch(self) -> SmallerBatch | None:
        """A smaller batch that is expected to gain as much or more on one device, if any is."""
        return self.gains.smaller_batch

    @property
    def smoothness(self) -> SmoothnessEstimate:
        """The estimated smoothness constants, if a regime was given."""
        return self._known_bounds("smoothness").smoothness

    @property
    def step_rule(self) -> StepRule:
        """The theorems' sharp steps, for `DropMuon(model, lr=1.0, sampler=..., step_rule=...)`.

        The constants are those of the full set, at the upper ends of their intervals. The rule
        sets momentum to 0, as the theorems assume.
        """
        return self._known_bounds("step_rule").step_rule

    def _known_bounds(self, asked: str) -> Bounds:
        if self.bounds is None:
            raise ValueError(f"{asked} needs constants of smoothness; plan with regime='smooth'")
        return self.bounds

    def __str__(self) -> str:
        return report.text(self)

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file, which is replaced as a whole or not at all."""
        storage.write(Path(path), self.costs, self.noise, self.bounds, self.steps, self.seed)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Return the plan that `save` wrote to this file."""
        return Plan(*storage.read(Path(path)))

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw costs, noise, shares and constants in one figure; save it if a path is given."""
        return figure.draw(self, path)


def plan(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    steps: int | None = None,
    budget: float = 60.0,
    regime: Regime | None = None,
    points: int = 12,
    updates_per_batch: int = 2,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> Plan:
    """Measure a model on this machine, and recommend whether and how to update fewer layers.

    Args:
        model: the model to be trained. It is left exactly as it was, and so are random number
            generators.
        loss: a function of the model and a batch that returns a scalar, the mean over the batch.
        batches: batches of the size to train with, used in turn: the more, the longer the measured
            run may be. At most 64 are drawn, and half a gigabyte.
        steps: the number of steps that training will take. Noise grows with it. By default four
            times the number of steps that were measured.
        budget: approximate time to spend, in seconds.
        regime: compare samplers by the paper's bounds instead of measured noise: "smooth"; or
            (L0, L1)-smooth layers, where the "1/eps" or the "1/eps^2" term of the number of steps
            dominates; or these with "stochastic" gradients, whose noise is measured.
        points: with a regime, the number of points of a run at which smoothness is estimated.
        updates_per_batch: with a regime, the number of updates that predictions for reused batches
            assume.
        seed: seed of the order of measurements and of the intervals.
        on_progress: called with the name of the current stage and the share of it that is done.
        settings: arguments of the `DropMuon` to plan for, such as lr, momentum, by, policy,
            example.
    """
    check_budget(budget)
    if steps is not None:
        whole_number("steps", steps)
    whole_number("points", points)
    whole_number("updates_per_batch", updates_per_batch)
    if regime is not None:
        check_regime(regime)
    tell = on_progress or (lambda stage, share: None)
    end = time.perf_counter() + budget

    def left() -> float:
        return max(_LEAST_LEFT * budget, end - time.perf_counter())

    problem = Problem(model, loss, batches, seconds=_BATCHES_SHARE * budget)
    costs = measure_costs(
        problem,
        settings,
        _COSTS_SHARE * left(),
        lambda share: tell("measuring costs", share),
        seed=seed,
    )
    noise = measure_noise(
        problem,
        settings,
        steps,
        left() * (1.0 if regime is None else _NOISE_SHARE),
        lambda share: tell("measuring noise", share),
    )
    if regime is None:
        return Plan(costs, noise, None, steps, seed)
    case = measure_case(problem, settings, noise) if regime == "stochastic" else None
    estimate = _smoothness(problem, settings, costs, points, left(), seed, tell)
    bounds = Bounds(costs, estimate, regime, updates_per_batch, seed, case)
    return Plan(costs, noise, bounds, steps, seed)


def _smoothness(
    problem: Problem,
    settings: Mapping[str, Any],
    costs: MeasuredCosts,
    points: int,
    budget: float,
    seed: int,
    tell: OnProgress,
) -> SmoothnessEstimate:
    return estimate_smoothness(
        problem,
        settings,
        planned_sets(costs.layers),
        points,
        budget,
        seed=seed,
        on_progress=lambda share: tell("estimating smoothness", share),
    )
