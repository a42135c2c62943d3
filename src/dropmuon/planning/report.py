"""A plan as text that a person can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dropmuon.samplers import Progressive
from dropmuon.tables import aligned

if TYPE_CHECKING:
    from dropmuon.planning.plan import Option, Plan

__all__ = ["text"]


def text(plan: Plan) -> str:
    """Verdict first, then options, then what was measured of every layer."""
    return "\n\n".join([_verdict(plan), _options(plan), _layers(plan), _condition(plan)])


def _verdict(plan: Plan) -> str:
    if not plan.gain_expected:
        return (
            "No gain expected: full updates are as good as anything that theory can tell apart "
            'here. Use sampler="full".'
        )
    best = plan.best
    return (
        f"Use {best.candidate.family}: {_times(best, reused=False)} as fast as full Muon is "
        f"predicted on fresh batches, {_times(best, reused=True)} with {plan.updates_per_batch} "
        "updates per batch.\n\n    DropMuon(model, sampler=plan.sampler)"
    )


def _times(option: Option, *, reused: bool) -> str:
    found = option.reused if reused else option.fresh
    return f"{found.speedup:.2f}x ({found.low:.2f} to {found.high:.2f})"


def _options(plan: Plan) -> str:
    header = ("option", "fresh batches", f"{plan.updates_per_batch} updates per batch", "")
    rows = [
        (
            option.candidate.family,
            _times(option, reused=False),
            _times(option, reused=True),
            "<- recommended" if plan.sampler is option.candidate.sampler else "",
        )
        for option in plan.options
    ]
    return "Predicted time of full Muon over that of the option, with an interval:\n" + aligned(
        header, rows
    )


def _layers(plan: Plan) -> str:
    seconds, b = plan.costs.seconds, len(plan.costs.layers)
    everything = tuple(range(b))
    full = plan.smoothness.smooth.constants(0, everything)
    chances = _chances(plan)
    header = ("layer", "forward", "backward", "update", "L when all move", "L alone", chances[0])
    rows = []
    for i, name in enumerate(plan.costs.layers):
        alone = plan.smoothness.smooth.constants(0, (i,))[i] if (i,) in _sets(plan) else None
        rows.append(
            (
                name,
                _milliseconds(seconds.forward[i]),
                _milliseconds(seconds.backward[i]),
                _milliseconds(seconds.sharp[i]),
                f"{full[i]:.3g}",
                "" if alone is None else f"{alone:.3g}",
                chances[1][i],
            )
        )
    note = (
        f"Costs over {plan.costs.rounds} rounds (fit within {plan.costs.fit_error:.0%}), overhead "
        f"{_milliseconds(seconds.overhead)}; smoothness at {plan.smoothness.points} points:\n"
    )
    return note + aligned(header, rows)


def _sets(plan: Plan) -> Sequence[tuple[int, ...]]:
    return list(plan.smoothness.ratios)


def _chances(plan: Plan) -> tuple[str, list[str]]:
    """What the recommended sampler does with each layer."""
    sampler, b = plan.sampler, len(plan.costs.layers)
    moves = sampler.marginals(b)[1]
    if isinstance(sampler, Progressive):
        probabilities = sampler.probabilities(b, 0.0)
        return "P(cutoff), P(moves)", [
            f"{p:.2f}, {q:.2f}" for p, q in zip(probabilities, moves, strict=True)
        ]
    return "P(moves)", [f"{q:.2f}" for q in moves]


def _condition(plan: Plan) -> str:
    smooth = "holds" if plan.full_update_is_optimal else "does not hold"
    general = "holds" if plan.full_update_is_optimal_generalized else "does not hold"
    return (
        "Among progressive samplers, full updates are optimal if and only if the first layer has "
        "the largest constant when all move.\n"
        f"  smooth case, constants L0 (Theorem rpt_p1): this {smooth}\n"
        f"  (L0, L1) case, constants L1 (Theorem rpt_p1_l0l1): this {general}\n"
        "Constants are estimates along a short run, and predictions compare bounds: a ratio of "
        "costs per step is measured, a ratio of steps is not a promise."
    )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
