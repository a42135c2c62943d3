"""How far a layer moves: the step rules of the paper's theorems.

Every rule gives the length of a step along the unit direction of a norm. The learning rate
multiplies it, so schedulers work with all of them.

A layer of several parameters (a weight and its bias) needs one norm, composed of theirs. There are
two, and each rule has the one that its theorem needs: `LARGEST` where every parameter moves by the
same radius (Algorithm 1), `ROOT_OF_SQUARES` where the sharp operator of a layer must consist of
those of its parameters (Algorithm 2), so that SGD is the Euclidean case.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dropmuon.checks import kind_of, whole_number
from dropmuon.norms.numerics import length
from dropmuon.samplers import ActiveSet

__all__ = [
    "LARGEST",
    "ROOT_OF_SQUARES",
    "Constant",
    "Constants",
    "Generalized",
    "Horizon",
    "NormOfLayer",
    "Sharp",
    "Smooth",
    "StepRule",
]

Constants = float | ArrayLike | Callable[[int, ActiveSet], float]


class NormOfLayer(NamedTuple):
    """The norm of a layer from those of its parameters, and its dual norm from theirs.

    `widest` gives rho_high of the layer from those of its parameters; rho_low is their least.
    """

    norm: Callable[[Tensor], Tensor]
    dual: Callable[[Tensor], Tensor]
    widest: Callable[[Tensor], Tensor]

    def rho(self, parameters: Iterable[tuple[float, float]]) -> tuple[float, float]:
        """Return rho_low and rho_high of a layer from those of its parameters, see `Norm.rho`."""
        low, high = torch.tensor(list(parameters), dtype=torch.float64).unbind(dim=1)
        return float(low.amin()), float(self.widest(high))


LARGEST = NormOfLayer(norm=torch.amax, dual=torch.sum, widest=torch.linalg.vector_norm)
"""The largest of the norms; its dual is the sum of the dual norms."""

ROOT_OF_SQUARES = NormOfLayer(norm=length, dual=length, widest=torch.amax)
"""The root of the sum of squares, its own dual; no square of a finite number overflows in it."""


class StepRule(ABC):
    """The length of a step, as a factor of the learning rate."""

    layer_norm: ClassVar[NormOfLayer] = LARGEST
    """The norm of a layer of several parameters that the rule's theorem is about."""

    uses_dual: ClassVar[bool] = False
    """Whether the length depends on dual norms, which then have to be computed."""

    momentum: float | None = None
    """The momentum that the rule's theorem requires, if any."""

    @abstractmethod
    def length(
        self, layer: int, active: ActiveSet, dual: Tensor | None, layer_dual: Tensor | None
    ) -> float | Tensor:
        """Return the length for one parameter, from its own dual norm and its layer's."""

    def check(self, num_layers: int) -> None:
        """Raise ValueError if the rule was made for another number of layers."""
        return


@dataclass(frozen=True)
class Constant(StepRule):
    """X_i + lmo(M_i) over a ball of radius lr: Algorithm 1 with t_i constant, Muon's step."""

    def length(
        self, layer: int, active: ActiveSet, dual: Tensor | None, layer_dual: Tensor | None
    ) -> float:
        return 1.0


@dataclass(frozen=True)
class Sharp(StepRule):
    """X_i - lr * sharp(M_i): steepest descent; with Euclidean norms, SGD."""

    layer_norm = ROOT_OF_SQUARES
    uses_dual = True

    def length(
        self, layer: int, active: ActiveSet, dual: Tensor | None, layer_dual: Tensor | None
    ) -> Tensor:
        return _known(dual)


class Smooth(StepRule):
    """gamma_i = 1 / L_{i,S} (Theorem "rt_smooth_iter"): sharp steps for layer-wise smooth f."""

    layer_norm = ROOT_OF_SQUARES
    uses_dual = True

    def __init__(self, constants: Constants) -> None:
        self._constants = _Table("constants", constants, positive=True)

    def check(self, num_layers: int) -> None:
        self._constants.check(num_layers)

    def length(
        self, layer: int, active: ActiveSet, dual: Tensor | None, layer_dual: Tensor | None
    ) -> Tensor:
        return _known(dual) / self._constants(layer, active)

    def __repr__(self) -> str:
        return f"Smooth({self._constants!r})"


class Generalized(StepRule):
    """gamma_i = 1 / (L0_{i,S} + L1_{i,S} dual(G_i)) (Theorem "rt_l0l1_iter")."""

    layer_norm = ROOT_OF_SQUARES
    uses_dual = True

    def __init__(self, l0: Constants, l1: Constants) -> None:
        self._l0 = _Table("l0", l0, positive=False)
        self._l1 = _Table("l1", l1, positive=False)

    def check(self, num_layers: int) -> None:
        self._l0.check(num_layers)
        self._l1.check(num_layers)

    def length(
        self, layer: int, active: ActiveSet, dual: Tensor | None, layer_dual: Tensor | None
    ) -> Tensor:
        curvature = self._l0(layer, active) + self._l1(layer, active) * _known(layer_dual)
        smallest = np.finfo(np.float32).tiny
        return _known(dual) / curvature.clamp(min=float(smallest))

    def __repr__(self) -> str:
        return f"Generalized({self._l0!r}, {self._l1!r})"


