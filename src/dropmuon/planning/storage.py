"""A plan on disk: what was measured, as JSON. What follows from it is worked out again."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dropmuon.planning.costs import MeasuredCosts
from dropmuon.planning.smoothness import SmoothnessEstimate, summarize
from dropmuon.theory import StepCosts

__all__ = ["read", "write"]

_FORMAT = 1


def write(
    path: Path, costs: MeasuredCosts, estimate: SmoothnessEstimate, updates_per_batch: int
) -> None:
    """Write all that a plan follows from. The file is replaced as a whole or not at all."""
    content = {
        "format": _FORMAT,
        "layers": list(costs.layers),
        "updates_per_batch": updates_per_batch,
        "costs": {
            "seconds": _parts(costs.seconds),
            "operations": _parts(costs.operations),
            "seconds_by_cutoff": _listed(costs.seconds_by_cutoff),
            "operations_by_cutoff": _listed(costs.operations_by_cutoff),
            "rounds": costs.rounds,
            "fit_error": costs.fit_error,
        },
        "smoothness": {
            "ratios": [[list(s), _listed(table)] for s, table in estimate.ratios.items()],
            "duals": _listed(estimate.duals),
            "confidence": estimate.confidence,
        },
    }
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
        Path(draft).chmod(0o644)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def read(path: Path) -> tuple[MeasuredCosts, SmoothnessEstimate, int]:
    """Read what `write` wrote."""
    try:
        content = json.loads(path.read_text())
        if content["format"] > _FORMAT:
            raise ValueError(f"path {path} has format {content['format']}; upgrade dropmuon")
        layers, costs = tuple(content["layers"]), content["costs"]
        measured = MeasuredCosts(
            layers,
            StepCosts(**costs["seconds"]),
            StepCosts(**costs["operations"]),
            _array(costs["seconds_by_cutoff"]),
            _array(costs["operations_by_cutoff"]),
            costs["rounds"],
            costs["fit_error"],
        )
        found = content["smoothness"]
        ratios = {tuple(s): _array(table) for s, table in found["ratios"]}
        duals, confidence = _array(found["duals"]), found["confidence"]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"path {path} is not a plan that was saved by dropmuon: {error}"
        ) from error
    smooth, generalized, intervals = summarize(duals, ratios, confidence, seed=0)
    estimate = SmoothnessEstimate(layers, smooth, generalized, intervals, ratios, duals, confidence)
    return measured, estimate, content["updates_per_batch"]


def _parts(costs: StepCosts) -> dict[str, Any]:
    return {
        "overhead": costs.overhead,
        "forward": costs.forward.tolist(),
        "backward": costs.backward.tolist(),
        "sharp": costs.sharp.tolist(),
        "batch": costs.batch,
    }


def _listed(values: npt.NDArray[np.float64]) -> Any:
    """Nested lists, with None for NaN, which JSON does not have."""
    plain = values.astype(object)
    plain[np.isnan(values)] = None
    return plain.tolist()


def _array(values: Any) -> npt.NDArray[np.float64]:
    return np.array(values, dtype=np.float64)
