"""What a training run logs: which layers the backwards were for, and what the steps saved."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

from dropmuon.optimizer import DropMuon

__all__ = ["Drawn"]


class Drawn:
    """Counts the backwards and steps since the last report, as they come."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._clear()

    def _clear(self) -> None:
        self._backwards, self._cutoffs, self._skipped = 0, 0, 0.0
        self._active: Counter[str] = Counter()
        self._saved: list[float] = []
        self.has_stepped = False

    def note(self, optimizer: DropMuon) -> None:
        """Count a backward that is about to come."""
        self.look(optimizer)
        self._backwards += 1
        self._cutoffs += optimizer.cutoff
        if optimizer.truncate is True:
            self._skipped += optimizer.cutoff / len(optimizer.layers)
        if optimizer.parts > 1:
            self._active.update(dict.fromkeys(optimizer.layers, 0))
            self._active.update(optimizer.layers[layer] for layer in optimizer.active)

    def look(self, optimizer: DropMuon) -> None:
        """Count a step, if one was taken since the last call."""
        before = self._steps.get(id(optimizer), optimizer.steps)
        self._steps[id(optimizer)] = optimizer.steps
        if optimizer.steps > before:
            self.has_stepped = True
            saved = optimizer.saved_operations
            if saved is not None:
                self._saved.append(saved.step)

    def report(self, *optimizers: DropMuon) -> dict[str, float]:
        """Return means over the time since the last report; nothing if there was no backward.

        Of backwards: `cutoff` is the lowest layer that one was for, `skipped` the share of layers
        that it did not reach, and `share/<layer>`, where a step has several parts, the share of the
        backwards in which a layer was active. Of steps: `saved_operations`, the share of a full
        step's operations that was saved; `saved_operations_mean` is the mean over all of training.
        """
        count = self._backwards
        if count == 0:
            return {}
        for each in optimizers:
            self.look(each)
        means = {"cutoff": self._cutoffs / count, "skipped": self._skipped / count}
        if self._saved:
            means["saved_operations"] = fmean(self._saved)
        in_all = [each.saved_operations for each in optimizers]
        if any(in_all):
            means["saved_operations_mean"] = fmean(
                saved.mean for saved in in_all if saved is not None
            )
        means |= {f"share/{name}": n / count for name, n in self._active.items()}
        self._clear()
        return {f"dropmuon/{name}": mean for name, mean in means.items()}
