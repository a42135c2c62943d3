"""The specification of a sweep: shared settings, axes, and the cells that they span."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dropmuon.checks import unknown_name, whole_number
from dropmuon.lab.config import Config, read_settings
from dropmuon.lab.sweep.search import Axis, Objective, Range, check_name, option, read_axis

__all__ = ["Cell", "SweepSpec", "read_spec"]

_MOST_CELLS = 100_000
_KEYS = ("base", "grid", "search", "trials", "objective", "name")


@dataclass(frozen=True)
class Cell:
    """One comparison of a sweep.

    Attributes:
        values: the value on every axis that matters to it.
        config: all settings.
        name: of its directory: readable, with a short hash of all settings.
    """

    values: Mapping[str, Any]
    config: Config
    name: str


@dataclass(frozen=True)
class SweepSpec:
    """The specification of a sweep.

    Attributes:
        base: settings that all cells share.
        grid: axes by setting. Besides the settings of a comparison, `method` is one method per
            cell, `seeds` may list single seeds, `options.METHOD.KEY` is an option of a method, and
            `options` has the options of several methods at once.
        search: "grid" runs every cell once, "tpe" lets Optuna choose cells.
        trials: how many cells tpe may run.
        objective: what cells are ranked by, and what tpe optimizes.
        name: of the study; by default derived from the rest.
    """

    base: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Axis] = field(default_factory=dict)
    search: str = "grid"
    trials: int | None = None
    objective: Objective = field(default_factory=Objective)
    name: str = ""

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> SweepSpec:
        """Make a specification from plain values, such as those of a file."""
        for key in content:
            if key not in _KEYS:
                raise unknown_name("key of a sweep", str(key), _KEYS)
        for key in ("base", "grid"):
            if not isinstance(content.get(key, {}), Mapping):
                raise ValueError(f"{key} must map names to settings, got {content[key]!r}")
        given = dict(content)
        given["grid"] = {str(k): read_axis(str(k), v) for k, v in content.get("grid", {}).items()}
        given["objective"] = Objective.of(content.get("objective", {}))
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `of` reads back."""
        axes = {
            name: axis.to_json() if isinstance(axis, Range) else list(axis)
            for name, axis in self.grid.items()
        }
        content: dict[str, Any] = {"base": dict(self.base), "grid": axes, "search": self.search}
        content |= {"trials": self.trials, "objective": self.objective.to_json()}
        plain: dict[str, Any] = json.loads(json.dumps(content | {"name": self.name}))
        return plain

    @property
    def study_name(self) -> str:
        """The name by which workers on all machines find the study."""
        return self.name or f"dropmuon-{_digest(self.to_json())}"

    def cells(self) -> list[Cell]:
        """Return every cell of a grid, each with valid settings and each once.

        Cells that differ only in an option of a method that they do not have are the same cell.
        """
        return list({cell.name: cell for cell in self._product()}.values())

    def cell(self, values: Mapping[str, Any], prefix: str = "") -> Cell:
        """Return the cell with these values on the axes."""
        settings = self._settings(values)
        try:
            config = Config.of(settings)
            self.objective.check(config.methods)
        except (TypeError, ValueError) as error:
            raise ValueError(f"cell {_label(values) or 'of base'}: {error}") from error
        methods = {*settings.get("methods", ()), *config.methods}
        there = {
            axis: value
            for axis, value in values.items()
            if not axis.startswith("options.") or option(axis)[0] in methods
        }
        return Cell(there, config, prefix + _name(there, config))

    def probes(self) -> list[Cell]:
        """Return cells in which every listed value and both ends of every range occur, for tpe."""
        ends = {k: (v.low, v.high) if isinstance(v, Range) else v for k, v in self.grid.items()}
        first = {name: values[0] for name, values in ends.items()}
        choices = [first, *(first | {name: v} for name, vs in ends.items() for v in vs)]
        return [self.cell(values) for values in choices]

    def _product(self) -> Iterator[Cell]:
        axes = [axis for axis in self.grid.values() if not isinstance(axis, Range)]
        for values in itertools.product(*axes):
            yield self.cell(dict(zip(self.grid, values, strict=True)))

    def _settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        settings = dict(self.base)
        options = {name: dict(own) for name, own in dict(settings.get("options") or {}).items()}
        for axis, value in values.items():
            if axis == "method":
                settings["methods"] = [value]
            elif axis == "seeds" and isinstance(value, int):
                settings["seeds"] = [value]
            elif axis.startswith("options."):
                method, key = option(axis)
                options.setdefault(method, {})[key] = value
            elif axis == "options":
                for method, own in value.items():
                    options[method] = options.get(method, {}) | dict(own)
            else:
                settings[axis] = value
        if "method" in values or "methods" in values:
            options = {k: own for k, own in options.items() if k in settings["methods"]}
        return settings | {"options": options}


