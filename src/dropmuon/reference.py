"""Algorithms 1, 2 and 3 of the paper, and parts: slow, literal, the oracle of the tests.

A point X is a list of layers, each a list of tensors (the paper's X_i, where a weight and its bias
stand side by side). Nothing is shared with the optimizer; orthogonalisation is an exact SVD, and
Newton-Schulz its polynomials of exact singular values.
Variables have the paper's names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = [
    "algorithm_1",
    "algorithm_1_in_parts",
    "algorithm_2",
    "algorithm_3",
    "dual",
    "lmo",
    "newton_schulz",
    "sharp",
]

Point = list[list[Tensor]]
Gradient = Callable[[Point, int], Point]
"""The gradient at a point, in step k."""

NormOf = Callable[[Tensor], str]
"""The name of a tensor's norm."""


def algorithm_1(
    X: Point,
    gradient: Gradient,
    S: Sequence[Sequence[int]],
    t: float,
    beta: float,
    norm: NormOf,
    *,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    refresh: Callable[[int], bool] = lambda k: False,
) -> Point:
    """Run Drop-Muon: momentum and LMO steps of the layers in S[k], step k = 0, ..., len(S)-1."""
    parts = [[active] for active in S]
    return algorithm_1_in_parts(
        X,
        lambda X, k, p: gradient(X, k),
        parts,
        t,
        beta,
        norm,
        nesterov=nesterov,
        weight_decay=weight_decay,
        refresh=refresh,
    )


def algorithm_1_in_parts(
    X: Point,
    gradient: Callable[[Point, int, int], Point],
    S: Sequence[Sequence[Sequence[int]]],
    t: float,
    beta: float,
    norm: NormOf,
    *,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    stretch: Callable[[Tensor, int], float] = lambda x, k: 1.0,
    bypass: Callable[[Tensor], bool] = lambda x: False,
    refresh: Callable[[int], bool] = lambda k: False,
    rests: Callable[[Tensor], bool] = lambda x: False,
) -> Point:
    """Run Drop-Muon with a set S[k][p] and a gradient for each part p of step k.

    The gradient of layer i is the mean over the parts in which it is active; a layer that is
    active in no part keeps its momentum and its place. One part per step is Algorithm 1. In step k
    a tensor moves `stretch` times as far; with r turns that is r in its own turn and 0 otherwise,
    when only its momentum follows the gradient. A tensor that is to `bypass` the LMO moves by -t
    times its momentum, the remark of section "Arbitrary Sampling". In the steps that `refresh`
    names, all momenta follow the gradients of all parts, and S decides only what moves: k = 0 is
    the start that Algorithm 1 prints. A tensor that `rests` keeps its momentum and its place
    while its gradient is exactly zero, as a layer does that is not active: an expert without a
    token.
    """
    X_0, X = X, [[x.clone() for x in layer] for layer in X]
    M: list[list[Tensor | None]] = [[None] * len(layer) for layer in X]
    for k, sets in enumerate(S):
        found = [gradient(X, k, p) for p in range(len(sets))]
        for i in range(len(X)):
            parts = zip(found, sets, strict=True)
            own = [G[i] for G, active in parts if i in active or refresh(k)]
            if not own:
                continue  # M_i^k = M_i^{k-1}, X_i^{k+1} = X_i^k
            G_i = [sum(g) / len(own) for g in zip(*own, strict=True)]
            for j, x in enumerate(X[i]):
                g, m = G_i[j], M[i][j]
                if rests(X_0[i][j]) and not g.any():
                    continue  # an expert without a token
                new = g if m is None else (1 - beta) * m + beta * g  # M_i^0 = the first gradient
                M[i][j] = new
                if not any(i in active for active in sets):
                    continue  # X_i^{k+1} = X_i^k
                along = beta * g + (1 - beta) * new if nesterov else new
                radius = t * stretch(X_0[i][j], k)
                move = -radius * along if bypass(X_0[i][j]) else lmo(norm(x), along, radius)
                X[i][j] = (1 - radius * weight_decay) * x + move
    return X


