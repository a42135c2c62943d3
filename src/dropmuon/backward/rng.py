"""The state of all random number generators that a forward pass may draw from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["RandomState"]


@dataclass(frozen=True, eq=False)
class RandomState:
    """A snapshot of the generators of the CPU and of the accelerators in use."""

    cpu: Tensor
    cuda: tuple[Tensor, ...]
    mps: tuple[Tensor, ...]

    @classmethod
    def now(cls) -> RandomState:
        """Take a snapshot, without waiting: generator states are on the host."""
        has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        cuda = tuple(torch.cuda.get_rng_state_all()) if has_cuda else ()
        mps = (torch.mps.get_rng_state(),) if torch.backends.mps.is_available() else ()
        return cls(torch.get_rng_state(), cuda, mps)

    def restore(self) -> None:
        """Restore the generators to this state."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(list(self.cuda))
        for state in self.mps:
            torch.mps.set_rng_state(state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RandomState):
            return NotImplemented
        mine, theirs = (self.cpu, *self.cuda, *self.mps), (other.cpu, *other.cuda, *other.mps)
        return len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))

    __hash__ = None  # type: ignore[assignment]
