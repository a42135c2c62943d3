"""Gradients that are lost: active layers that none reaches once layers below them are frozen.

Reentrant checkpointing computes no gradient inside a block whose input needs none. With all layers
active the input of every block does; above a cutoff that of the first active block does not, and
nothing that it contains is trained, nor the blocks after it. PyTorch warns, but not of the cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile

__all__ = ["MissingGradients"]

_TIMES = 4
"""In how many truncated backwards in a row a layer may be skipped by chance, as an expert is that
sees no token, and a block under stochastic depth."""


class MissingGradients:
    """Counts for each layer the truncated backwards in a row that brought it no gradient."""

    def __init__(self) -> None:
        self._missed: dict[int, int] = {}

    def see(
        self, active: Iterable[int], found: Collection[int], layers: Sequence[str]
    ) -> str | None:
        """Count a truncated backward, and return a warning if one is due.

        `active` are active layers that are known to get gradients in a full step, `found` those
        that got one now. A gradient comes from above, so that it is the lowest of them that miss
        theirs; an expert without tokens mostly has others with a gradient below it.
        """
        if not found:
            return None
        silent = list(takewhile(lambda layer: layer not in found, sorted(active)))
        self._missed.update(dict.fromkeys(found, 0))
        for layer in silent:
            self._missed[layer] = self._missed.get(layer, 0) + 1
        if max(self._missed.values()) < _TIMES:
            return None
        names = ", ".join(repr(layers[layer]) for layer in silent[:3])
        more = ", ..." if len(silent) > 3 else ""
        return (
            f"no gradient reached {names}{more}, although active, in {_TIMES} truncated backwards "
            "in a row, and there was one in a full step; activation checkpointing with "
            "use_reentrant=True computes none where the input of a block needs none: pass "
            'use_reentrant=False (transformers: gradient_checkpointing_kwargs={"use_reentrant": '
            "False})"
        )
