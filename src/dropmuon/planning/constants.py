"""From what was seen to constants that theory accepts: complete, monotone and positive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dropmuon.planning.sets import suffixes
from dropmuon.samplers.base import ActiveSet, FloatArray
from dropmuon.theory import Smoothness
from dropmuon.theory.smoothness import covering_pairs

__all__ = ["LEAST", "Table", "completed", "least_of", "lifted", "members", "positive", "raised"]

Table = Mapping[ActiveSet, FloatArray]
"""Per set, numbers with the layers along the last axis."""

LEAST = 1e-2
"""Least constant, as a share of the largest: what seemed flat along a short run may not be."""


def completed(table: Table, num_layers: int) -> dict[ActiveSet, FloatArray]:
    """Add the suffixes that were not measured, with the constants of the next larger one that was.

    A larger set has larger constants (Lemma "smooth_subs"), so these are valid, if not the least.
    """
    found, last = dict(table), None
    for active in suffixes(num_layers):
        if active in table:
            last = table[active]
        elif last is not None:
            found[active] = np.where(np.isin(np.arange(num_layers), active), last, 0.0)
    return found


def raised(table: Table) -> dict[ActiveSet, FloatArray]:
    """Raise the constants of each set to those of its subsets (Lemma "smooth_subs")."""
    sets = list(table)
    found = {active: values.copy() for active, values in table.items()}
    inside = members(sets, 1 + max(active[-1] for active in sets))
    pairs = [(sets[small], sets[large]) for small, large in covering_pairs(inside).tolist()]
    for small, large in sorted(pairs, key=lambda pair: len(pair[1])):
        np.maximum(found[large], found[small], out=found[large])
    return found


def positive(l0: Table, l1: Table | None) -> Smoothness:
    """Make constants positive, as divisions need, by raising what is small to a share of the most.

    Larger constants bound as well as the least ones do, so what is raised stays valid.
    """
    sets = list(l0)
    inside = members(sets, len(l0[sets[0]]))
    return Smoothness(
        dict(zip(sets, lifted(_stacked(l0), inside), strict=True)),
        None if l1 is None else dict(zip(sets, lifted(_stacked(l1), inside), strict=True)),
    )


def lifted(table: FloatArray, inside: npt.NDArray[np.bool_], share: float = LEAST) -> FloatArray:
    """The same for an array (..., sets, layers), each of its own scale; 0 outside of the sets."""
    least = least_of(table.max(axis=(-2, -1), keepdims=True), share)
    return np.where(inside, np.maximum(table, least), 0.0)


def least_of(largest: npt.ArrayLike, share: float = LEAST) -> FloatArray:
    """What constants are raised to where the largest is this; to 1 where all are 0."""
    most = np.asarray(largest, dtype=np.float64)
    return np.where(most > 0, share * most, 1.0)


def members(sets: Sequence[ActiveSet], num_layers: int) -> npt.NDArray[np.bool_]:
    """A row per set, a column per layer: whether the set holds it."""
    inside = np.zeros((len(sets), num_layers), dtype=np.bool_)
    for row, active in zip(inside, sets, strict=True):
        row[list(active)] = True
    return inside


def _stacked(table: Table) -> FloatArray:
    return np.stack(list(table.values()))
