"""What a training run logs: which layers the backwards were for, counted as they come."""

from __future__ import annotations

from collections import Counter

from dropmuon.optimizer import DropMuon

__all__ = ["Drawn"]


class Drawn:
    """Counts the backwards since the last report, and the layers that each was for.

    Operations would have to be measured; layers that a backward does not reach are known exactly,
    and with layers of equal cost, as blocks are, their share is that of the operations it saves.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._backwards, self._cutoffs, self._skipped = 0, 0, 0.0
        self._active: Counter[str] = Counter()

    def note(self, optimizer: DropMuon) -> None:
        """Count a backward that is about to come."""
        self._backwards += 1
        self._cutoffs += optimizer.cutoff
        if optimizer.truncate is True:
            self._skipped += optimizer.cutoff / len(optimizer.layers)
        if optimizer.parts > 1:
            self._active.update(dict.fromkeys(optimizer.layers, 0))
            self._active.update(optimizer.layers[layer] for layer in optimizer.active)

    def report(self) -> dict[str, float]:
        """Return means over the backwards since the last report; nothing if there were none.

        `cutoff` is the lowest layer that backward was for, `skipped` the share of layers that it
        did not reach, and `share/<layer>`, where a step has several parts, the share of the
        backwards in which a layer was active.
        """
        count = self._backwards
        if count == 0:
            return {}
        shares = {f"dropmuon/share/{name}": n / count for name, n in self._active.items()}
        means = {"cutoff": self._cutoffs / count, "skipped": self._skipped / count}
        self._clear()
        return {**{f"dropmuon/{name}": mean for name, mean in means.items()}, **shares}
