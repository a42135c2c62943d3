"""What parts, turns and smaller batches are expected to gain, from measured costs and noise.

Where layer i would need one step without noise, it needs 1 + nu_i/q_i steps with a share q_i of the
batch: the law of the critical batch size. Relative to full shares, that is s_i = (1 + nu_i/q_i) /
(1 + nu_i), and the gain is the relative cost of a step times the mean of s_i over layers, inverted.
Steps are averaged, not progress: a layer that lags holds up the others. The head, whose share is
always 1, is left out of the mean, as if it were no help to the others. nu_i is the measured
noise-to-signal ratio times `allocation.CAUTION`. A smaller batch gives all layers the same share,
and saves the forward pass, too. Turns save updates and leave all gradients as they are; what a move
r times as long is worth, between one move and nearly r, is not measured.

Costs and noise are measured, the law is not: intervals span the gains for a caution that is `DOUBT`
times as small or as large, and the 5 % and 95 % quantiles of resampled measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby

import numpy as np
import numpy.typing as npt

from dropmuon.planning.measured_costs import MeasuredCosts
from dropmuon.planning.noise import NoiseEstimate
from dropmuon.planning.options import Option, Prediction
from dropmuon.samplers import Full, Shares
from dropmuon.samplers.allocation import CAUTION, DOUBT, best_counts
from dropmuon.samplers.base import FloatArray
from dropmuon.theory import StepCosts

__all__ = ["QUALITY", "WORTHWHILE", "Gains", "SmallerBatch"]

WORTHWHILE = 1.03
"""The least expected gain for which a change is recommended."""

QUALITY = {2: (1 / 2, 0.98), 4: (1 / 4, 0.96)}
"""The least and the most progress of a step with r turns, relative to a full one.

