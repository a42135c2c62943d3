"""How much each layer computes: multiplications, counted from the shapes of a forward pass.

Only ratios matter, and they must be equal on all ranks, so operations are counted and not timed.
What has no parameters, such as attention scores, is left out: it grows with the layers around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dropmuon.model.roster import Member, Roster

__all__ = ["Work"]

_PRODUCTS = 15
"""Products of m^2 n in an orthogonalisation: five iterations of three."""


class Work:
    """Counts the multiplications of every layer in the forward passes until it is closed."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._positions: dict[Tensor, float] = {}
        matrices: dict[nn.Module, list[Tensor]] = {}
        for member in roster.members():
            if member.module is not None and _multiplies(member):
                matrices.setdefault(member.module, []).append(member.parameter)
        self._handles = [
            module.register_forward_hook(self._counting(found))
            for module, found in matrices.items()
        ]

    def close(self) -> None:
        """Stop counting."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def costs(self, turns: int) -> tuple[float, list[float]]:
        """Return the fixed cost of a step, and the backward of each layer, of all that was seen.

        Fixed are the forward pass and the updates. Backward through layer i computes the gradients
        of its own weights, and those of the inputs of layer i + 1, through which it is reached.
        A weight whose use was not seen counts as if it met as many positions as the others.
        """
        typical = max(self._positions.values(), default=1.0)
        forward = [
            sum(
                2.0 * member.parameter.numel() * self._positions.get(member.parameter, typical)
                for member in layer
                if _multiplies(member)
            )
            for layer in self._roster.layers
        ]
        products = sum(member.direction_cost for member in self._roster.members())
        updates = 2.0 * _PRODUCTS * products / turns
        inputs = [*forward[1:], 0.0]
        backward = [own + above for own, above in zip(forward, inputs, strict=True)]
        return sum(forward) + updates, backward

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the hooks: a copy counts nothing more."""
        return {**self.__dict__, "_handles": []}

    def _counting(self, matrices: Sequence[Tensor]) -> Any:
        def count(module: nn.Module, inputs: Any, output: Any) -> None:
            if torch.compiler.is_compiling() or not isinstance(output, Tensor):
                return
            if torch.is_grad_enabled():
                found = inputs[0] if getattr(module, "transposed", False) else output
                channels = found.shape[1] if isinstance(module, _CONVOLUTIONS) else found.shape[-1]
                for matrix in matrices:
                    seen = self._positions.get(matrix, 0.0)
                    self._positions[matrix] = seen + found.numel() / max(channels, 1)

        return count


_CONVOLUTIONS = (nn.modules.conv._ConvNd,)


def _multiplies(member: Member) -> bool:
    return member.is_matrix and not member.is_embedding
