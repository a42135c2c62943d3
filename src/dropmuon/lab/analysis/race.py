"""The results of a race: quality against cost at every rung, and distances at equal quality."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from dropmuon.lab.analysis.equal_quality import Distance, Points, best_so_far, distances
from dropmuon.lab.analysis.metrics import Spread
from dropmuon.lab.analysis.series import UNITS, Unit, clock, shown_loss, trials
from dropmuon.lab.ladder import RaceDirectory
from dropmuon.lab.run import Evaluation

__all__ = ["MEASURES", "Gap", "Measure", "Place", "RaceResults", "summarize_race"]

Measure = Literal["loss", "accuracy"]
MEASURES: tuple[Measure, ...] = ("loss", "accuracy")

Finals = Mapping[float, Mapping[str, Mapping[int, Evaluation]]]
"""The last evaluation by rung, method and seed."""

_Found = TypeVar("_Found", "Place", "Gap")


@dataclass(frozen=True)
class Place:
    """Where a method ended at one budget: means over seeds, with ranges.

    Attributes:
        loss: on the test set, in bits per byte for text; None if no seed has a finite one.
        accuracy: on the test set.
        diverged: on how many seeds the loss is not finite; these count as the race's worst loss.
        by_seed: loss and accuracy of every seed.
    """

    method: str
    rung: float
    seeds: int
    steps: float
    operations: float
    seconds: float
    loss: Spread | None
    accuracy: Spread
    diverged: int
    by_seed: dict[int, tuple[float | None, float]]

    def spread(self, measure: Measure) -> Spread | None:
        """Return the quality in one of the two measures."""
        return self.loss if measure == "loss" else self.accuracy

    def cost(self, unit: Unit) -> float:
        """Return the cost in one of the two units."""
        return self.seconds if unit == "seconds" else self.operations


@dataclass(frozen=True)
class Gap:
    """How many times a method's cost the baseline needs for the quality reached at a rung.

    Attributes:
        quality: that quality, as loss or accuracy: the best mean over seeds up to that rung.
    """

    method: str
    measure: Measure
    unit: Unit
    rung: float
    quality: float
    distance: Distance


@dataclass(frozen=True)
class RaceResults:
    """The numbers of one race.

    Attributes:
        methods: in the order requested.
        ladder: all rungs; `finished` are those that have results.
        seeds: those that every method has at every finished rung.
        in_bits: whether losses are in bits per byte, as evaluations of text record them.
        unit: the unit of the headline, which is that of the budget.
        rung: the budget of the headline: 1, or the nearest to it that is finished.
        places: one per method and finished rung.
        gaps: one per method but the baseline, measure, unit and finished rung, in that order;
            empty with fewer than two finished rungs.
    """

    baseline: str
    methods: tuple[str, ...]
    ladder: tuple[float, ...]
    finished: tuple[float, ...]
    seeds: tuple[int, ...]
    measure: Measure
    in_bits: bool
    unit: Unit
    rung: float
    places: tuple[Place, ...]
    gaps: tuple[Gap, ...]

    def place(self, method: str, rung: float | None = None) -> Place | None:
        """Return where a method ended at a rung, that of the headline by default."""
        return _one(self.places, method=method, rung=self.rung if rung is None else rung)

    def gap(
        self,
        method: str,
        measure: Measure | None = None,
        unit: Unit | None = None,
        rung: float | None = None,
    ) -> Gap | None:
        """Return one distance; measure, unit and rung are those of the headline by default."""
        return _one(
            self.gaps,
            method=method,
            measure=measure or self.measure,
            unit=unit or self.unit,
            rung=self.rung if rung is None else rung,
        )

    def curve(self, method: str, measure: Measure, unit: Unit) -> list[tuple[float, float]]:
        """Return (cost, quality) along the curve that distances are taken from."""
        own = sorted((p for p in self.places if p.method == method), key=lambda p: p.cost(unit))
        spreads = [spread for place in own if (spread := place.spread(measure)) is not None]
        sign = -1.0 if measure == "loss" else 1.0
        best = sign * best_so_far(np.array([sign * spread.mean for spread in spreads]))
        return [(p.cost(unit), float(y)) for p, y in zip(own, best, strict=True)]

    @property
    def headline(self) -> Gap | None:
        """The distance of the best challenger at the budget of the headline.

        Bounds compare only where they exclude each other. Of challengers whose order they leave
        open, the best is the one with the best quality at the largest budget.
        """
        others = [self.gap(method) for method in self.methods if method != self.baseline]
        known = [gap for gap in others if gap is not None]
        highest = max((gap.distance.least for gap in known), default=0.0)
        leading = [gap for gap in known if gap.distance.most >= highest]
        return max(leading, key=self._final_quality, default=None)

    def _final_quality(self, gap: Gap) -> float:
        place = self.place(gap.method, self.finished[-1])
        spread = place and place.spread(self.measure)
        if not spread:
            return -math.inf
        return -spread.mean if self.measure == "loss" else spread.mean


def summarize_race(race: RaceDirectory) -> RaceResults:
    """Compute all results from the files of a race, finished or not.

    A rung takes part once its comparison has ended.
    """
    ladder, settings = race.ladder, race.settings
    methods = tuple(str(method) for method in settings["methods"])
    baseline = str(settings.get("baseline") or methods[0])
    finals: Finals = {rung: _finals(race, rung) for rung in ladder if rung in race.finished}
    seeds = _common_seeds(finals, methods)
    finals = _on_one_clock(finals, baseline, seeds) if seeds else {}
    worst = _worst_loss(finals)
    measure: Measure = "loss" if worst is not None else "accuracy"
    return RaceResults(
        baseline=baseline,
        methods=methods,
        ladder=ladder,
        finished=tuple(finals),
        seeds=seeds,
        measure=measure,
        in_bits=_in_bits(finals),
        unit="seconds" if settings.get("budget") == "seconds" else "operations",
        rung=min(finals or ladder, key=lambda rung: abs(math.log(rung))),
        places=tuple(
            _place(method, rung, [of_method[method][seed] for seed in seeds], worst)
            for rung, of_method in finals.items()
            for method in methods
        ),
        gaps=tuple(_gaps(finals, methods, baseline, seeds, worst)),
    )


def _finals(race: RaceDirectory, rung: float) -> dict[str, dict[int, Evaluation]]:
    found = trials(race.rung(rung).evaluations())
    return {
        method: {seed: trial[-1] for seed, trial in of_seed.items() if trial[-1].step}
        for method, of_seed in found.items()
    }


def _common_seeds(finals: Finals, methods: Sequence[str]) -> tuple[int, ...]:
    found = [set(of_method.get(method, {})) for of_method in finals.values() for method in methods]
    return tuple(sorted(set.intersection(*found))) if found else ()


def _on_one_clock(finals: Finals, baseline: str, seeds: Sequence[int]) -> Finals:
    """Return the evaluations of these seeds as if the machine had been equally fast throughout.

    Methods take turns on a seed, but rungs and seeds run one after another. So the seconds of a
    rung and a seed are multiplied by what gives the baseline its mean time per operation there.
    """

    def pace(rung: float, seed: int) -> float:
        own = finals[rung][baseline][seed]
        return own.seconds / own.operations if own.operations else 1.0

    typical = float(np.mean([pace(rung, seed) for rung in finals for seed in seeds]))

    def corrected(each: Evaluation, rung: float) -> Evaluation:
        slowness = pace(rung, each.seed) / typical if typical else 1.0
        return replace(each, seconds=each.seconds / (slowness or 1.0))

    return {
        rung: {
            method: {seed: corrected(of_seed[seed], rung) for seed in seeds}
            for method, of_seed in of_method.items()
        }
        for rung, of_method in finals.items()
    }


def _worst_loss(finals: Finals) -> float | None:
    """Return the greatest finite loss of the race, which stands for those that are not finite."""
    losses = [loss for each in _evaluations(finals) if (loss := shown_loss(each)) is not None]
    return max(losses, default=None)


def _in_bits(finals: Finals) -> bool:
    return any(each.test_bits_per_byte is not None for each in _evaluations(finals))


def _evaluations(finals: Finals) -> Iterator[Evaluation]:
    for of_method in finals.values():
        for of_seed in of_method.values():
            yield from of_seed.values()


def _place(method: str, rung: float, last: Sequence[Evaluation], worst: float | None) -> Place:
    return Place(
        method=method,
        rung=rung,
        seeds=len(last),
        steps=float(np.mean([each.step for each in last])),
        operations=float(np.mean([each.operations for each in last])),
        seconds=float(np.mean([each.seconds for each in last])),
        loss=None if worst is None else Spread.of([_loss(each, worst) for each in last]),
        accuracy=Spread.of([each.test_accuracy for each in last]),
        diverged=sum(each.test_loss is None for each in last),
        by_seed={each.seed: (shown_loss(each), each.test_accuracy) for each in last},
    )


def _gaps(
    finals: Finals,
    methods: Sequence[str],
    baseline: str,
    seeds: Sequence[int],
    worst: float | None,
) -> Iterator[Gap]:
    if len(finals) < 2:
        return
    for method in methods:
        for measure in MEASURES if worst is not None else ("accuracy",):
            for unit in UNITS:
                if method == baseline:
                    continue
                own, base = (
                    _points(finals, name, seeds, measure, unit, worst)
                    for name in (method, baseline)
                )
                sign = -1 if measure == "loss" else 1
                for rung, found in zip(finals, distances(own, base), strict=True):
                    yield Gap(method, measure, unit, rung, sign * found.quality, found)


def _points(
    finals: Finals,
    method: str,
    seeds: Sequence[int],
    measure: str,
    unit: Unit,
    worst: float | None,
) -> Points:
    """Return cost and quality by seed and rung; the quality of a loss is its negative."""
    rows = [[of_method[method][seed] for of_method in finals.values()] for seed in seeds]
    quality = [
        [-_loss(e, worst or 0.0) if measure == "loss" else e.test_accuracy for e in row]
        for row in rows
    ]
    return Points(np.array([[clock(e, unit) for e in row] for row in rows]), np.array(quality))


def _loss(evaluation: Evaluation, worst: float) -> float:
    loss = shown_loss(evaluation)
    return worst if loss is None else loss


def _one(found: Sequence[_Found], **wanted: object) -> _Found | None:
    return next(
        (e for e in found if all(getattr(e, name) == value for name, value in wanted.items())), None
    )