def algorithm_2(
    X: Point,
    gradient: Gradient,
    S: Sequence[Sequence[int]],
    gamma: Callable[[int, Sequence[int], float], float],
    norm: NormOf,
) -> Point:
    """Run deterministic Drop-Muon: X_i - gamma_i * sharp(G_i), gamma of (i, S^k, dual(G_i)).

    A layer is measured by the root of the sum of its tensors' squared norms, so that its sharp
    operator is that of its tensors, and its dual norm the root of the sum of their squared duals.
    """
    X = [[x.clone() for x in layer] for layer in X]
    for k, active in enumerate(S):
        G = gradient(X, k)
        for i in active:
            duals = [float(dual(norm(x), g)) for x, g in zip(X[i], G[i], strict=True)]
            step = gamma(i, active, sum(d**2 for d in duals) ** 0.5)
            X[i] = [x - step * sharp(norm(x), g) for x, g in zip(X[i], G[i], strict=True)]
    return X


def algorithm_3(X: Point, gradient: Gradient, index: Sequence[int], gamma: float) -> Point:
    """Run randomized block coordinate descent: layer index[k] along its gradient, in step k."""
    X = [[x.clone() for x in layer] for layer in X]
    for k, i in enumerate(index):
        G = gradient(X, k)
        X[i] = [x - gamma * g for x, g in zip(X[i], G[i], strict=True)]
    return X


def lmo(norm: str, g: Tensor, t: float) -> Tensor:
    """Return argmin <g, z> over the z whose norm is at most t; zero for g = 0."""
    matrix = g.reshape(g.shape[0], -1) if g.ndim else g.reshape(1, 1)
    out, inputs = matrix.shape
    if norm == "spectral":
        z = _polar(matrix)
    elif norm == "spectral-rms":
        z = (out / inputs) ** 0.5 * _polar(matrix)
    elif norm == "euclidean":
        z = _unit(matrix, matrix.norm())
    elif norm == "sign":
        z = matrix.sign()
    elif norm == "column-wise":
        z = _unit(matrix, matrix.norm(dim=0, keepdim=True))
    elif norm == "row-wise":
        z = _unit(matrix, matrix.norm(dim=1, keepdim=True))
    else:
        raise ValueError(f"norm must be one of those above, got {norm!r}")
    return -t * z.reshape(g.shape)


def dual(norm: str, g: Tensor) -> Tensor:
    """Return the dual norm, -<g, lmo(g, 1)>."""
    return -torch.sum(g * lmo(norm, g, 1.0))


def sharp(norm: str, g: Tensor) -> Tensor:
    """Return argmax <g, z> - ||z||^2 / 2 = -dual(g) * lmo(g, 1)."""
    return -dual(norm, g) * lmo(norm, g, 1.0)


def newton_schulz(matrix: Tensor, polynomials: Sequence[Sequence[float]], p: int = 2) -> Tensor:
    """Return U f(Sigma / |Sigma|_p) V^T, where f is odd polynomials one after the other.

    (a, b, c) is a x + b x^3 + c x^5. |Sigma|_2 is the Frobenius norm. The matrix is not zero.
    """
    U, Sigma, Vt = torch.linalg.svd(matrix, full_matrices=False)
    x = Sigma / Sigma.pow(p).sum().pow(1 / p)
    for polynomial in polynomials:
        x = torch.stack([c * x ** (2 * i + 1) for i, c in enumerate(polynomial)]).sum(0)
    return torch.matmul(U * x, Vt)


def _polar(matrix: Tensor) -> Tensor:
    """Return U V^T of the singular value decomposition, over the nonzero singular values."""
    U, Sigma, Vt = torch.linalg.svd(matrix, full_matrices=False)
    threshold = max(matrix.shape) * torch.finfo(matrix.dtype).eps * Sigma[0]
    keep: Tensor = (threshold < Sigma).to(matrix.dtype)
    return torch.matmul(U * keep, Vt)


def _unit(matrix: Tensor, length: Tensor) -> Tensor:
    return torch.where(length > 0, matrix / torch.where(length > 0, length, 1.0), 0.0)
