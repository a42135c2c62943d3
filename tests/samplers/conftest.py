"""One table of samplers drives the generic tests.

Each case carries its distribution as a plain dictionary, written out here from the paper's
definitions in exact or scalar arithmetic, without the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest

from dropmuon.samplers import (
    Arbitrary,
    Full,
    Nice,
    Partition,
    Progressive,
    RandomSubset,
    Sampler,
    Serial,
    Shares,
    Stratified,
    Submodel,
    epoch_shift,
    exponential,
    linear,
    quadratic,
    uniform,
)

B = 5
BLOCKS = ((1, 4), (0,), (2, 3))
Distribution = dict[tuple[int, ...], float]


@dataclass(frozen=True)
class Case:
    name: str
    sampler: Sampler
    distribution: Distribution
    progress: float = 0.0
    num_layers: int = B


def tilting(n: int, progress: float) -> list[float]:
    """A user's own schedule."""
    weights = [1 + progress * k for k in range(n)]
    return [w / sum(weights) for w in weights]


FIXED = {3: (0.5, 0.2, 0.3), 4: (0.1, 0.2, 0.3, 0.4), 5: (0.05, 0.4, 0.0, 0.25, 0.3)}
POSITIVE_FIXED = {**FIXED, 5: (0.05, 0.4, 0.1, 0.15, 0.3)}


def shares(weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    return [w / total for w in weights]


def shift(alpha: float, progress: float) -> Callable[[int], list[float]]:
    def literal(b: int) -> list[float]:
        return shares(
            [math.exp(alpha * ((1 - progress) * (b - 1 - i) + progress * i)) for i in range(b)]
        )

    return literal


# name, what the library is given (by number of outcomes), progress, the probabilities written out
SCHEDULES: list[tuple[str, Callable[[int], Any], float, Callable[[int], list[float]]]] = [
    ("uniform", lambda n: uniform, 0.0, lambda n: [1 / n] * n),
    ("linear", lambda n: linear, 0.0, lambda n: shares(range(1, n + 1))),
    ("quadratic", lambda n: quadratic, 0.5, lambda n: shares([k * k for k in range(1, n + 1)])),
    ("exponential", lambda n: exponential, 0.0, lambda n: shares([math.exp(k) for k in range(n)])),
    ("named", lambda n: "epoch-shift", 0.25, shift(0.5, 0.25)),
    ("shift-start", lambda n: epoch_shift(0.5), 0.0, shift(0.5, 0.0)),
    ("shift-late", lambda n: epoch_shift(1.5), 0.8, shift(1.5, 0.8)),
    ("shift-by-epochs", lambda n: epoch_shift(0.5, epochs=4), 0.7, shift(0.5, 0.5)),
    ("shift-end", lambda n: epoch_shift(0.5), 1.0, shift(0.5, 1.0)),
    ("array", lambda n: POSITIVE_FIXED[n], 0.0, lambda n: list(POSITIVE_FIXED[n])),
    ("function", lambda n: tilting, 0.7, lambda n: tilting(n, 0.7)),
]


def _cases() -> list[Case]:
    cases = [Case("full", Full(), {tuple(range(B)): 1.0})]
    for tau in range(1, B + 1):
        sets = list(combinations(range(B), tau))
        cases.append(Case(f"nice-{tau}", Nice(tau), {s: 1 / len(sets) for s in sets}))
    subsets = [s for tau in range(1, B + 1) for s in combinations(range(B), tau)]
    law = {s: 1 / B / math.comb(B, len(s)) for s in subsets}
    cases.append(Case("random-subset", RandomSubset(), law))
    for name, given, progress, written in SCHEDULES:
        p = written(B)
        add: list[tuple[str, Sampler, Distribution]] = [
            ("progressive", Progressive(given(B)), {tuple(range(s, B)): p[s] for s in range(B)}),
            ("serial", Serial(given(B)), {(i,): p[i] for i in range(B)}),
        ]
        q = written(B - 1)
        windows: Distribution = {(s, s + 1): q[s] for s in range(B - 1)}
        add.append(("submodel", Submodel(2, given(B - 1)), windows))
        blocks = dict(zip(BLOCKS, written(len(BLOCKS)), strict=True))
        add.append(("partition", Partition(BLOCKS, given(len(BLOCKS))), blocks))
        cases += [Case(f"{kind}-{name}", s, law, progress) for kind, s, law in add]
    fixed = FIXED[5]
    gap = {tuple(range(s, B)): fixed[s] for s in range(B) if fixed[s] > 0}
    cases.append(Case("progressive-gap", Progressive(fixed), gap))
    shares = (0.125, 0.125, 0.5, 0.75, 1.0)
    steps = {tuple(range(s, B)): shares[s] - (shares[s - 1] if s else 0.0) for s in (0, 2, 3, 4)}
    cases.append(Case("shares", Shares(shares), steps))
    law = {(0, 2): 0.125, (1,): 0.25, (0, 3, 4): 0.5, (2, 4): 0.125}
    cases.append(Case("arbitrary", Arbitrary({(1, 3): 0.0} | law), law))
    cases.append(Case("stratified", Stratified(Arbitrary({(1, 3): 0.0} | law), 6), law))
    return cases


CASES = _cases()


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param