At least, r times as far is no farther; at most, as on a small GPT and early in training, it is
nearly r times. `benchmarks/plan_of_turns.txt` has 0.2 to 0.95 with four turns, and no rule."""

_PARTS = (2, 4, 8)

_FINER = 1.01
"""The gain that twice the number of parts must bring."""

_LEAST_PART = 2
"""The least number of examples in a part."""

_LONGER = 4
"""How many times as long as the measured run training is assumed to be."""

_FARTHEST = 100
"""How many times as far as the measured run its trend is followed, to find where shares are 1."""

_RESAMPLES = 100


@dataclass(frozen=True)
class SmallerBatch:
    """A smaller batch for all layers, and what it is expected to gain on one device."""

    examples: int
    prediction: Prediction


@dataclass(frozen=True, eq=False)
class Gains:
    """The options of a model, predicted from measured costs and noise.

    Attributes:
        costs: the measured costs of a step.
        noise: the measured noise; None where batches cannot be cut.
        steps: the length of the run to plan for; None assumes four times the measured run.
        seed: seed of the intervals.
    """

    costs: MeasuredCosts
    noise: NoiseEstimate | None
    steps: int | None = None
    seed: int = 0

    @property
    def horizon(self) -> int:
        """The number of steps that predictions are for."""
        return self.steps or (_LONGER * self.noise.steps if self.noise is not None else 0)

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Full updates, parts at their best shares, and turns, as far as the model has them."""
        full = Option("full updates", {"sampler": Full()}, Prediction(1.0, 1.0, 1.0))
        parts = [] if self._best_parts is None else [self._best_parts]
        return (full, *parts, *self._turns())

    @property
    def best(self) -> Option:
        """The option of the largest expected gain; full updates unless that is worthwhile.

        A gain that is within the error of the costs is not.
        """
        known = [option for option in self.options if option.fresh.is_known]
        found = max(known, key=lambda option: option.fresh.speedup)
        enough = max(WORTHWHILE, 1.0 + self.costs.fit_error)
        return found if found.fresh.speedup >= enough else self.options[0]

    # What noise says

    @cached_property
    def ratios(self) -> FloatArray | None:
        """nu_i of each layer over the run to plan for, as measured, without caution."""
        return None if self.noise is None else self.noise.over(self.horizon)

    @property
    def critical_batch_sizes(self) -> FloatArray | None:
        """The number of examples at which the noise of each layer equals its signal."""
        if self.noise is None or self.ratios is None:
            return None
        found: FloatArray = self.noise.examples * self.ratios
        return found

    @property
    def critical_batch_size(self) -> float | None:
        """The same for the model: of the ratio that stands for all layers together."""
        if self.noise is None or self.ratios is None:
            return None
        return self.noise.examples * (1.0 / float(np.mean(1.0 / (1.0 + self.ratios))) - 1.0)

    @cached_property
    def full_from(self) -> int | None:
        """The step from which on the best shares are 1; None if the trend does not get there."""
        if self.noise is None or self._best_parts is None:
            return None
        noise, m = self.noise, self._best_parts.settings["parts"]
        farthest = _FARTHEST * noise.steps
        nu, weights = noise.stages(noise.ratios, farthest)
        starts = np.cumsum([0.0, *weights[:-1]]) * farthest
        shorter = [self._best_shares(CAUTION * each, m)[0] < 1.0 for each in nu]
        later = [k for k, is_shorter in enumerate(shorter) if is_shorter]
        first = later[-1] + 1 if later else 0
        return None if first == len(nu) else round(float(starts[first]))

    # Options

    @cached_property
    def _best_parts(self) -> Option | None:
        """Parts with the best shares; None if none are better than the whole batch."""
        noise = self.noise
        if noise is None or len(self.costs.layers) == 1:
            return None
        nu, best = noise.over(self.horizon, CAUTION), None
        for m in _PARTS:
            shares = self._best_shares(nu, m)
            if noise.examples < _LEAST_PART * m or shares[0] == 1.0:
                continue
            found = self._by_noise(noise, shares, partial(self._price, shares=shares, parts=m))
            if best is None or found.speedup >= _FINER * best.fresh.speedup:
                settings = {"sampler": Shares(shares), "parts": m}
                best = Option(f"{m} parts, shares {_listed(shares)}", settings, found)
        return best

    def _best_shares(self, nu: FloatArray, parts: int) -> FloatArray:
        """Return the best shares for this noise; all 1 unless others are better.

        Candidates are equal shares of all layers below the head, and those of most progress per
        cost, which differ by layer.
        """
        seconds, b = self.costs.seconds, len(self.costs.layers)
        each = seconds.in_parts()
        fixed = self._price(seconds, np.zeros(b), parts)
        gain = np.append(1.0 + nu[:-1], 0.0)
        flat = [np.append(np.full(b - 1, k / parts), 1.0) for k in range(1, parts)]
        uneven = np.array(best_counts(each.layer, fixed, nu, gain, parts)) / parts

        def speedup(shares: FloatArray) -> float:
            return float(_progress(nu, shares)) / self._price(seconds, shares, parts)

        best = max([uneven, *flat], key=speedup)
        return best if speedup(best) > 1.0 / _whole(seconds) else np.ones(b)

    def _turns(self) -> list[Option]:
        moving = np.array(self.costs.takes_turns, dtype=np.bool_)
        if not moving.any():
            return []
        found = []
        for r, (least, most) in QUALITY.items():
            saving = partial(_saved_by_turns, moving=moving, turns=r)
            drawn = [saving(each) for each in self.costs.resampled]
            prediction = self._prediction(
                math.sqrt(least * most) * saving(self.costs.seconds),
                [least * each for each in drawn],
                [most * each for each in drawn],
            )
            settings = {"sampler": Full(), "turns": r}
            found.append(Option(f"turns of {r}", settings, prediction))
        return found

    @cached_property
    def smaller_batch(self) -> SmallerBatch | None:
        """The best smaller batch, where it gains as much as the best option, or more.

        It is not smaller than the critical batch size, below which little is left to gain.
        """
        noise, critical = self.noise, self.critical_batch_size
        if noise is None or critical is None:
            return None
        found = None
        for k in range(1, int(math.log2(noise.examples / max(critical, 1.0))) + 1):
            shares = np.full(len(self.costs.layers), 2.0**-k)
            price = partial(_price_of_batch, share=2.0**-k)
            predicted = self._by_noise(noise, shares, price)
            if found is None or predicted.speedup > found.prediction.speedup:
                found = SmallerBatch(round(noise.examples * 2.0**-k), predicted)
        if found is None or not found.prediction.is_known:
            return None
        enough = max(WORTHWHILE, self.best.fresh.speedup)
        return found if found.prediction.speedup >= enough else None

    # Predictions

    def _by_noise(
        self, noise: NoiseEstimate, shares: FloatArray, price: Callable[[StepCosts], float]
    ) -> Prediction:
        """Predict the gain of shares by the law of noise, at a price that depends on costs."""
        drawn = self.costs.resampled or (self.costs.seconds,)
        costs = [self.costs.seconds, *(drawn[k % len(drawn)] for k in range(_RESAMPLES))]
        cheaper = np.array([_whole(each) / price(each) for each in costs])
        ratios = noise.resampled(_RESAMPLES, self.seed)
        expected, low, high = (
            cheaper * _progress(noise.over(self.horizon, factor, ratios), shares)
            for factor in (CAUTION, CAUTION * DOUBT, CAUTION / DOUBT)
        )
        found = self._prediction(float(expected[0]), low, high)
        return found if noise.known else Prediction(found.speedup, 0.0, math.inf)

    def _prediction(self, expected: float, low: npt.ArrayLike, high: npt.ArrayLike) -> Prediction:
        if not self.costs.known:
            return Prediction(expected, 0.0, math.inf)
        error = 1.0 + self.costs.fit_error
        least = float(np.quantile([*np.asarray(low), expected], 0.05)) / error
        most = float(np.quantile([*np.asarray(high), expected], 0.95)) * error
        return Prediction(expected, min(least, expected), max(most, expected))

    @property
    def piecewise(self) -> float | None:
        """The time of both passes of a batch in pieces, over that in one; None where unknown."""
        if self.noise is None or self.noise.pieces == 1 or not self.costs.known:
            return None
        return self.noise.seconds / self._passes

    @cached_property
    def _cutting(self) -> float:
        """What each further part adds to a step: measured, as the run cut its batches.

        Never less than 0: what pieces save, full updates in pieces save, too.
        """
        if self.noise is None or self.noise.pieces == 1:
            return 0.0
        return max(0.0, self.noise.seconds - self._passes) / (self.noise.pieces - 1)

    @property
    def _passes(self) -> float:
        return _whole(self.costs.seconds) - float(self.costs.seconds.sharp.sum())

    def _price(self, costs: StepCosts, shares: FloatArray, parts: int) -> float:
        each = costs.in_parts()
        fixed = each.overhead + float(each.sharp.sum()) + (parts - 1) * self._cutting
        return fixed + float(each.layer @ shares)


