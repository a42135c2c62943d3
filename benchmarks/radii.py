"""Compare the printed and the repaired radii of the stochastic theorem with their bounds.

    python benchmarks/radii.py [--runs 400] [--output benchmarks/radii.txt]

f(x) = x^T A x / 2 with 8 layers of one entry, A = diag(1, ..., 1) plus a coupling of neighbours,
noise of deviation 0.1, cutoffs uniform. Constants: L0_{i,S} is the sum over j in S of |A_ij|, and
L1 = 1, so that the conditions on eta bind. With a coupling f violates the assumption "(L0, L1)-
smoothness II", without it does not. "gradient" is the least, over steps, of what the theorem
bounds: the sum of Q_i eta_i / mean(Q eta) E|grad_i f|. Nothing depends on the machine.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from dropmuon.samplers import Progressive
from dropmuon.theory import (
    Smoothness,
    admissible_eta,
    horizon_momentum,
    horizon_radii,
    stochastic_bound,
)

B, SIGMA = 8, 0.1
SAMPLER = Progressive()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=400, help="that means are taken over")
    parser.add_argument("--output", type=Path, help="also write the raw output to this file")
    options = parser.parse_args()
    lines = [
        f"$ python {' '.join(sys.argv)}",
        "coupling  steps  radii     eta of layers 0, 7  gradient   bound  largest term   f at end",
    ]
    for coupling in (0.0, 0.4):
        A = np.eye(B) + coupling * (np.eye(B, k=1) + np.eye(B, k=-1))
        for steps in (100, 1000, 10_000):
            for radii in ("printed", "repaired"):
                lines.append(
                    f"{coupling:8.1f}  {steps:5d}  {radii:8s}  "
                    + compared(A, steps, options.runs, repaired=radii == "repaired")
                )
    print("\n".join(lines))
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n")


def compared(A: np.ndarray, steps: int, runs: int, *, repaired: bool) -> str:
    """Return a line of the table: run the method, and compute its bound."""
    l0 = np.tril(np.cumsum(np.abs(A)[:, ::-1], axis=1)[:, ::-1])
    smoothness = Smoothness.progressive(l0, np.tri(B))
    x = np.ones(B)
    gap = float(x @ A @ x) / 2
    eta = admissible_eta(SAMPLER, smoothness, steps, 1.0, 1.0, repaired=repaired)
    bound = stochastic_bound(
        SAMPLER, smoothness, gap, steps, eta, SIGMA, 1.0, 1.0, repaired=repaired
    )
    norms, end = run(A, x, horizon_radii(eta, steps), horizon_momentum(steps), steps, runs)
    weights = SAMPLER.marginals(B)[1] * eta
    least = float((norms @ weights / weights.mean()).min())
    return (
        f"{eta[0]:9.3f} {eta[-1]:8.3f}  {least:8.3f}  {bound.total:6.2f}  {bound.dominating:12s}  "
        f"{end / gap:9.4f}"
    )


def run(
    A: np.ndarray, start: np.ndarray, radii: np.ndarray, kept: float, steps: int, runs: int
) -> tuple[np.ndarray, float]:
    """Run Algorithm 1 many times; return the mean of |grad_i f| at each step, and of f at last."""
    rng = np.random.default_rng(0)
    X = np.tile(start, (runs, 1))
    M, found = np.zeros_like(X), []
    for k in range(steps + 1):
        exact = X @ A
        found.append(np.abs(exact).mean(axis=0))
        G = exact + SIGMA * rng.normal(size=X.shape)
        active = np.arange(B) >= rng.integers(B, size=(runs, 1))
        M = np.where(active, kept * M + (1 - kept) * G, M) if k else G
        X = X - np.where(active, radii * np.sign(M), 0.0)
    return np.array(found), float((X @ A * X).sum(axis=1).mean()) / 2


if __name__ == "__main__":
    main()
