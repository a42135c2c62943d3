"""What users read of an optimizer: its table, and how far it has come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dropmuon.backward.lookups import LookUps
from dropmuon.backward.parts import InParts
from dropmuon.model.roster import Roster
from dropmuon.output import html_table
from dropmuon.samplers import ActiveSet, Sampler
from dropmuon.step.adaptation import Adaptation
from dropmuon.step.draws import Draws

__all__ = ["Overview", "Saved", "Tally"]


class Saved(NamedTuple):
    """Shares of the operations of full steps: saved in the last step, and on average so far."""

    step: float
    mean: float


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
    def saved_operations(self) -> Saved | None:
        """The share of a full step's operations that the last step saved, and the mean so far.

        A full step computes all gradients and moves all layers. None before the first step, and
        where no forward pass could be seen: without a model, or with one compiled as a whole.
        """
        return self._tally.saved

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
        if self.saved_operations is not None:
            now += f", {self.saved_operations.mean:.0%} of operations saved"
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


class Tally:
    """Counts of layers, by name: layers may be added, and then their indices change. And savings.

    Whether a layer was skipped because of a NaN may be known to the device only, as a count of 0 or
    1. Such counts are summed there, and read when someone asks.
    """

    def __init__(self) -> None:
        self._moved: dict[str, int] = {}
        self._stopped: dict[str, Tensor] = {}
        self._skipped: dict[str, Tensor] = {}
        self._saved: list[float] = [0.0, 0.0, 0]

    def count_saved(self, share: float | None) -> None:
        """Count a step that saved this share of the operations of a full one, if it is known."""
        if share is not None:
            _, total, steps = self._saved
            self._saved = [share, total + share, steps + 1]

    @property
    def saved(self) -> Saved | None:
        """The shares of operations that were saved; None if there were none to be seen."""
        last, total, steps = self._saved
        return Saved(last, total / steps) if steps else None

    def count(
        self, names: Sequence[str], moving: Iterable[int], skipped: Mapping[int, Tensor]
    ) -> None:
        """Count an update: the layers that were to move, and those among all that were skipped."""
        for layer in moving:
            name = names[layer]
            self._moved[name] = self._moved.get(name, 0) + 1
            if layer in skipped:
                _add(self._stopped, name, skipped[layer])
        for layer, found in skipped.items():
            _add(self._skipped, names[layer], found)

    def moved(self, names: Iterable[str]) -> dict[str, int]:
        """Return how often each of these layers moved."""
        zero = torch.zeros((), dtype=torch.long)
        return {
            name: self._moved.get(name, 0) - int(self._stopped.get(name, zero)) for name in names
        }

    @property
    def skipped(self) -> dict[str, int]:
        """How often layers were skipped; those that never were are left out."""
        counts = {name: int(count) for name, count in self._skipped.items()}
        return {name: count for name, count in counts.items() if count}

    def state(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what a saved state holds."""
        return {"moves": self.moved(names), "skipped": self.skipped, "saved": self._saved}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._moved, self._stopped = dict(state["moves"]), {}
        self._skipped = {name: torch.tensor(count) for name, count in state["skipped"].items()}
        self._saved = list(state.get("saved", (0.0, 0.0, 0)))


def _add(counts: dict[str, Tensor], name: str, count: Tensor) -> None:
    counts[name] = counts[name] + count if name in counts else count