def read_spec(path: Path) -> SweepSpec:
    """Read a sweep from a YAML, TOML or JSON file."""
    content = read_settings(path)
    try:
        return SweepSpec.of(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _check(spec: SweepSpec) -> None:
    if spec.search not in ("grid", "tpe"):
        raise unknown_name("search", str(spec.search), ("grid", "tpe"))
    if not isinstance(spec.name, str):
        raise ValueError(f"name must be a string, got {spec.name!r}")
    try:
        spec.to_json()
    except TypeError as error:
        raise ValueError(f"base and grid must hold plain values: {error}; quote them") from error
    for name in spec.grid:
        check_name(name)
    _check_option_names(spec)
    if {"method", "methods"} <= set(spec.grid):
        raise ValueError("grid must have one of the axes method and methods, got both; drop one")
    if spec.search == "tpe":
        _check_tpe(spec)
        return
    if spec.trials is not None:
        raise ValueError(f"trials goes with search: tpe, got {spec.trials!r}; drop it")
    ranged = next((name for name, axis in spec.grid.items() if isinstance(axis, Range)), None)
    if ranged is not None:
        raise ValueError(
            f"axis {ranged!r} is a range, which goes with search: tpe; list its values for a grid"
        )
    count = math.prod(len(axis) for axis in spec.grid.values() if not isinstance(axis, Range))
    if count > _MOST_CELLS:
        raise ValueError(
            f"grid must have at most {_MOST_CELLS} cells, got {count}; use search: tpe with trials"
        )
    spec.cells()


def _check_tpe(spec: SweepSpec) -> None:
    if spec.trials is None:
        raise ValueError("trials must say how many cells tpe may run, got none; give trials: 50")
    whole_number("trials", spec.trials)
    if not spec.grid:
        raise ValueError("grid must have an axis for tpe to choose on, got none")
    spec.probes()


def _check_option_names(spec: SweepSpec) -> None:
    """Reject options of a method that no cell has."""
    chosen = [spec.grid[name] for name in ("method", "methods") if name in spec.grid]
    if not chosen or isinstance(chosen[0], Range):
        return
    there = {n for v in chosen[0] for n in (v if isinstance(v, list | tuple) else [v])}
    axes = [option(axis)[0] for axis in spec.grid if axis.startswith("options.")]
    for name in [*dict(spec.base.get("options") or {}), *axes]:
        if name not in there:
            raise unknown_name("options", str(name), map(str, there))


def _label(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _name(values: Mapping[str, Any], config: Config) -> str:
    parts = []
    for axis, value in values.items():
        text = "x".join(map(str, value)) if isinstance(value, list | tuple) else _short(value)
        parts.append(text if axis in {"method", "methods"} else f"{axis.split('.')[-1]}-{text}")
    readable = re.sub(r"[^A-Za-z0-9.+-]+", "-", "_".join(parts)).strip("-.")[:80]
    return f"{readable or 'base'}-{_digest(config.to_json())}"


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "-".join(_short(each) for each in value.values())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]
