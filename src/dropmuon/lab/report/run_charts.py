"""The charts of one run, in all the variants that the page can show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from markupsafe import Markup

from dropmuon.lab.analysis import Results
from dropmuon.lab.analysis.series import (
    SPLITS,
    UNITS,
    Axis,
    Split,
    Unit,
    accuracy,
    activity,
    along,
    mean_line,
    per_layer,
    trials,
)
from dropmuon.lab.report.charts import (
    Series,
    area_chart,
    bar_chart,
    heat_map,
    layer_chart,
    line_chart,
)
from dropmuon.lab.report.drawing import depths
from dropmuon.lab.run import Evaluation, RunDirectory

__all__ = ["RunCharts"]

Variant = tuple[str, Markup]
"""The classes that decide when a chart is shown, and the chart."""

_LABELS: dict[Axis, str] = {
    "epoch": "epochs",
    "seconds": "training time",
    "operations": "floating-point operations",
}


@dataclass(frozen=True)
class RunCharts:
    """The charts of a run; `css` has the classes of every method."""

    run: RunDirectory
    results: Results
    css: Mapping[str, str]

    def against_epochs(self) -> Iterator[Variant]:
        """Draw accuracy against epochs, on the training set and on the test set."""
        for split in SPLITS:
            yield split, self._accuracy("epoch", split)

    def against_time(self) -> Iterator[Variant]:
        """Draw accuracy against seconds and against operations."""
        for split, unit in _variants():
            yield f"{split} {unit}", self._accuracy(unit, split)

    def normalized(self) -> Iterator[Variant]:
        """Draw average curves on which the baseline ends at 1."""
        for split, unit in _variants():
            series = [
                Series(
                    name=curve.method,
                    css=self.css[curve.method],
                    points=list(zip(curve.time, curve.mean, strict=True)),
                    band=(curve.low, curve.high) if curve.seeds > 1 else None,
                    end=curve.end,
                )
                for curve in self.results.curves
                if (curve.split, curve.unit) == (split, unit)
            ]
            what = f"{unit}, {self.results.baseline} ends at 1"
            label = f"Average {split} accuracy against {what}"
            yield f"{split} {unit}", line_chart(series, label, what, "share", 1.0)

    def bars(self) -> Iterator[Variant]:
        """Draw time-to-target ratios."""
        for split, unit in _variants():
            groups = {
                target: [
                    each
                    for each in self.results.speedups
                    if (each.target, each.split, each.unit) == (target, split, unit)
                    and each.method != self.results.baseline
                ]
                for target in self.results.targets
            }
            label = f"Speed-up to {split} accuracy in {unit}"
            yield f"{split} {unit}", bar_chart(groups, self.css, self.results.baseline, label)

    def sampling(self) -> list[tuple[str, Markup]]:
        """Draw the sampling distribution of every method that has one."""
        found = []
        for method, content in self._methods.items():
            if content.get("cutoff"):
                layers = content["layers"]
                label = f"Probability that each layer is the cutoff, {method}"
                lines = (content["progress"], content["cutoff"])
                found.append((method, area_chart(layers, *lines, depths(len(layers)), label)))
        return found

    def legend(self) -> list[tuple[str, str]]:
        """Return layers and their colours, if all sampling charts share them."""
        all_layers = [c["layers"] for c in self._methods.values() if c.get("cutoff")]
        if not all_layers or any(layers != all_layers[0] for layers in all_layers):
            return []
        return list(zip(all_layers[0], depths(len(all_layers[0])), strict=True))

    def moved(self) -> list[tuple[str, Markup]]:
        """Draw how often each layer moved, for every method that has layers."""
        found = []
        for method, of_seed in self._trials.items():
            edges, shares = activity(of_seed)
            if shares:
                layers = self._methods.get(method, {}).get("layers", [])
                label = f"Share of steps in which each layer moved, {method}"
                found.append((method, heat_map(layers, edges, shares, label)))
        return found

    def shares(self) -> list[tuple[str, Markup]]:
        """Draw how much of a batch each layer learned from, where it changed or differed."""
        return list(self._per_layer("shares"))

    def noise(self) -> list[tuple[str, Markup]]:
        """Draw the noise of each layer's gradient, for every method that measured it."""
        return list(self._per_layer("noise"))

    def ramp(self) -> list[tuple[str, str]]:
        """Return layers and their places between two colours, if all such charts share them."""
        measured = {method for method, _ in [*self.shares(), *self.noise()]}
        names = [self._methods.get(method, {}).get("layers", []) for method in measured]
        if not names or any(layers != names[0] for layers in names):
            return []
        last = max(len(names[0]) - 1, 1)
        return [(layer, f"{100 * place / last:.0f}%") for place, layer in enumerate(names[0])]

    @cached_property
    def _trials(self) -> dict[str, dict[int, list[Evaluation]]]:
        found = trials(self.run.evaluations())
        return {method: found[method] for method in self.results.methods if method in found}

    @cached_property
    def _methods(self) -> dict[str, Any]:
        known = self.run.methods if (self.run.path / "methods.json").exists() else {}
        return {method: known[method] for method in self.results.methods if method in known}

    def _per_layer(self, name: Literal["shares", "noise"]) -> Iterator[tuple[str, Markup]]:
        what = "Share of the batch" if name == "shares" else "Ratio of gradient noise to signal"
        for method, of_seed in self._trials.items():
            lines = per_layer(of_seed, name)
            is_plain = name == "shares" and all(y == 1.0 for line in lines for _, y in line)
            if lines and not is_plain:
                layers = self._methods.get(method, {}).get("layers", [])
                label = f"{what} of each layer, {method}"
                yield method, layer_chart(layers, lines, label, is_share=name == "shares")

    def _accuracy(self, axis: Axis, split: Split) -> Markup:
        series = [
            Series(
                name=method,
                css=self.css[method],
                points=mean_line(of_seed, axis, split),
                thin=[
                    [(along(each, axis), accuracy(each, split)) for each in trial]
                    for trial in of_seed.values()
                    if len(of_seed) > 1
                ],
            )
            for method, of_seed in self._trials.items()
        ]
        label = f"{split.capitalize()} accuracy against {_LABELS[axis]}"
        return line_chart(series, label, _LABELS[axis], axis)


def _variants() -> Iterator[tuple[Split, Unit]]:
    for split in SPLITS:
        for unit in UNITS:
            yield split, unit
