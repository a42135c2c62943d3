"""The smoothness constants L0_{i,S} and L1_{i,S} of layer i when the layers of S move together.

The assumptions "supp(D)--layer-wise smoothness" and "supp(D)--layer-wise (L0, L1)--smoothness".
Layers are counted from 0. A layer outside of S has the constant 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression, nnls

from dropmuon.samplers.base import ActiveSet, FloatArray, active_set
from dropmuon.theory.costs import members, nonnegative, numbers

__all__ = [
    "NonMonotoneWarning",
    "Smoothness",
    "Violation",
    "covering_pairs",
    "lower_triangle",
    "nearest_monotone",
]

_Alpha = Literal[0, 1]
"""Which constants: 0 for L0, 1 for L1."""

_ALPHAS: tuple[_Alpha, _Alpha] = (0, 1)
_TOLERANCE = 1e-6
_ITERATIONS_PER_PAIR = 30


class NonMonotoneWarning(UserWarning):
    """A warning that constants fall as the active set grows; the smallest valid ones never do."""


class Violation(NamedTuple):
    """A pair smaller < larger of sets with L_{i,smaller} > L_{i,larger}."""

    alpha: _Alpha
    layer: int
    smaller: ActiveSet
    larger: ActiveSet
    constant: float
    bound: float


class Smoothness:
    """Constants of every layer for every set of a support: immutable.

    Made from mappings `{set: b constants}`, or with `progressive` or `separable`. Its methods
    `l0` and `l1` are functions of (layer, active set). Where the constants fall as the active set
    grows, a `NonMonotoneWarning` is issued; `repair` returns the nearest ones that do not.
    """

    def __init__(
        self,
        l0: Mapping[ActiveSet, npt.ArrayLike],
        l1: Mapping[ActiveSet, npt.ArrayLike] | None = None,
    ) -> None:
        if not isinstance(l0, Mapping) or not l0:
            raise ValueError(
                f"l0 must map sets to constants, got {l0!r}; give a dict such as "
                "{(0, 1): [2.0, 3.0], (1,): [0.0, 1.0]}"
            )
        b = np.asarray(next(iter(l0.values()))).size
        first = _rows("l0", l0, b)
        second = {s: np.zeros(b) for s in first} if l1 is None else _rows("l1", l1, b)
        if second.keys() != first.keys():
            odd = min(second.keys() ^ first.keys())
            raise ValueError(
                f"l0 and l1 must be given for the same sets, got {odd} in one of them; add it"
            )
        index = {s: k for k, s in enumerate(first)}
        self._set(index, np.stack([*first.values()]), np.stack([second[s] for s in index]))
        self._warn()

    @classmethod
    def progressive(cls, L0: npt.ArrayLike, L1: npt.ArrayLike | None = None) -> Self:
        """Make constants from (b, b) matrices, `L[i, s]` for layer i when layers s, ..., b-1 move.

        Entries with s > i are ignored.
        """
        first = lower_triangle("L0", L0)
        second = np.zeros_like(first) if L1 is None else lower_triangle("L1", L1)
        if second.shape != first.shape:
            raise ValueError(
                f"L1 must have the shape of L0, {first.shape}, got {second.shape}; "
                "give one row per layer"
            )
        layers = tuple(range(len(first)))
        made = cls.__new__(cls)
        made._set({layers[s:]: s for s in layers}, first.T.copy(), second.T.copy())
        made._warn()
        return made

    @classmethod
    def separable(cls, L0: npt.ArrayLike, L1: npt.ArrayLike | None = None) -> Self:
        """Make constants from b numbers that hold for every set, as if layers did not interact."""
        first = nonnegative("L0", L0)
        second = np.zeros(first.size) if L1 is None else nonnegative("L1", L1, length=first.size)
        made = cls.__new__(cls)
        made._set(None, first[None].copy(), second[None].copy())
        return made

    @property
    def num_layers(self) -> int:
        """The number of layers, b."""
        return int(self._tables[0].shape[1])

    @property
    def sets(self) -> tuple[ActiveSet, ...]:
        """The sets that constants are known for; none are listed if they hold for every set."""
        return tuple(self._index or ())

    def constants(self, alpha: _Alpha, active: Iterable[int]) -> FloatArray:
        """Return the b constants L^alpha_{i,S} of a set, 0 outside of it."""
        layers = active_set("active", active, self.num_layers)
        table = self._tables[alpha]
        if self._index is None:
            row = np.zeros(self.num_layers)
            row[list(layers)] = table[0, list(layers)]
            return row
        if layers not in self._index:
            raise ValueError(
                f"active must be one of the {len(self._index)} sets with known constants, got "
                f"{layers}; give its constants too"
            )
        known: FloatArray = table[self._index[layers]]
        return known

    def l0(self, i: int, active: Iterable[int]) -> float:
        """Return L0_{i,S}."""
        return self._constant(0, i, active)

    def l1(self, i: int, active: Iterable[int]) -> float:
        """Return L1_{i,S}."""
        return self._constant(1, i, active)

    def progressive_matrix(self, alpha: _Alpha) -> FloatArray:
        """Return the (b, b) matrix `L[i, s]` of layer i when layers s, ..., b-1 move."""
        layers = tuple(range(self.num_layers))
        return np.stack([self.constants(alpha, layers[s:]) for s in layers], axis=1)

    def check_monotone(self, tolerance: float = _TOLERANCE) -> list[Violation]:
        """List where S1 < S2 but L_{i,S1} > (1 + tolerance) L_{i,S2} (Lemma "smooth_subs").

        Only pairs with no set of the support in between are compared: the rest follows.
        """
        sets, found = self.sets, []
        small, large = self._pairs[:, 0], self._pairs[:, 1]
        for alpha in _ALPHAS:
            table = self._tables[alpha]
            worse = table[small] > table[large] * (1.0 + tolerance)
            for k, i in np.argwhere(worse).tolist():
                s, t = int(small[k]), int(large[k])
                values = float(table[s, i]), float(table[t, i])
                found.append(Violation(alpha, i, sets[s], sets[t], *values))
        return found

    def repair(self) -> Self:
        """Return the nearest monotone constants, in the sense of least squares.

        Layers are repaired separately, each over the sets that hold it: isotonic regression.
        """
        first, second = (table.copy() for table in self._tables)
        for table in (first, second):
            for i in range(self.num_layers if len(self._pairs) else 0):
                holds = self._members[:, i]
                pairs = self._pairs[holds[self._pairs].all(axis=1)]
                table[holds, i] = nearest_monotone(table[holds, i], (holds.cumsum() - 1)[pairs])
        made = type(self).__new__(type(self))
        made._set(self._index, first, second)
        return made

    def __repr__(self) -> str:
        known = "any set" if self._index is None else f"{len(self._index)} sets"
        return f"<Smoothness of {self.num_layers} layers over {known}>"

    def _set(self, index: dict[ActiveSet, int] | None, l0: FloatArray, l1: FloatArray) -> None:
        l0.setflags(write=False)
        l1.setflags(write=False)
        self._index, self._tables = index, (l0, l1)

    def _constant(self, alpha: _Alpha, i: int, active: Iterable[int]) -> float:
        (layer,) = active_set("i", (i,), self.num_layers)
        return float(self.constants(alpha, active)[layer])

    @cached_property
    def _members(self) -> npt.NDArray[np.bool_]:
        return members(self.sets, self.num_layers)

    @cached_property
    def _pairs(self) -> npt.NDArray[np.intp]:
        return covering_pairs(self._members)

    def _warn(self) -> None:
        violations = self.check_monotone()
        if violations:
            _, layer, smaller, larger, constant, bound = violations[0]
            warnings.warn(
                f"constants must not fall as the active set grows, got {len(violations)} places "
                f"where they do, the first in layer {layer}: {constant:g} for {smaller} but "
                f"{bound:g} for {larger}; repair() gives the nearest that do not",
                NonMonotoneWarning,
                stacklevel=3,
            )


def _rows(
    argument: str, given: Mapping[ActiveSet, npt.ArrayLike], b: int
) -> dict[ActiveSet, FloatArray]:
    """Return the constants of each set, 0 outside of it."""
    rows: dict[ActiveSet, FloatArray] = {}
    for key, constants in given.items():
        layers = active_set(f"{argument}'s sets", key, b)
        if layers in rows:
            raise ValueError(f"{argument} must name a set once, got {layers} twice; keep one")
        values = numbers(f"{argument}[{layers}]", constants)
        if values.shape == (b,):
            values[np.isin(np.arange(b), layers, invert=True)] = 0.0
        rows[layers] = nonnegative(f"{argument}[{layers}]", values, length=b)
    return rows


def lower_triangle(argument: str, given: npt.ArrayLike, *, positive: bool = False) -> FloatArray:
    """Return constants L[i, s] of layer i at cutoff s as a square matrix, 0 where s > i.

    The others must be finite and at least 0, or with `positive` above 0.
    """
    matrix = numbers(argument, given)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ValueError(
            f"{argument} must be a square matrix L[i, s], got shape {matrix.shape}; "
            "give one row per layer and one column per cutoff"
        )
    lower = np.tri(len(matrix), dtype=np.bool_)
    matrix[~lower] = 0.0
    wrong = lower & ~(np.isfinite(matrix) & ((matrix > 0) if positive else (matrix >= 0)))
    if wrong.any():
        i, s = np.argwhere(wrong)[0].tolist()
        remedy = ", or give a small positive constant" if positive else ""
        raise ValueError(
            f"{argument} must be finite and {'above' if positive else 'at least'} 0 where s <= i, "
            f"got {matrix[i, s]} at index {(i, s)}; estimate it again{remedy}"
        )
    return matrix


def covering_pairs(members: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return the rows (small, large) of sets with small < large and no given set in between.

    `members` has a row per set and a column per layer. These pairs generate the whole order.
    """
    sizes = members.sum(axis=1)
    order = np.argsort(sizes, kind="stable")
    ranked = members[order]
    if not (ranked[:-1] & ~ranked[1:]).any():  # a chain
        return np.stack([order[:-1], order[1:]], axis=1)
    pairs: list[tuple[int, int]] = []
    for large in range(len(order)):
        below = int(np.searchsorted(sizes[order], sizes[order[large]]))
        inside = (~(ranked[:below] & ~ranked[large]).any(axis=1)).nonzero()[0][::-1]
        while inside.size:  # the largest that is left has nothing in between
            small, rest = inside[0], inside[1:]
            pairs.append((int(order[small]), int(order[large])))
            inside = rest[(ranked[rest] & ~ranked[small]).any(axis=1)]
    return np.array(pairs, dtype=np.intp).reshape(-1, 2)


