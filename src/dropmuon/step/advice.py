"""What users are told once: what goes wrong, or saves less than it could, without an error."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile

from torch import nn

from dropmuon.checks import warn
from dropmuon.model.compiled import too_many_graphs
from dropmuon.samplers import Sampler
from dropmuon.step.rates import OVERWRITTEN, Groups, adamw_apart, overwritten

__all__ = ["Advice"]

_MISSED = 4
"""In how many truncated backwards in a row a layer may be skipped by chance, as an expert is that
sees no token, and a block under stochastic depth."""

_SHORT = 2
"""Steps in a row with fewer backwards than parts that a last batch of an epoch does not explain."""


class Advice:
    """Warnings of one optimizer, each given once, and the counts that some of them wait for."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._missed: dict[int, int] = {}
        self._short_steps = 0
        self._adamw_start: float | None = None

    def once(self, topic: str, message: str) -> None:
        """Warn, unless there was a warning of this topic before."""
        if topic not in self._given:
            self._given.add(topic)
            warn(message)

    def on_reuse(self, message: str) -> None:
        """Warn that several updates of a batch share less than they could."""
        self.once("reuse", message)

    def on_another(self) -> None:
        """Warn of another optimizer that freezes the same parameters, and goes on to."""
        self.once(
            "another",
            "another DropMuon freezes layers of the same model, so each of the two finds gradients "
            "of the other's active layers only; call release() of the one that is done, or give "
            "all parameters to one",
        )

    def on_no_gradient(self, active: Sequence[str]) -> None:
        """Warn of a step that found nothing to follow."""
        self.once(
            "no gradient",
            f"step() found no gradient in the active layers ({_some(active)}), and nothing moved; "
            "call loss.backward() before every step()",
        )

    def on_silent(self, layers: Iterable[str]) -> None:
        """Warn of layers without a gradient in a full step."""
        silent = ", ".join(sorted(map(repr, layers)))
        if silent:
            self.once(
                "silent layers",
                f"no gradient reached {silent} in a full step; if only such layers are drawn, the "
                "last layer that has a gradient moves with them",
            )

    def on_truncated(
        self, active: Iterable[int], found: Collection[int], layers: Sequence[str]
    ) -> None:
        """Warn of active layers that lose their gradients once layers below them are frozen.

        Reentrant checkpointing computes no gradient inside a block whose input needs none. With all
        layers active the input of every block does; above a cutoff that of the first active block
        does not, and nothing that it contains is trained, nor the blocks after it. PyTorch warns,
        but not of the cause.

        `active` are active layers that are known to get gradients in a full step, `found` those
        that got one in this backward. A gradient comes from above, so that it is the lowest of them
        that miss theirs; an expert without tokens mostly has others with a gradient below it.
        """
        if not found:
            return
        silent = list(takewhile(lambda layer: layer not in found, sorted(active)))
        self._missed.update(dict.fromkeys(found, 0))
        for layer in silent:
            self._missed[layer] = self._missed.get(layer, 0) + 1
        if max(self._missed.values()) == _MISSED:
            self.once(
                "missing",
                f"no gradient reached {_some([layers[i] for i in silent])}, although active, in "
                f"{_MISSED} truncated backwards in a row, and there was one in a full step; "
                "activation checkpointing with use_reentrant=True computes none where the input of "
                "a block needs none: pass use_reentrant=False (transformers: "
                'gradient_checkpointing_kwargs={"use_reentrant": False})',
            )

    def on_parts(self, done: int, planned: int) -> None:
        """Warn if parts are missing repeatedly, not only in the last batch of an epoch."""
        self._short_steps = self._short_steps + 1 if 0 < done < planned else 0
        if self._short_steps == _SHORT:
            self.once(
                "parts",
                f"step() came after {done} of {planned} parts, {_SHORT} times in a row; every "
                f"backward is a part: accumulate {planned} before each step(), or use split()",
            )

    def expect_rates(self, groups: Groups) -> None:
        """Remember that the rate of AdamW is apart from that of the norms, if it is."""
        self._adamw_start = adamw_apart(groups)

    def on_rates(self, groups: Groups) -> None:
        """Warn if a scheduler has made the two equal since."""
        if self._adamw_start is not None and overwritten(groups, self._adamw_start):
            self.once("rates", OVERWRITTEN)

    def on_graphs(self, model: nn.Module, sampler: Sampler, num_layers: int) -> None:
        """Warn of a model that is compiled as a whole, before its first pass or just after it."""
        message = too_many_graphs(model, sampler, num_layers)
        if message is not None:
            self.once("graphs", message)


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