class Horizon(StepRule):
    """t_i = eta_i / (K+1)^(3/4) and beta = (K+1)^(-1/2) (Theorem "stoch_rt_l0l1_iter").

    The radii and the momentum that the stochastic theorem requires when K steps are planned. The
    momentum kept is 1 - beta. Leave the learning rate at 1 to get the theorem's own radii.

    The proof does not cover the printed eta where layers are left out of steps (docs/theory.md). It
    does with `reached`, the probabilities P(i in S) that layers move (`sampler.marginals(b)[1]`):
    radii are then shorter by their roots. `theory.admissible_eta(..., repaired=True)` finds the
    largest such eta, never smaller than this; with those, leave `reached` out.
    """

    def __init__(
        self, steps: int, eta: Constants = 1.0, *, reached: ArrayLike | None = None
    ) -> None:
        self.steps = whole_number("steps", steps, remedy="it is the horizon K")
        self.momentum = 1.0 - (self.steps + 1) ** -0.5
        self._eta = _Table("eta", eta, positive=True)
        self._reached = _Table("reached", 1.0 if reached is None else reached, positive=True)
        self._reached.refuse_above(1.0)

    def check(self, num_layers: int) -> None:
        self._eta.check(num_layers)
        self._reached.check(num_layers)

    def length(
        self, layer: int, active: ActiveSet, dual: Tensor | None, layer_dual: Tensor | None
    ) -> float:
        eta = self._eta(layer, active) * math.sqrt(self._reached(layer, active))
        return eta / float((self.steps + 1) ** 0.75)

    def __repr__(self) -> str:
        reached = repr(self._reached)
        shorter = "" if reached == "1.0" else f", reached={reached}"
        return f"Horizon({self.steps}, {self._eta!r}{shorter})"


def or_default(rule: StepRule | None) -> StepRule:
    """Return the rule that is given, or steps of constant radius."""
    if rule is not None and not isinstance(rule, StepRule):
        raise TypeError(
            f"step_rule must be a rules.StepRule, got {kind_of(rule)}; for a fixed length, set lr"
        )
    return rule or Constant()


def momentum_or_default(given: float | None, rule: StepRule, default: float = 0.5) -> float:
    """Return the momentum: what is given, else what the rule's theorem requires, or the default."""
    if given is None:
        return default if rule.momentum is None else rule.momentum
    if rule.momentum is not None and given != rule.momentum:
        raise ValueError(
            f"momentum={given} contradicts {rule!r}, whose theorem requires {rule.momentum}; "
            "leave momentum out"
        )
    return given


def _known(dual: Tensor | None) -> Tensor:
    """Return the dual norm, which a rule with `uses_dual` always gets."""
    if dual is None:
        raise TypeError("this step rule needs the dual norms of the gradient, got None")
    return dual


class _Table:
    """Constants per layer and set: a number, L[i], L[i, s] with s the cutoff, or a callable."""

    def __init__(self, name: str, values: Constants, *, positive: bool) -> None:
        self._name = name
        self._positive = positive
        self._function = values if callable(values) else None
        self._values = np.asarray(0.0 if callable(values) else values, dtype=np.float64)
        shape = self._values.shape
        if len(shape) > 2 or (len(shape) == 2 and shape[0] != shape[1]):
            raise ValueError(
                f"{name} must be a number, a vector L[i] or a square matrix L[i, cutoff], "
                f"got shape {shape}"
            )
        if self._function is None:
            used = self._values[np.tril_indices_from(self._values)] if len(shape) == 2 else None
            self._refuse_bad(self._values if used is None else used)

    def __call__(self, layer: int, active: ActiveSet) -> float:
        if self._function is not None:
            value = float(self._function(layer, active))
            self._refuse_bad(np.asarray(value))
            return value
        index = (layer, active[0])[: self._values.ndim]
        return float(self._values[index])

    def check(self, num_layers: int) -> None:
        if self._values.ndim and len(self._values) != num_layers:
            raise ValueError(
                f"{self._name} has {len(self._values)} entries, but the model has {num_layers} "
                "layers; give one entry per layer"
            )

    def refuse_above(self, most: float) -> None:
        if (self._values > most).any():
            raise ValueError(
                f"{self._name} must be at most {most:g}, got {self._values.tolist()}; "
                "give probabilities"
            )

    def _refuse_bad(self, values: NDArray[np.float64]) -> None:
        low = values <= 0 if self._positive else values < 0
        if low.any() or not np.isfinite(values).all():
            wanted = "positive" if self._positive else "non-negative"
            raise ValueError(f"{self._name} must be finite and {wanted}, got {values.tolist()}")

    def __repr__(self) -> str:
        return repr(self._function if self._function is not None else self._values.tolist())