def nearest_monotone(values: FloatArray, pairs: npt.NDArray[np.intp]) -> FloatArray:
    """Return the x nearest to `values` with x[small] <= x[large] for each of the pairs.

    Monotone values come back as they are. Chains are pooled; other orders are projected by the
    dual problem: x = y + A^T z with z >= 0 nearest to A^T z = -y, where A x >= 0 is the order.
    """
    small, large = pairs[:, 0], pairs[:, 1]
    if not (values[small] > values[large]).any():
        return values.copy()
    n = values.size
    if len(pairs) == n - 1 and _is_path(small, large):
        last = np.setdiff1d(large, small)[0]
        before = dict(zip(large.tolist(), small.tolist(), strict=True))
        chain = [int(last)]
        while chain[-1] in before:
            chain.append(before[chain[-1]])
        result = np.empty(n)
        result[chain[::-1]] = isotonic_regression(values[chain[::-1]]).x
    else:
        result = _projected(values, small, large)
    return _settled(result, small, large)


def _is_path(small: npt.NDArray[np.intp], large: npt.NDArray[np.intp]) -> bool:
    """Return whether no set has two neighbours on one side."""
    return np.unique(small).size == small.size and np.unique(large).size == large.size


def _projected(
    values: FloatArray, small: npt.NDArray[np.intp], large: npt.NDArray[np.intp]
) -> FloatArray:
    """Project onto the cone of monotone vectors."""
    m, scale = small.size, float(values.max())
    rows = np.zeros((m, values.size))
    rows[np.arange(m), large] = 1.0
    rows[np.arange(m), small] = -1.0
    z, _ = nnls(rows.T, -values / scale, maxiter=_ITERATIONS_PER_PAIR * m)
    nearest: FloatArray = values + scale * (rows.T @ z)
    return nearest


def _settled(
    values: FloatArray, small: npt.NDArray[np.intp], large: npt.NDArray[np.intp]
) -> FloatArray:
    """Lift larger sets by the rounding errors that are left, until the order holds exactly."""
    result = np.maximum(values, 0.0)
    while (result[small] > result[large]).any():
        np.maximum.at(result, large, result[small])
    return result
