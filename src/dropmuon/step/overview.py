"""What users read of an optimizer: its table, and how far it has come."""

from __future__ import annotations

from dropmuon.backward.lookups import LookUps
from dropmuon.backward.parts import InParts
from dropmuon.model.roster import Roster
from dropmuon.output import html_table
from dropmuon.samplers import ActiveSet, Sampler
from dropmuon.step.adaptation import Adaptation
from dropmuon.step.draws import Draws
from dropmuon.step.tally import Tally

__all__ = ["Overview"]


class Overview(InParts):
    """An optimizer that shows its layers, and counts how often each has moved."""

    roster: Roster
    draws: Draws
    _steps: int
    _tally: Tally
    _lookups: LookUps
    _adaptation: Adaptation | None

    @property
    def active(self) -> ActiveSet:
        """Indices of the layers that the next backward is for."""
        raise NotImplementedError

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in order."""
        return self.roster.names

    @property
    def sampler(self) -> Sampler:
        """The distribution that active sets are drawn from."""
        return self.draws.sampler

    @property
    def steps(self) -> int:
        """The number of steps taken; `step()` without a gradient is none."""
        return self._steps

    @property
    def cutoff(self) -> int:
        """Index of the lowest layer that the next backward is for: it stops there."""
        return min(self.active)

    @property
    def moves(self) -> dict[str, int]:
        """How often each layer has moved; once per update, with several updates per batch."""
        return self._tally.moved(self.layers)

    @property
    def skipped(self) -> dict[str, int]:
        """How often each layer was skipped because of a gradient that was not finite."""
        return self._tally.skipped

    @property
    def noise(self) -> tuple[float, ...] | None:
        """The noise-to-signal ratio of each layer's gradient over a whole batch, as measured last.

        Squared noise over squared norm; NaN before the first measurement. Only an adaptive sampler
        measures it.
        """
        return None if self._adaptation is None else self._adaptation.ratios

    def describe(self) -> str:
        """Return a table of layers, parameters, shapes, norms and why each norm was chosen."""
        return "\n".join([self.roster.table(self._title()), *self._lookups.notes(self.layers)])

    def __repr__(self) -> str:
        return self.describe()

    def _repr_html_(self) -> str:
        """Return the table for a notebook, with the active layers marked and moves counted."""
        now = f"step {self.steps}, cutoff {self.cutoff} ({self.layers[self.cutoff]})"
        moves, layer = self.moves, -1
        rows: list[tuple[str, ...]] = []
        for name, *cells in self.roster.rows():
            layer += bool(name)
            mark = "●" if name and layer in self.active else ""
            rows.append((name, mark, str(moves[name]) if name else "", *cells))
        first, *others = self.roster.headers
        return html_table(f"{self._title()}; {now}", (first, "active", "moves", *others), rows)

    def _title(self) -> str:
        title = f"DropMuon: {len(self.layers)} layers, sampler {self.sampler!r}"
        if self.parts > 1:
            expected = self.sampler.expected_parts(len(self.layers), self.parts)
            counts = ", ".join(f"{count:.3g}" for count in expected)
            title += f"; active in {counts} of {self.parts} parts"
        if self.draws.turns > 1:
            title += f"; matrices move in one of {self.draws.turns} turns"
        return title
