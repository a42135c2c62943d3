"""The picture of a race: quality against cost, with the horizontal gap drawn in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from dropmuon.lab.analysis import race_wording, wording
from dropmuon.lab.analysis.race import MEASURES, Gap, Measure, Place, RaceResults
from dropmuon.lab.analysis.series import UNITS, Unit
from dropmuon.lab.report.drawing import FORMATS, Frame, explained, short, tag

__all__ = ["RacePicture"]

_ROOM = 1.09
"""How far the axis of cost goes beyond the first and the last rung."""

_LINE = 15.0
"""The least distance between names at the ends of lines, and between labels of an axis."""

_LONGEST_NAME = 24
_COSTS: dict[Unit, str] = {"operations": "floating-point operations", "seconds": "training time"}


@dataclass(frozen=True)
class RacePicture:
    """The picture in all its variants; `css` has the classes of every method."""

    results: RaceResults
    css: Mapping[str, str]

    def variants(self) -> Iterator[tuple[str, Markup]]:
        """Draw both measures in both units, for wide screens and for narrow ones."""
        for measure in MEASURES:
            for unit in UNITS:
                for size in ("wide", "narrow"):
                    yield f"{measure} {unit} {size}", self.draw(measure, unit, size)

    def draw(self, measure: Measure, unit: Unit, size: str = "wide") -> Markup:
        """Draw one measure against one unit of cost."""
        places = [place for place in self.results.places if place.spread(measure) is not None]
        if not places:
            return tag("p", "Nothing to draw yet.", class_="none")
        drawing = _Drawing(self, measure, unit, places, is_wide=size == "wide")
        name = race_wording.measure_name(measure, self.results)
        label = (
            f"{name.capitalize()} against {_COSTS[unit]}, at equal quality {self._said(drawing)}"
        )
        return drawing.frame.svg(label, drawing.elements(), f"race {size}")

    def _said(self, drawing: _Drawing) -> str:
        gap = drawing.gap
        if gap is None:
            return "nothing can be compared yet"
        return race_wording.tip(gap, self.results)


class _Drawing:
    """One variant of the picture."""

    def __init__(
        self,
        picture: RacePicture,
        measure: Measure,
        unit: Unit,
        places: Sequence[Place],
        *,
        is_wide: bool,
    ) -> None:
        self.results, self.css = picture.results, picture.css
        self.measure, self.unit, self.places, self.is_wide = measure, unit, places, is_wide
        headline = self.results.headline
        self.gap = headline and self.results.gap(headline.method, measure, unit)
        self.frame = self._frame()

    def elements(self) -> list[Markup]:
        """Return everything in the order in which it is painted."""
        found = [*self._axes()]
        methods = [
            name for name in self.results.methods if any(p.method == name for p in self.places)
        ]
        found += [self._method(method) for method in methods]
        if self.is_wide:
            found += self._names(methods)
        if self.gap is not None:
            found.append(self._gap(self.gap))
        return found

    def _frame(self) -> Frame:
        costs = [place.cost(self.unit) for place in self.places]
        low, high = math.log(min(costs) / _ROOM), math.log(max(costs) * _ROOM)
        if self.gap is not None and math.isinf(self.gap.distance.most):
            high += 0.12 * (high - low)
        if self.gap is not None and self.gap.distance.least == 0:
            low -= 0.12 * (high - low)
        longest = max(len(short(name, _LONGEST_NAME)) for name in self.results.methods)
        if self.is_wide:
            size = {"width": 860.0, "height": 430.0, "left": 56.0, "right": 22 + 7.8 * longest}
        else:
            size = {"width": 380.0, "height": 360.0, "left": 46.0, "right": 10.0}
        return Frame((low, high), self._range(), **size, top=26.0, bottom=56.0)

    def _range(self) -> tuple[float, float]:
        """Return the ends of the axis of quality; seeds far from all means are cut off."""
        spreads = [s for place in self.places if (s := place.spread(self.measure)) is not None]
        means = [spread.mean for spread in spreads]
        room = 0.5 * (max(means) - min(means)) or 0.05 * abs(max(means)) or 0.05
        low = max(min(spread.least for spread in spreads), min(means) - room)
        high = min(max(spread.greatest for spread in spreads), max(means) + room)
        edge = 0.06 * (high - low) or room
        return low - edge, high + edge

    def _axes(self) -> Iterator[Markup]:
        """Draw values of quality, the rungs with the baseline's costs, and what is better."""
        frame = self.frame
        base, top = frame.height - frame.bottom, frame.top
        yield from frame.axes("", "epoch", "percent" if self._is_accuracy else "loss", False)
        last = -math.inf
        for place in self.places:
            if place.method != self.results.baseline:
                continue
            x = frame.across(math.log(place.cost(self.unit)))
            yield tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=top, y2=base, class_="rule")
            if x - last < 3 * _LINE:
                continue
            last = x
            cost = FORMATS[self.unit](place.cost(self.unit))
            lines = [(f"{place.rung:g}×", 16, "tick middle rung")]
            lines.append(
                (cost.replace("FLOP", "") if not self.is_wide else cost, 31, "tick middle")
            )
            for text, down, css in lines:
                yield tag("text", text, x=f"{x:.1f}", y=base + down, class_=css)
        unit = "FLOP" if self.unit == "operations" and not self.is_wide else _COSTS[self.unit]
        what = f"{unit}, logarithmic, and as a multiple of the budget"
        if not self.is_wide:
            what = f"{unit}; ×: of the budget"
        middle = (frame.left + frame.width - frame.right) / 2
        yield tag("text", what, x=f"{middle:.1f}", y=frame.height - 6, class_="label middle")
        better = "higher" if self._is_accuracy else "lower"
        name = race_wording.measure_name(self.measure, self.results)
        yield tag("text", f"{name}, {better} is better", x=0, y=13, class_="label")

    def _method(self, method: str) -> Markup:
        """Draw seeds as dots, means as discs, and the curve that distances are taken from."""
        frame, elements = self.frame, []
        own = [place for place in self.places if place.method == method]
        curve = self.results.curve(method, self.measure, self.unit)
        line = frame.points((math.log(cost), quality) for cost, quality in curve)
        elements.append(tag("polyline", points=line, class_="main"))
        for place in own:
            x = frame.across(math.log(place.cost(self.unit)))
            for loss, accuracy in place.by_seed.values():
                value = accuracy if self._is_accuracy else loss
                if value is not None and frame.y[0] <= value <= frame.y[1]:
                    y = frame.down(value)
                    elements.append(tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=2, class_="seed"))
        for place in own:
            spread = place.spread(self.measure)
            if spread is not None and frame.y[0] <= spread.mean <= frame.y[1]:
                x, y = frame.across(math.log(place.cost(self.unit))), frame.down(spread.mean)
                at = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "4.5" if self.is_wide else "4"}
                elements.append(explained("circle", self._tip(place), **at, class_="mean"))
        return tag("g", Markup("").join(elements), class_=f"s {self.css[method]}")

    def _names(self, methods: Sequence[str]) -> Iterator[Markup]:
        """Write names beside the ends of their lines, apart from each other."""
        frame = self.frame
        ends = sorted(
            (frame.down(self.results.curve(method, self.measure, self.unit)[-1][1]), method)
            for method in methods
        )
        heights: list[float] = []
        for y, _ in ends:
            heights.append(max(y, heights[-1] + _LINE) if heights else y)
        over = max(0.0, heights[-1] - (frame.height - frame.bottom)) if heights else 0.0
        x = frame.width - frame.right + 8
        for (_, method), y in zip(ends, heights, strict=True):
            place = {"x": f"{x:.1f}", "y": f"{y - over:.1f}", "dy": "0.33em"}
            name = short(method, _LONGEST_NAME)
            yield tag("text", name, **place, class_=f"name s {self.css[method]}")

    def _gap(self, gap: Gap) -> Markup:
        """Draw the distance at equal quality: a line between the curves, its interval, its size."""
        frame, found = self.frame, gap.distance
        y = frame.down(gap.quality)
        start = frame.across(math.log(found.cost))
        end, is_open = self._end(gap)
        low, high = (self._across(found.cost * edge) for edge in (found.low or 0, found.high or 0))
        elements = []
        if found.low is not None and found.high is not None and high > low:
            box = {"x": f"{low:.1f}", "y": f"{y - 5:.1f}", "width": f"{high - low:.1f}"}
            elements.append(tag("rect", **box, height=10, rx=5, class_="span"))
        ends = {"x1": f"{start:.1f}", "x2": f"{end:.1f}", "y1": f"{y:.1f}", "y2": f"{y:.1f}"}
        elements.append(tag("line", **ends, class_="gap open" if is_open else "gap"))
        side = math.copysign(1.0, end - start) if end != start else 1.0
        if abs(end - start) > 2:
            arm = 6.0 if abs(end - start) > 12 else 3.0
            head = f"M{end - side * arm:.1f} {y - arm * 0.7:.1f}L{end:.1f} {y:.1f}"
            head += f"L{end - side * arm:.1f} {y + arm * 0.7:.1f}"
            elements.append(tag("path", d=head, class_="gap"))
        elements += self._size(gap, (start + end) / 2, y)
        tip = race_wording.tip(gap, self.results)
        group = Markup("").join(elements)
        return explained("g", tip, group, class_=f"distance s {self.css[gap.method]}")

    def _size(self, gap: Gap, middle: float, y: float) -> Iterator[Markup]:
        """Write ratio and interval where curves leave room: above losses, below accuracies."""
        frame = self.frame
        said = (
            race_wording.ratio(gap.distance).replace("more than ", ">").replace("less than ", "<")
        )
        inside = race_wording.interval(gap.distance)
        needs = f"{self.results.baseline} needs"
        half = 3.5 * max(len(inside), len(needs)) + 4
        x = min(max(middle, frame.left + half), frame.width - frame.right - half)
        top = frame.height - frame.bottom - 46 if self._is_accuracy else frame.top + 12
        near, far = (top - 14, y + 8) if self._is_accuracy else (top + 44, y - 8)
        if abs(far - near) > _LINE:
            ends = {
                "x1": f"{x:.1f}",
                "x2": f"{middle:.1f}",
                "y1": f"{near:.1f}",
                "y2": f"{far:.1f}",
            }
            yield tag("line", **ends, class_="leader")
        rows = ((needs, 0, "size middle"), (f"{said}×", 21, "size middle ratio"))
        for text, down, css in (*rows, (inside, 38, "size middle")):
            if text:
                yield tag("text", text, x=f"{x:.1f}", y=f"{top + down:.1f}", class_=css)

    def _end(self, gap: Gap) -> tuple[float, bool]:
        """Return where the line ends, and whether it goes on beyond what was measured."""
        found, frame = gap.distance, self.frame
        if found.ratio is not None:
            return self._across(found.cost * found.ratio), False
        if math.isinf(found.most):
            return frame.width - frame.right, True
        return frame.left, True

    def _across(self, cost: float) -> float:
        frame = self.frame
        if cost <= 0:
            return frame.left
        if math.isinf(cost):
            return frame.width - frame.right
        return min(max(frame.across(math.log(cost)), frame.left), frame.width - frame.right)

    def _tip(self, place: Place) -> str:
        spread = place.spread(self.measure)
        name = race_wording.measure_name(self.measure, self.results)
        shown = [
            race_wording.quality(value, self.measure)
            for value in ((spread.mean, spread.least, spread.greatest) if spread else ())
        ]
        cost = f"{wording.operations(place.operations)}, {wording.duration(place.seconds)}"
        seeds = f" ({shown[1]} to {shown[2]} over {place.seeds} seeds)" if place.seeds > 1 else ""
        where = f"{place.method} at {race_wording.budget(place.rung)}"
        return f"{where}: {name} {shown[0]}{seeds}, {cost}, {place.steps:.0f} steps"

    @property
    def _is_accuracy(self) -> bool:
        return self.measure == "accuracy"
