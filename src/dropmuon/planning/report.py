"""The text of a plan: verdict, options, layers, and what the numbers rest on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dropmuon.output import aligned
from dropmuon.planning.bounds import comparison as by_bounds
from dropmuon.planning.gains import QUALITY
from dropmuon.planning.noise import LEAST_STEPS
from dropmuon.samplers.allocation import CAUTION, DOUBT

if TYPE_CHECKING:
    from dropmuon.planning.planner import Plan

__all__ = ["text"]

_NOISY = 0.15
"""The fit error beyond which the text says that times are uncertain."""

_PIECES_PAY = 0.9
"""The time of a batch in pieces, over that in one, below which the text recommends pieces."""

_UNITS = ("", "k", "M", "G", "T")

_ORDINALS = {2: "second", 4: "fourth"}


def text(plan: Plan) -> str:
    """Return the plan as text; bounds, where they decide, are told from measurements."""
    if plan.bounds is None:
        before = [_verdict(plan), *_advice(plan), _options(plan)]
        return "\n\n".join([*before, _layers(plan), _basis()])
    before = [by_bounds.verdict(plan.bounds), by_bounds.options(plan.bounds)]
    return "\n\n".join([*before, _layers(plan), by_bounds.condition(plan.bounds)])


def _verdict(plan: Plan) -> str:
    noise, best = plan.noise, plan.best
    if not plan.costs.known:
        return (
            f"No verdict yet: there was time to measure {plan.costs.coverage} only. Plan with a "
            "larger budget; until then, use full updates."
        )
    if plan.gain_expected:
        doubt = " It may not pay." if best.fresh.low <= 1.0 else ""
        return (
            f"{_what_to_do(plan)} Expected: {best.fresh} as fast as full updates to the same "
            f"loss.{doubt}\n\n    DropMuon(model, lr=lr, **plan.settings)  # with the lr given to "
            f"plan(){_in_the_loop(plan)}"
        )
    if noise is not None and not noise.known:
        return (
            f"No verdict yet: the run had {noise.steps} of the {LEAST_STEPS} steps that a trend of "
            "the noise needs. Plan with more batches or a larger budget; until then, use full "
            "updates."
        )
    return "Neither parts nor turns are expected to pay. Use full updates."


def _what_to_do(plan: Plan) -> str:
    if plan.parts > 1:
        return f"Use parts: cut each batch into {plan.parts}, with the shares below."
    ordinal = _ORDINALS.get(plan.turns, f"{plan.turns}th")
    return f"Take turns: matrices move at every {ordinal} step, {plan.turns} times as far."


def _in_the_loop(plan: Plan) -> str:
    return "\n    for x, y in optimizer.split(x, y): ..." if plan.parts > 1 else ""


def _advice(plan: Plan) -> Iterator[str]:
    """Yield when shares should rise, and which batch would do."""
    noise, size = plan.noise, plan.critical_batch_size
    if noise is None or size is None:
        yield (
            "Noise is unknown, since batches cannot be cut along their first axis: parts were not "
            "considered."
        )
        return
    if not noise.known:
        return
    assumed = ", four times what was measured" if plan.steps is None else ""
    yield (
        f"Over a run of {plan.gains.horizon} steps{assumed}, the noise of the model's gradient "
        f"equals its signal at about {size:.2g} examples, the critical batch size. Batches have "
        f"{noise.examples}."
    )
    if plan.parts > 1 and plan.full_from is not None:
        yield (
            "Noise grows as training goes on: by its trend, shares should be 1 from about step "
            f"{plan.full_from} on."
        )
    piecewise = plan.gains.piecewise
    if piecewise is not None and piecewise < _PIECES_PAY:
        yield (
            f"On this machine a batch in {noise.pieces} pieces takes {piecewise:.2f} of the time "
            "that it takes in one piece: accumulate gradients over pieces with full updates, too. "
            "Predictions are relative to full updates in pieces."
        )
    if plan.smaller_batch is not None:
        yield (
            "If the batch size is yours to choose, and time grows with it as on one device, then a "
            f"smaller one does as much or more: full updates with about "
            f"{plan.smaller_batch.examples} examples are expected to be "
            f"{plan.smaller_batch.prediction} as fast, with the learning rate tuned for them."
        )


def _options(plan: Plan) -> str:
    rows = [
        (option.name, str(option.fresh), "<- recommended" if option is plan.best else "")
        for option in plan.options
    ]
    title = "Expected time of full updates over that of the option, with an interval:\n"
    return title + aligned(("option", "as fast", ""), rows)


def _basis() -> str:
    quality = ", ".join(f"{low:g} to {high:g} with {r} turns" for r, (low, high) in QUALITY.items())
    return (
        "Measured: costs and noise. Assumed: the steps needed grow as 1 + nu/q for a layer with a "
        f"share q, where nu is {CAUTION:g} times the measured noise / signal, out of caution; "
        f"intervals span {CAUTION / DOUBT:.2g} to {CAUTION * DOUBT:.2g} times. Also assumed: the "
        f"progress of a step with turns ({quality}), which depends on the model, lr and the "
        "length of the run."
    )


def _layers(plan: Plan) -> str:
    seconds, operations = plan.costs.seconds, plan.costs.operations
    columns = [*_noise(plan)]
    if plan.bounds is None:
        columns.append(("share", [f"{share:.3g}" for share in plan.shares]))
    else:
        columns += by_bounds.columns(plan.bounds)
    header = ("layer", "forward", "backward", "update", *(title for title, _ in columns))
    parts = (
        (seconds.forward, operations.forward),
        (seconds.backward + seconds.weight, operations.backward + operations.weight),
        (seconds.sharp, operations.sharp),
    )
    rows = [
        (
            name,
            *(f"{_milliseconds(spent[i])}, {_count(counted[i])}" for spent, counted in parts),
            *(cells[i] for _, cells in columns),
        )
        for i, name in enumerate(plan.costs.layers)
    ]
    note = (
        f"Time and operations (of matrix products) by layer, from {plan.costs.coverage} and "
        f"{plan.costs.rounds} rounds (fit within {plan.costs.fit_error:.0%}), overhead "
        f"{_milliseconds(seconds.overhead)}{_sources(plan)}:\n"
    )
    return "\n".join([note + aligned(header, rows), *_caveats(plan)])


def _noise(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """Yield columns: noise along the measured run, the critical batch over the planned one."""
    noise, sizes = plan.noise, plan.critical_batch_sizes
    if noise is None or sizes is None:
        return
    ends = zip(noise.ratios[0], noise.ratios[-1], strict=True)
    yield "noise / signal", [f"{first:.2g} to {last:.2g}" for first, last in ends]
    yield "critical batch", [f"{size:.2g}" for size in sizes]


def _sources(plan: Plan) -> str:
    noise = "" if plan.noise is None else f"; noise along {plan.noise.steps} steps"
    if plan.bounds is None:
        return noise
    count = plan.bounds.smoothness.points
    return f"{noise}; smoothness at {count} point{'s' if count != 1 else ''}"


def _caveats(plan: Plan) -> Iterator[str]:
    if plan.costs.fit_error > _NOISY:
        yield (
            f"Times are known only to within {plan.costs.fit_error:.0%}, which makes all intervals "
            "wide; use a quiet machine or a larger budget."
        )
    if plan.bounds is not None:
        yield from by_bounds.caveats(plan.bounds)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _count(operations: float) -> str:
    """Return a count such as 950, 1.2k, 35M."""
    power = min(len(_UNITS) - 1, int(math.log10(max(operations, 1.0)) / 3))
    return f"{operations / 1000**power:.3g}{_UNITS[power]}"
