"""What is measured for the bounds: the active sets, and at one point of a run each set's ratios.

A family of sets is useful only as a whole, so beyond suffixes and contiguous blocks a family is
measured only if all of it fits into what may still be measured.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from dropmuon import norms
from dropmuon.model.isolation import Generators
from dropmuon.model.roster import Member
from dropmuon.optimizer import DropMuon
from dropmuon.planning.problem import Problem
from dropmuon.planning.timing import bisected
from dropmuon.samplers import ActiveSet
from dropmuon.samplers.base import FloatArray
from dropmuon.step.rates import rate_of
from dropmuon.theory import contiguous_blocks

__all__ = [
    "Probe",
    "block_sizes",
    "geometry",
    "nice_sizes",
    "planned_sets",
    "position_blocks",
    "suffixes",
    "windows",
]

_MOST_EXTRA = 48
"""The largest number of sets measured beyond the suffixes and the contiguous blocks."""


def planned_sets(layers: Sequence[str]) -> list[ActiveSet]:
    """Return the sets whose constants are useful, each once, the most useful first.

    Suffixes at bisected cutoffs, from the full set on; contiguous blocks of 1, 2, 4, ... layers;
    layers at the same position of repeated blocks; windows; all sets of one size, for small models.
    """
    b = len(layers)
    found: dict[ActiveSet, None] = dict.fromkeys(tuple(range(s, b)) for s in bisected(b))
    for tau in block_sizes(b):
        found.update(dict.fromkeys(contiguous_blocks(b, tau)))
    left = _MOST_EXTRA
    for family in _extra_families(layers):
        new = [active for active in family if active not in found]
        if len(new) <= left:
            found.update(dict.fromkeys(new))
            left -= len(new)
    return list(found)


def suffixes(num_layers: int) -> list[ActiveSet]:
    """Return the sets of progressive training, {s, ..., b-1} for every cutoff s."""
    return [tuple(range(s, num_layers)) for s in range(num_layers)]


def block_sizes(num_layers: int) -> list[int]:
    """Return 1, 2, 4, ... below the number of layers: sizes of blocks, and from 2 on of windows."""
    return [2**k for k in range(num_layers.bit_length()) if 2**k < num_layers]


def windows(num_layers: int, tau: int) -> list[ActiveSet]:
    """Return every run of tau neighbours, by where it starts."""
    return [tuple(range(s, s + tau)) for s in range(num_layers - tau + 1)]


def nice_sizes(num_layers: int) -> list[int]:
    """Return the tau of tau-nice sampling that add to the other families, fewest sets first.

    Single layers are left out: as blocks of 1, with the best probabilities, they do better.
    """
    return sorted(range(2, num_layers), key=lambda tau: (math.comb(num_layers, tau), tau))


def position_blocks(layers: Sequence[str]) -> tuple[ActiveSet, ...]:
    """Group the layers that share a position in repeated blocks, judging by their names.

    Example "Grouping layers across transformer blocks": `blocks.0.attention` and
    `blocks.1.attention` differ in their first number only and go together. Without at least two
    such positions that repeat equally often, there are no blocks at all. All other layers, such as
    embedding and head, stay alone.
    """
    positions: dict[str, list[int]] = defaultdict(list)
    for i, name in enumerate(layers):
        positions[re.sub(r"\d+", "*", name, count=1)].append(i)
    times = Counter(len(indices) for indices in positions.values())
    together = [
        tuple(indices)
        for indices in positions.values()
        if len(indices) > 1 and times[len(indices)] > 1
    ]
    if not together:
        return ()
    grouped = {i for block in together for i in block}
    return tuple(sorted([*together, *((i,) for i in range(len(layers)) if i not in grouped)]))


def _extra_families(layers: Sequence[str]) -> Iterator[Iterable[ActiveSet]]:
    b = len(layers)
    yield position_blocks(layers)
    for tau in block_sizes(b)[1:]:
        yield windows(b, tau)
    for tau in nice_sizes(b):
        if math.comb(b, tau) <= _MOST_EXTRA + 2 * b:
            yield combinations(range(b), tau)


class Probe:
    """A point X and a batch; all gradients are of this batch, with the same random numbers.

    Buffers, too, are restored to their values at X before each gradient. The norm of a layer of
    several parameters is that of the optimizer's step rule.
    """

    def __init__(self, problem: Problem, optimizer: DropMuon, index: int) -> None:
        self._problem, self._optimizer, self._index = problem, optimizer, index
        self._layers = optimizer.roster.layers
        self._generators = Generators.now()
        self._buffers = [(each, each.clone()) for each in problem.model.buffers()]
        self._gradients = self._measure(self._all, "the current point")
        self._unit = {
            member.parameter: geometry(member).lmo(self._gradients[member.parameter], 1.0)
            for member in optimizer.roster.members()
            if member.parameter in self._gradients
        }
        self._own = [self._duals(i, self._gradients) for i in self._all]

    @property
    def duals(self) -> FloatArray:
        """The dual norm of the gradient, ||grad_i||_*, of each layer at X."""
        return np.array([self._layer_dual(each) for each in self._own])

    def ratios(self, active: ActiveSet) -> FloatArray:
        """Return ||grad_i(X + Gamma) - grad_i(X)||_* / ||Gamma_i|| for the layers of a set."""
        steps = {p: step for i in active for p, step in self._steps(i, active).items()}
        kept = {p: p.detach().clone() for p in steps}
        try:
            with torch.no_grad():
                for parameter, step in steps.items():
                    parameter.add_(step)
            after = self._measure(active, f"a step of layers {active}")
        finally:
            with torch.no_grad():
                for parameter, value in kept.items():
                    parameter.copy_(value)
        found = np.full(len(self._layers), np.nan)
        for i in active:
            difference = self._differences(i, after)
            moved = [member for member in self._layers[i] if member.parameter in steps]
            lengths = [geometry(s).norm(steps[s.parameter]).double() for s in moved]
            if any(length > 0 for length in lengths):
                length = self._optimizer.step_rule.layer_norm.norm(
                    torch.tensor(lengths, dtype=torch.float64)
                )
                found[i] = self._layer_dual(self._duals(i, difference)) / float(length)
        return found

    def _differences(self, i: int, after: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Return the changes of a layer's gradients; a parameter that a loss does not use has 0."""
        found = {}
        for member in self._layers[i]:
            p = member.parameter
            if p in after or p in self._gradients:
                zero = torch.zeros_like(p)
                found[p] = after.get(p, zero) - self._gradients.get(p, zero)
        return found

    def advance(self) -> None:
        """Take the method's full step from here."""
        self._optimizer.zero_grad()
        self._optimizer.activate(self._all)
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient
        self._optimizer.step()

    @property
    def _all(self) -> ActiveSet:
        return tuple(range(len(self._layers)))

    def _measure(self, active: ActiveSet, where: str) -> dict[Tensor, Tensor]:
        """Return gradients of the active layers, with this point's buffers and random numbers."""
        self._generators.restore()
        for buffer, value in self._buffers:
            if not torch.equal(buffer, value):
                buffer.data.copy_(value)
        loss = self._problem.backward(self._optimizer, active, self._index)
        parameters = [member.parameter for i in active for member in self._layers[i]]
        found = {p: p.grad.detach().clone() for p in parameters if p.grad is not None}
        if not (math.isfinite(loss) and all(bool(g.isfinite().all()) for g in found.values())):
            raise ValueError(
                f"loss and its gradient must be finite along the run, got a loss of {loss} after "
                f"{self._index} steps, at {where}; lower lr"
            )
        return found

    def _steps(self, i: int, active: ActiveSet) -> dict[Tensor, Tensor]:
        """Return Gamma_i: the LMO of the gradient over the ball of the optimizer's step rule."""
        rule, steps = self._optimizer.step_rule, {}
        whole = torch.tensor(self._layer_dual(self._own[i]))
        for member in self._layers[i]:
            if member.parameter not in self._unit:
                continue
            length: float | Tensor = 1.0
            if not isinstance(member.norm, norms.AdamW):
                length = rule.length(i, active, torch.tensor(self._own[i][member.parameter]), whole)
            group = self._optimizer.param_groups[member.group]
            sign = -1.0 if group["maximize"] else 1.0
            steps[member.parameter] = (
                self._unit[member.parameter] * sign * rate_of(group) * float(length)
            )
        return steps

    def _layer_dual(self, duals: Mapping[Tensor, float]) -> float:
        """Return the dual norm of a layer from those of its parameters."""
        found = torch.tensor(list(duals.values()), dtype=torch.float64)
        return float(self._optimizer.step_rule.layer_norm.dual(found))

    def _duals(self, i: int, tensors: Mapping[Tensor, Tensor]) -> dict[Tensor, float]:
        members = [member for member in self._layers[i] if member.parameter in tensors]
        return {
            member.parameter: float(geometry(member).exact_dual(tensors[member.parameter]))
            for member in members
        }


def geometry(member: Member) -> norms.Norm:
    """Return the norm of a parameter; for AdamW the max-entry norm, whose step is similar."""
    return norms.Sign() if isinstance(member.norm, norms.AdamW) else member.norm
