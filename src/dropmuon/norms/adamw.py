"""AdamW as an alternative to the norms."""

from __future__ import annotations

from dataclasses import dataclass

from dropmuon.norms.base import StableRepr

__all__ = ["AdamW"]


@dataclass(frozen=True, repr=False)
class AdamW(StableRepr):
    """A mark for parameters that the optimizer moves by AdamW's rule instead of by a norm.

    It is not a norm: it has no ball and no oracle, only AdamW's hyperparameters (`betas`, the decay
    rates of the two moments, and `eps`, added to the root of the second). The marked parameters
    stay in their layers and are frozen by the same sampler as all others.
    """

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        betas = tuple(float(beta) for beta in self.betas)
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas!r}")
        if not 0.0 <= self.eps < float("inf"):
            raise ValueError(f"eps must be at least 0 and finite, got {self.eps!r}")
        object.__setattr__(self, "betas", betas)
        object.__setattr__(self, "eps", float(self.eps))
