"""Turns: where updates are the cost, matrices move at every r-th step, r times as far.

The paper remarks that one may compute all gradients and orthogonalise some. Here every matrix takes
its turn, and its momentum follows every gradient in between, so that nothing is learned from stale
ones. What costs little moves at every step: vectors, and parameters on AdamW.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dropmuon.model.roster import Member
from dropmuon.samplers import ActiveSet
from dropmuon.step.rules import StepRule

__all__ = ["assign_turns", "check_turns", "stretch"]


def check_turns(turns: int, rule: StepRule) -> None:
    """Raise ValueError if a step rule's lengths are not those of one step of many."""
    if turns > 1 and rule.uses_dual:
        raise ValueError(
            f"turns={turns} needs steps of constant radius, but {rule!r} measures gradients; "
            "leave turns at 1, or leave out step_rule"
        )


def assign_turns(members: Sequence[Member], turns: int, seed: int) -> None:
    """Give every matrix its turn: groups of nearly equal cost, in an order that the seed decides.

    The most expensive matrix goes first, each to the group that has cost the least so far.
    """
    costs = [member.direction_cost for member in members]
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(turns).tolist()
    totals = [0.0] * turns
    for i in sorted(range(len(members)), key=lambda i: -costs[i]):
        takes_turns = turns > 1 and costs[i] > 0
        group = min(range(turns), key=totals.__getitem__)
        members[i].turn = order[group] if takes_turns else None
        totals[group] += costs[i]


def stretch(member: Member, moving: ActiveSet, turn: int | None, turns: int) -> int:
    """Return how many times as far a parameter moves in this turn; 0 if it is not its own.

    Where `turn` is None every parameter of a moving layer moves, as in a full step.
    """
    if member.layer not in moving:
        return 0
    if turn is None or member.turn is None:
        return 1
    return turns if member.turn == turn else 0
