"""Plans as JSON files: the measurements and settings; everything else is recomputed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dropmuon.checks import whole_number
from dropmuon.files import write_json
from dropmuon.planning.constants import check_confidence
from dropmuon.planning.estimated_smoothness import SmoothnessEstimate, summarize
from dropmuon.planning.measured_costs import MeasuredCosts
from dropmuon.samplers.base import active_set
from dropmuon.theory import StepCosts
from dropmuon.theory.complexity import Regime, check_regime

__all__ = ["Settings", "read", "write"]

_FORMAT = 3

_DAMAGE = (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError)
"""The exceptions that reading a damaged file may raise."""


class Settings(NamedTuple):
    """The settings that a plan follows from, besides the measurements."""

    updates_per_batch: int
    seed: int
    regime: Regime


def write(
    path: Path, costs: MeasuredCosts, estimate: SmoothnessEstimate, settings: Settings
) -> None:
    """Write the measurements and settings; the file is replaced as a whole or not at all."""
    content = {
        "format": _FORMAT,
        "layers": list(costs.layers),
        "updates_per_batch": settings.updates_per_batch,
        "seed": settings.seed,
        "regime": settings.regime,
        "costs": {
            "seconds": _parts(costs.seconds),
            "operations": _parts(costs.operations),
            "seconds_by_cutoff": _listed(costs.seconds_by_cutoff),
            "operations_by_cutoff": _listed(costs.operations_by_cutoff),
            "rounds": costs.rounds,
            "fit_error": costs.fit_error,
            "resampled": [_parts(each) for each in costs.resampled],
        },
        "smoothness": {
            "ratios": [[list(s), _listed(table)] for s, table in estimate.ratios.items()],
            "duals": _listed(estimate.duals),
            "confidence": estimate.confidence,
            "adamw": list(estimate.adamw),
        },
    }
    write_json(path, content)


def read(path: Path) -> tuple[MeasuredCosts, SmoothnessEstimate, Settings]:
    """Return the measurements and settings that `write` wrote, or raise ValueError."""
    text = path.read_bytes()
    try:
        return _parsed(json.loads(text))
    except _DAMAGE as error:
        raise ValueError(f"path {path} cannot be read as a plan: {_reason(error)}") from error


def _parsed(content: Any) -> tuple[MeasuredCosts, SmoothnessEstimate, Settings]:
    given = content["format"]
    _need(
        type(given) is int and given == _FORMAT,
        f"its format is {given!r}, but this version of dropmuon reads format {_FORMAT}; "
        "make the plan again",
    )
    layers = _names(content, "layers")
    settings = Settings(content["updates_per_batch"], content["seed"], content["regime"])
    whole_number("updates_per_batch", settings.updates_per_batch)
    _need(type(settings.seed) is int and settings.seed >= 0, f"seed is {settings.seed!r}")
    check_regime(settings.regime)
    costs = _costs(layers, content["costs"])
    return costs, _estimate(layers, content["smoothness"], settings.seed), settings


def _costs(layers: tuple[str, ...], found: Any) -> MeasuredCosts:
    b = len(layers)
    seconds, operations = StepCosts(**found["seconds"]), StepCosts(**found["operations"])
    resampled = tuple(StepCosts(**each) for each in found["resampled"])
    for each in (seconds, operations, *resampled):
        _need(each.num_layers == b, f"costs are for {each.num_layers} layers, but {b} are named")
    rounds, error = found["rounds"], found["fit_error"]
    _need(type(rounds) is int and rounds >= 0, f"rounds is {rounds!r}")
    _need(type(error) in (int, float) and 0 <= error < math.inf, f"fit_error is {error!r}")
    return MeasuredCosts(
        layers,
        seconds,
        operations,
        _array(found, "seconds_by_cutoff", (b,)),
        _array(found, "operations_by_cutoff", (b,)),
        rounds,
        error,
        resampled,
    )


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
