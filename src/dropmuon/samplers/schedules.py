"""Probabilities over outcomes: given outright, by name, or as a schedule of training progress.

The distributions are those of the paper's experiments ("Uniform", "Linear", "Quadratic",
"Exponential", and the section "Epoch-Shift Distribution"). Every function here stays finite for
thousands of outcomes; the steep ones may underflow to an exact zero, which `Sampler.check` reports.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dropmuon.checks import unknown_name, whole_number
from dropmuon.samplers.base import FloatArray, check_progress

__all__ = [
    "SCHEDULES",
    "Custom",
    "EpochShift",
    "Fixed",
    "ProbabilitiesLike",
    "Schedule",
    "as_schedule",
    "epoch_shift",
    "exponential",
    "linear",
    "quadratic",
    "uniform",
]

_SUM_TOLERANCE = 1e-6

_NEARLY = 1.0 + 1e-12
"""Makes up for rounding where an epoch begins."""


class Schedule(ABC):
    """Probabilities over n outcomes, as a function of progress in [0, 1]."""

    def __call__(self, n: int, progress: float = 0.0) -> FloatArray:
        """Return the n probabilities at this progress."""
        check_progress(progress)
        outcomes = whole_number("n", n, remedy="give the number of outcomes")
        return self._probabilities(outcomes, progress)

    @property
    def needs_progress(self) -> bool:
        """Whether the probabilities change with progress."""
        return False

    @abstractmethod
    def _probabilities(self, n: int, progress: float) -> FloatArray:
        """Return the n probabilities; n and progress are valid."""


@dataclass(frozen=True, repr=False)
class _Named(Schedule):
    """Probabilities that depend on the outcome's place alone, known by a name."""

    name: str

    def __repr__(self) -> str:
        return self.name

    def _probabilities(self, n: int, progress: float) -> FloatArray:
        place = np.arange(1, n + 1, dtype=np.float64)
        with np.errstate(under="ignore"):
            return _per_total(_WEIGHTS[self.name](place))


_WEIGHTS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "uniform": np.ones_like,
    "linear": lambda place: place,
    "quadratic": np.square,
    "exponential": lambda place: np.exp(place - place[-1]),
}

uniform: Schedule = _Named("uniform")
"""p_i = 1/n."""
linear: Schedule = _Named("linear")
"""p_i proportional to i + 1, i from 0: favours the last outcomes."""
quadratic: Schedule = _Named("quadratic")
"""p_i proportional to (i + 1)^2."""
exponential: Schedule = _Named("exponential")
"""p_i proportional to exp(i)."""


@dataclass(frozen=True)
class EpochShift(Schedule):
    """Shallow first, deep later: w_i = exp(alpha * ((1 - progress)(n - 1 - i) + progress * i)).

    From the section "Epoch-Shift Distribution". `alpha` sets how sharp the preference is; 0 is
    uniform. With `epochs`, progress is epoch / max_epochs as the paper prints it: it rises at the
    end of every epoch, not at every step. Made by `epoch_shift`.
    """

    alpha: float = 0.5
    epochs: int | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None:
            whole_number("epochs", self.epochs, remedy="give the number of epochs of the run")
        alpha = float(self.alpha)
        if not math.isfinite(alpha):
            raise ValueError(f"alpha must be finite, got {alpha}; the paper uses 0.5")
        object.__setattr__(self, "alpha", alpha)

    def __repr__(self) -> str:
        by_epoch = "" if self.epochs is None else f", epochs={self.epochs}"
        return f"epoch_shift(alpha={self.alpha!r}{by_epoch})"

    @property
    def needs_progress(self) -> bool:
        """True: this schedule depends on progress."""
        return True

    def _probabilities(self, n: int, progress: float) -> FloatArray:
        i = np.arange(n, dtype=np.float64)
        if self.epochs is not None:
            progress = math.floor(progress * self.epochs * _NEARLY) / self.epochs
        exponent = (1.0 - progress) * (n - 1 - i) + progress * i
        largest = exponent.max() if self.alpha >= 0 else exponent.min()
        with np.errstate(under="ignore", over="ignore"):
            return _per_total(np.exp(self.alpha * (exponent - largest)))


def epoch_shift(alpha: float = 0.5, epochs: int | None = None) -> EpochShift:
    """Make the epoch-shift schedule: shallow outcomes first, deep ones as progress nears 1.

    It shifts with every step, or with `epochs`, as the paper prints it, once per epoch.
    """
    return EpochShift(alpha, epochs)


