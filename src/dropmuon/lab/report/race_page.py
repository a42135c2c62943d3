"""The page of a race: one sentence, one picture, then tables; and the picture as a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dropmuon.lab.analysis import race_wording, summarize, wording
from dropmuon.lab.analysis.race import MEASURES, Measure, RaceResults, summarize_race
from dropmuon.lab.analysis.series import SPLITS, UNITS, Unit
from dropmuon.lab.ladder import RaceDirectory
from dropmuon.lab.report.drawing import COLORS, Palette
from dropmuon.lab.report.page import Section, busy, template
from dropmuon.lab.report.race_charts import RacePicture
from dropmuon.lab.report.run_charts import RunCharts
from dropmuon.output import write_text

__all__ = ["write_picture", "write_race_report"]

_FEW_SEEDS = 5
"""With fewer, a bootstrap over seeds cannot cover 95 %."""

_FEW_TRIALS = 10
"""With fewer, tuning may leave the baseline with settings that suit another method better."""

Cell = tuple[str, list[str], str]
"""What stands first in a cell of a table, the lines below it, and a class for its colour."""


def write_race_report(race: RaceDirectory, path: Path) -> None:
    """Write the page about a race, finished or not."""
    page = _RacePage(race, summarize_race(race))
    text = template("race.html.j2").render(
        race=page,
        methods=page.results.methods,
        css=page.css,
        colors=COLORS,
        measures=MEASURES,
        splits=SPLITS,
        units=UNITS,
        word=wording,
        said=race_wording,
    )
    write_text(path, text)


def write_picture(race: RaceDirectory, path: Path) -> None:
    """Write the picture of the headline as an SVG file that is light or dark as its reader is."""
    page = _RacePage(race, summarize_race(race))
    chart = page.picture.draw(page.results.measure, page.results.unit)
    write_text(path, template("picture.svg.j2").render(chart=chart, colors=COLORS))


@dataclass(frozen=True)
class _RacePage:
    """What the template asks for."""

    race: RaceDirectory
    results: RaceResults

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The settings at a budget of 1."""
        return self.race.settings

    @cached_property
    def css(self) -> dict[str, str]:
        """The classes of every method, by which it is coloured and hidden."""
        palette = Palette(self.results.methods, self.results.baseline)
        return {
            method: f"m{palette.place(method)} k{i}"
            for i, method in enumerate(self.results.methods)
        }

    @cached_property
    def picture(self) -> RacePicture:
        """Quality against cost."""
        return RacePicture(self.results, self.css)

    @cached_property
    def run(self) -> Section | None:
        """The run at the budget of the headline, for time to target, shares and noise."""
        if self.results.rung not in self.results.finished:
            return None
        run = self.race.rung(self.results.rung)
        found = summarize(run)
        return Section(run, found, RunCharts(run, found, self.css))

    @property
    def task(self) -> str:
        """Data and model in a few words."""
        return wording.task_title(self.settings)

    @property
    def title(self) -> str:
        """The title that the race was given, or else its task."""
        return str(self.settings.get("title") or self.task)

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        return race_wording.verdict_of_race(self.results, self.settings)

    @property
    def clauses(self) -> list[str]:
        """The same in two parts: the outcome, and where it does not hold."""
        outcome, semicolon, limits = self.verdict.partition("; ")
        return [outcome + semicolon.rstrip(), limits]

    @property
    def second(self) -> str:
        """The same distance in the other unit and the other measure."""
        return race_wording.second(self.results)

    @property
    def standing(self) -> str:
        """Whether the verdict is a win, a draw or a loss."""
        gap = self.results.headline
        return "same" if gap is None else race_wording.race_standing(gap.distance)

    @property
    def command(self) -> str:
        """The command that repeats the race, from its own file."""
        return "dropmuon race --config race.json"

    @property
    def numbers(self) -> list[tuple[str, str, str]]:
        """The headline in figures: what, how much, and a remark."""
        gap = self.results.headline
        if gap is None:
            return []
        return [*self._ratios(gap.method), *self._finals(gap.method)]

    @property
    def cautions(self) -> list[str]:
        """What a reader must know before trusting the numbers."""
        return list(self._cautions())

    def final(self, method: str, unit: Unit) -> list[Cell]:
        """Return a row of the table at one budget: qualities, costs, and distances."""
        place = self.results.place(method)
        if place is None:
            return []
        cells: list[Cell] = []
        for measure in MEASURES:
            spread = place.spread(measure)
            shown = [self._quality(spread.mean, measure)] if spread else ["–"]
            if spread and place.seeds > 1:
                ends = (self._quality(end, measure) for end in (spread.least, spread.greatest))
                shown.append(" to ".join(ends))
            cells.append((shown[0], shown[1:], ""))
        cells.append((f"{place.steps:.0f}", [], ""))
        cells.append((wording.operations(place.operations), [], ""))
        cells.append((wording.duration(place.seconds), [], ""))
        return [*cells, *(self._distance(method, measure, unit) for measure in MEASURES)]

    def row(self, method: str, measure: Measure, unit: Unit) -> list[Cell]:
        """Return a row of the table of all budgets: quality, and the distance below it."""
        cells: list[Cell] = []
        for rung in self.results.ladder:
            place = self.results.place(method, rung)
            spread = place and place.spread(measure)
            if not spread:
                cells.append(("–", ["unfinished"], "missed"))
                continue
            gap = self.results.gap(method, measure, unit, rung)
            below = [race_wording.distance(gap.distance)] if gap else []
            standing = race_wording.race_standing(gap.distance) if gap else ""
            cells.append((self._quality(spread.mean, measure), below, standing))
        return cells

    def _distance(self, method: str, measure: Measure, unit: Unit) -> Cell:
        gap = self.results.gap(method, measure, unit)
        if gap is None:
            return ("–" if method != self.results.baseline else "1", [], "")
        inside = race_wording.interval(gap.distance)
        standing = race_wording.race_standing(gap.distance)
        return race_wording.ratio(gap.distance), [inside] if inside else [], standing

    def _ratios(self, method: str) -> Iterator[tuple[str, str, str]]:
        unit, measure = self.results.unit, self.results.measure
        other: Unit = "seconds" if unit == "operations" else "operations"
        second: Measure = "accuracy" if measure == "loss" else "loss"
        for each, of in ((measure, unit), (measure, other), (second, unit)):
            gap = self.results.gap(method, each, of)
            if gap is not None:
                cost = "operations" if of == "operations" else "time"
                what = f"{cost}, same {self._name(each)}"
                inside = race_wording.interval(gap.distance)
                ratio = race_wording.ratio(gap.distance)
                ratio = ratio.replace("more than ", "> ").replace("less than ", "< ")
                note = f"{inside}, 95 % interval" if inside else self._no_interval()
                yield what, f"{ratio}×", f"{self.results.baseline} needs; {note}"

    def _finals(self, method: str) -> Iterator[tuple[str, str, str]]:
        own, base = self.results.place(method), self.results.place(self.results.baseline)
        measure = self.results.measure
        one, two = (place and place.spread(measure) for place in (own, base))
        if one and two:
            other = f"{self.results.baseline}: {self._quality(two.mean, measure)}"
            where = race_wording.budget(self.results.rung)
            yield f"{self._name(measure)} at {where}", self._quality(one.mean, measure), other

    def _untuned(self) -> Iterator[str]:
        trials = int(self.settings.get("tune") or 0)
        if not trials:
            yield "Not tuned: a method may be ahead because the given settings suit it."
        elif trials < _FEW_TRIALS:
            yield (
                f"Tuned with {trials} trials per method only: one may be ahead because its "
                "settings happened to be found."
            )
        for rung in self.results.finished:
            for method, found in self.race.rung(rung).tuned.items():
                if names := found.get("at_the_end"):
                    yield (
                        f"{method} at {race_wording.budget(rung)}: tuning ended at the end of what "
                        f"it searches ({', '.join(names)}), so that another value may be better."
                    )

    def _no_interval(self) -> str:
        return "one seed, no interval" if len(self.results.seeds) == 1 else "a bound"

    def _quality(self, value: float, measure: Measure) -> str:
        return race_wording.quality(value, measure)

    def _name(self, measure: Measure) -> str:
        return race_wording.measure_name(measure, self.results)

    def _cautions(self) -> Iterator[str]:
        results, seeds = self.results, len(self.results.seeds)
        scale = float(self.settings.get("scale") or 1.0)
        if scale < 1:
            yield f"This race is scaled down to {scale:g}, with fewer channels and epochs."
        left = len(results.ladder) - len(results.finished)
        if left:
            yield f"Unfinished: {left} of {len(results.ladder)} budgets are left out."
        if seeds == 1:
            yield "One seed only: there are no intervals, and any difference may be luck."
        elif 1 < seeds < _FEW_SEEDS:
            yield (
                f"{seeds} seeds only: an interval that is drawn from so few is too narrow, and "
                "holds the truth less often than it says."
            )
        yield from self._untuned()
        for method in results.methods:
            count = sum(place.diverged for place in results.places if place.method == method)
            if count:
                yield f"{method} diverged {count} times, which counts as the race's worst loss."
        runs = [self.race.rung(rung) for rung in results.finished]
        loads = [e.load for run in runs for e in run.evaluations() if e.load is not None]
        if loads and self.run is not None:
            yield from busy(sum(loads) / len(loads), self.run.environment)
