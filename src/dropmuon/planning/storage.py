"""Plans as JSON files: the measurements and settings; everything else is recomputed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dropmuon.checks import whole_number
from dropmuon.output import write_json
from dropmuon.planning.bounds.comparison import Bounds
from dropmuon.planning.bounds.constants import check_confidence
from dropmuon.planning.bounds.estimated_smoothness import SmoothnessEstimate, summarize
from dropmuon.planning.measured_costs import MeasuredCosts
from dropmuon.planning.noise import NoiseEstimate
from dropmuon.samplers.base import active_set
from dropmuon.theory import StepCosts, StochasticCase
from dropmuon.theory.complexity import check_regime

__all__ = ["read", "write"]

_FORMAT = 4

_OF_LAYERS = ("sigma", "rho_low", "rho_high")
"""What a stochastic case holds for every layer."""

_DAMAGE = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
"""The exceptions that reading a damaged file may raise."""

Contents = tuple[MeasuredCosts, NoiseEstimate | None, Bounds | None, int | None, int]
"""Costs, noise, bounds, steps and seed: what a plan is made of."""


def write(
    path: Path,
    costs: MeasuredCosts,
    noise: NoiseEstimate | None,
    bounds: Bounds | None,
    steps: int | None,
    seed: int,
) -> None:
    """Write measurements and settings; the file is replaced as a whole or not at all."""
    content = {
        "format": _FORMAT,
        "layers": list(costs.layers),
        "steps": steps,
        "seed": seed,
        "costs": {
            "seconds": _parts(costs.seconds),
            "operations": _parts(costs.operations),
            "seconds_by_cutoff": _listed(costs.seconds_by_cutoff),
            "operations_by_cutoff": _listed(costs.operations_by_cutoff),
            "rounds": costs.rounds,
            "fit_error": costs.fit_error,
            "resampled": [_parts(each) for each in costs.resampled],
            "takes_turns": list(costs.takes_turns),
        },
        "noise": None if noise is None else _noise_content(noise),
        "bounds": None if bounds is None else _bounds_content(bounds),
    }
    write_json(path, content)


def read(path: Path) -> Contents:
    """Return what `write` wrote, or raise ValueError."""
    text = path.read_bytes()
    try:
        return _parsed(json.loads(text))
    except _DAMAGE as error:
        raise ValueError(f"path {path} cannot be read as a plan: {_reason(error)}") from error


def _parsed(content: Any) -> Contents:
    given = content["format"]
    _need(
        type(given) is int and given == _FORMAT,
        f"its format is {given!r}, but this version of dropmuon reads format {_FORMAT}; "
        "make the plan again",
    )
    layers, steps, seed = _names(content, "layers"), content["steps"], content["seed"]
    if steps is not None:
        whole_number("steps", steps)
    _need(type(seed) is int and seed >= 0, f"seed is {seed!r}")
    costs = _costs(layers, content["costs"])
    noise, bounds = content["noise"], content["bounds"]
    return (
        costs,
        None if noise is None else _noise(layers, noise),
        None if bounds is None else _bounds(layers, costs, bounds, seed),
        steps,
        seed,
    )


def _costs(layers: tuple[str, ...], found: Any) -> MeasuredCosts:
    b = len(layers)
    seconds, operations = StepCosts(**found["seconds"]), StepCosts(**found["operations"])
    resampled = tuple(StepCosts(**each) for each in found["resampled"])
    for each in (seconds, operations, *resampled):
        _need(each.num_layers == b, f"costs are for {each.num_layers} layers, but {b} are named")
    rounds, error = found["rounds"], found["fit_error"]
    _need(type(rounds) is int and rounds >= 0, f"rounds is {rounds!r}")
    _need(type(error) in (int, float) and 0 <= error < math.inf, f"fit_error is {error!r}")
    turning = found["takes_turns"]
    is_list = isinstance(turning, list) and all(type(each) is bool for each in turning)
    _need(is_list and len(turning) == b, f"takes_turns is {turning!r}")
    return MeasuredCosts(
        layers,
        seconds,
        operations,
        _array(found, "seconds_by_cutoff", (b,)),
        _array(found, "operations_by_cutoff", (b,)),
        rounds,
        error,
        resampled,
        tuple(turning),
    )


def _noise_content(noise: NoiseEstimate) -> dict[str, Any]:
    return {
        "examples": noise.examples,
        "pieces": noise.pieces,
        "seconds": noise.seconds,
        "signal": noise.signal.tolist(),
        "noise": noise.noise.tolist(),
    }


def _noise(layers: tuple[str, ...], found: Any) -> NoiseEstimate:
    shape = (len(found["signal"]), len(layers))
    signal, noise = (np.array(found[name], dtype=np.float64) for name in ("signal", "noise"))
    for each in (signal, noise):
        is_whole = each.shape == shape and shape[0] > 0 and bool(np.isfinite(each).all())
        _need(is_whole, "signal or noise is missing for some step or layer")
    examples, pieces, seconds = found["examples"], found["pieces"], found["seconds"]
    whole_number("examples", examples)
    whole_number("pieces", pieces, least=2)
    _need(type(seconds) in (int, float) and 0 <= seconds < math.inf, f"seconds is {seconds!r}")
    return NoiseEstimate(layers, examples, signal, noise, pieces, seconds)


def _bounds_content(bounds: Bounds) -> dict[str, Any]:
    estimate = bounds.smoothness
    return {
        "regime": bounds.regime,
        "updates_per_batch": bounds.updates_per_batch,
        "ratios": [[list(s), _listed(table)] for s, table in estimate.ratios.items()],
        "duals": _listed(estimate.duals),
        "confidence": estimate.confidence,
        "adamw": list(estimate.adamw),
        "case": None if bounds.case is None else _case_content(bounds.case),
    }


def _case_content(case: StochasticCase) -> dict[str, Any]:
    vectors = {name: np.asarray(getattr(case, name)).tolist() for name in _OF_LAYERS}
    return {"gap": case.gap, **vectors, "repaired": case.repaired}


def _bounds(layers: tuple[str, ...], costs: MeasuredCosts, found: Any, seed: int) -> Bounds:
    regime, updates = found["regime"], found["updates_per_batch"]
    check_regime(regime)
    whole_number("updates_per_batch", updates)
    given = found.get("case")  # absent in files of earlier releases
    case = None if given is None else StochasticCase(**given)
    if case is not None:
        case.per_layer(len(layers))
    _need(case is not None or regime != "stochastic", "case is missing")
    return Bounds(costs, _estimate(layers, found, seed), regime, updates, seed, case)


def _estimate(layers: tuple[str, ...], found: Any, seed: int) -> SmoothnessEstimate:
    b, points = len(layers), len(found["duals"])
    duals = _array(found, "duals", (points, b))
    _need(points > 0 and bool(np.isfinite(duals).all()), "duals are missing")
    ratios = {}
    for members, table in found["ratios"]:
        active = active_set("ratios", members, b)
        ratios[active] = _array({"ratios": table}, "ratios", (points, b))
    _need(tuple(range(b)) in ratios, "ratios are missing for all layers together")
    confidence, adamw = found["confidence"], _names(found, "adamw")
    check_confidence(confidence)
    summary = summarize(duals, ratios, confidence, seed)
    return SmoothnessEstimate(layers, *summary, ratios, duals, confidence, adamw)


def _parts(costs: StepCosts) -> dict[str, Any]:
    return {
        "overhead": costs.overhead,
        "forward": costs.forward.tolist(),
        "backward": costs.backward.tolist(),
        "sharp": costs.sharp.tolist(),
        "batch": costs.batch,
        "weight": costs.weight.tolist(),
    }


def _listed(values: npt.NDArray[np.float64]) -> Any:
    """Return nested lists, with None for NaN, which JSON does not have."""
    plain = values.astype(object)
    plain[np.isnan(values)] = None
    return plain.tolist()


def _array(found: Any, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return an array of numbers of at least 0, with NaN for None."""
    values = np.array(found[name], dtype=np.float64)
    _need(values.shape == shape, f"{name} has shape {values.shape}, not {shape}")
    _need(not ((values < 0) | np.isinf(values)).any(), f"{name} has numbers below 0 or infinite")
    return values


def _names(found: Any, name: str) -> tuple[str, ...]:
    values = found[name]
    is_list = isinstance(values, list) and all(isinstance(each, str) for each in values)
    _need(is_list, f"{name} must be a list of names, got {values!r}")
    return tuple(values)


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__} {error}"


def _need(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)