@dataclass(frozen=True)
class Fixed(Schedule):
    """Explicit probabilities, the same at every progress."""

    probabilities: tuple[float, ...]

    def __init__(self, probabilities: npt.ArrayLike) -> None:
        values = _validated(probabilities, "probabilities")
        object.__setattr__(self, "probabilities", tuple(values.tolist()))

    def __repr__(self) -> str:
        return f"Fixed({self.probabilities!r})"

    def _probabilities(self, n: int, progress: float) -> FloatArray:
        return _of_length(np.array(self.probabilities, dtype=np.float64), n, "probabilities")


@dataclass(frozen=True)
class Custom(Schedule):
    """A user's function `f(n, progress)`, whose results are validated at each use.

    Its `repr` is the qualified name of the function, and does not describe its body.
    """

    function: Callable[[int, float], npt.ArrayLike]

    def __repr__(self) -> str:
        return f"Custom({_describe(self.function)})"

    @property
    def needs_progress(self) -> bool:
        """True: the function takes progress, and may use it."""
        return True

    def _probabilities(self, n: int, progress: float) -> FloatArray:
        argument = f"probabilities from {_describe(self.function)}"
        return _of_length(_validated(self.function(n, progress), argument), n, argument)


SCHEDULES: dict[str, Schedule] = {
    "uniform": uniform,
    "linear": linear,
    "quadratic": quadratic,
    "exponential": exponential,
    "epoch-shift": epoch_shift(),
}
"""The schedules that have a name."""

ProbabilitiesLike: TypeAlias = Schedule | Callable[[int, float], npt.ArrayLike] | npt.ArrayLike
"""What a sampler accepts: numbers, a name, a schedule, or a function of (n, progress)."""


def as_schedule(probabilities: ProbabilitiesLike) -> Schedule:
    """Return the schedule that `probabilities` describes, or raise an error."""
    if isinstance(probabilities, Schedule):
        return probabilities
    if isinstance(probabilities, str):
        if probabilities not in SCHEDULES:
            raise unknown_name("probabilities", probabilities, SCHEDULES)
        return SCHEDULES[probabilities]
    maker: object = probabilities
    if maker is epoch_shift or isinstance(probabilities, type):
        raise TypeError(
            f"probabilities must be a schedule, got its maker {_describe(maker)}; "
            "call it, as in epoch_shift(alpha=0.5)"
        )
    if callable(probabilities):
        return Custom(probabilities)
    return Fixed(probabilities)


def _per_total(weights: FloatArray) -> FloatArray:
    shares: FloatArray = weights / weights.sum()
    return shares


def _validated(given: npt.ArrayLike, argument: str) -> FloatArray:
    """Return probabilities that sum to 1 exactly, or raise an error."""
    try:
        values = np.array(given, dtype=np.float64) + 0.0  # -0.0 becomes 0.0
    except (TypeError, ValueError):
        raise TypeError(
            f"{argument} must be numbers, got {given!r}; give an array, a schedule or its name"
        ) from None
    if values.ndim != 1:
        raise ValueError(
            f"{argument} must be one-dimensional, got shape {values.shape}; give a flat list"
        )
    if values.size == 0:
        raise ValueError(f"{argument} must not be empty, got no entries; give one per outcome")
    for wrong, fault in ((~np.isfinite(values), "be finite"), (values < 0, "not be negative")):
        if wrong.any():
            k = int(wrong.argmax())
            raise ValueError(
                f"{argument} must {fault}, got {values[k]} at index {k}; use numbers in [0, 1]"
            )
    total = math.fsum(values.tolist())
    if abs(total - 1.0) > _SUM_TOLERANCE:
        remedy = "divide them by their sum" if total > 0 else "make at least one of them positive"
        raise ValueError(f"{argument} must sum to 1, got {total:.9g}; {remedy}")
    return values if total == 1.0 else _normalised(values / total)


def _normalised(values: FloatArray) -> FloatArray:
    """Let the largest entry absorb the rounding, so that normalising twice changes nothing."""
    k = int(values.argmax())
    values[k] = 0.0
    values[k] = math.fsum([1.0, *(-values).tolist()])
    return values


def _of_length(values: FloatArray, n: int, argument: str) -> FloatArray:
    if values.size != n:
        raise ValueError(
            f"{argument} must have {n} entries, got {values.size}; "
            "give one for each layer, starting layer or block that can be drawn"
        )
    return values


def _describe(thing: object) -> str:
    """Describe a function or its bound argument the same way in every process."""
    if isinstance(thing, functools.partial):
        arguments = [_describe(value) for value in (thing.func, *thing.args)]
        arguments += [f"{name}={_describe(value)}" for name, value in thing.keywords.items()]
        return f"partial({', '.join(arguments)})"
    if hasattr(thing, "__qualname__") and hasattr(thing, "__module__"):
        return f"{thing.__module__}.{thing.__qualname__}"
    text = repr(thing.tolist() if isinstance(thing, np.ndarray) else thing)
    return text if " at 0x" not in text else f"{type(thing).__module__}.{type(thing).__qualname__}"