def _progress(nu: FloatArray, shares: FloatArray) -> FloatArray:
    """Return 1 over the mean of s_i over layers below the head: the progress of a step."""
    below = slice(None, -1) if shares.size > 1 else slice(None)
    steps = (1.0 + nu / shares) / (1.0 + nu)
    found: FloatArray = 1.0 / steps[..., below].mean(axis=-1)
    return found


def _whole(costs: StepCosts) -> float:
    """Return what a full step costs."""
    each = costs.in_parts()
    return each.overhead + float(each.layer.sum() + each.sharp.sum())


def _saved_by_turns(costs: StepCosts, moving: npt.NDArray[np.bool_], turns: int) -> float:
    """Return the time of a full step over that of one in which these layers take turns."""
    whole = _whole(costs)
    return whole / (whole - (1.0 - 1.0 / turns) * float(costs.sharp[moving].sum()))


def _price_of_batch(costs: StepCosts, share: float) -> float:
    """Return what a full step costs with a share of the batch: overhead and updates stay."""
    passes = float((costs.forward + costs.backward + costs.weight).sum())
    return costs.overhead + costs.batch + share * passes + float(costs.sharp.sum())


def _listed(shares: FloatArray) -> str:
    """Return shares such as "3 x 0.25, 1": equal ones together."""
    runs = [(value, len(list(run))) for value, run in groupby(shares.tolist())]
    return ", ".join(f"{value:g}" if n == 1 else f"{n} x {value:g}" for value, n in runs)
