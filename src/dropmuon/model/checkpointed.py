"""Checkpointed blocks: computed once more in backward, so that a budget of memory holds.

A cutoff lowers what backward holds on average, but a full step still holds everything. The blocks
at the bottom are active least often, so it costs least to checkpoint these. They are checkpointed
only in passes in which they save anything: frozen, they are run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from dropmuon.backward.replay import is_compiled
from dropmuon.checks import warn, whole_number
from dropmuon.model.compiled import block_modules
from dropmuon.model.held import Held, cache_in, first_elements, measure, tensors_in
from dropmuon.model.layers import By
from dropmuon.model.names import unwrap

__all__ = ["CheckpointedBlocks", "checkpoint_blocks"]


def checkpoint_blocks(
    model: nn.Module, budget: int, example: Any, by: By = "block"
) -> CheckpointedBlocks:
    """Checkpoint as few blocks of a model as a budget needs, from the bottom, in place.

    The budget is on the bytes that autograd holds for backward at any one time, beside parameters
    and gradients, in a pass for all layers; any other active set holds less. They are counted in
    one forward pass on `example`, which saves nothing. What is computed stays the same, bit for
    bit: random numbers are drawn once more as before, and buffers are written once.

    Args:
        model: the model, not compiled. Its blocks keep their names and parameters.
        budget: bytes.
        example: the largest input of training, of one part if a batch has several: a tensor, a
            tuple of positional or a mapping of keyword arguments. A loss that the model computes
            itself counts if the example has labels; one that is computed outside does not.
        by: how the model is cut into blocks, as in `layer_groups`.

    Returns:
        What was found and done; its `remove()` undoes it. A second call replaces the first.
    """
    budget = whole_number("budget", budget)
    blocks = _outermost(block_modules(model, by))
    _refuse_others(blocks)
    before = [each for block in blocks.values() if (each := _found(block)) is not None]
    with _switched_off(before):
        held = measure(unwrap(model), blocks.values(), example)
    chosen, peak = _choose(held, budget)
    if chosen and held.cache is not None:
        raise _no_caches(held.cache)
    for each in before:
        each.remove()
    names = {block: name for name, block in blocks.items()}
    told: set[str] = set()
    installed = [
        _Checkpoint(block, held.written[block], held.elements(block), told) for block in chosen
    ]
    for each in installed:
        each.install()
    return CheckpointedBlocks(
        tuple(names[block] for block in chosen), budget, peak, held.peak(()), installed
    )


@dataclass(frozen=True)
class CheckpointedBlocks:
    """The blocks that were checkpointed for a budget, and the bytes held at most, then and before.

    As a context manager it undoes itself at the end.
    """

    names: tuple[str, ...]
    budget: int
    peak: int
    peak_without: int
    _installed: list[_Checkpoint] = field(repr=False)

    def remove(self) -> None:
        """Run all blocks as they were, from now on. It may be called twice."""
        for each in self._installed:
            each.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()


def _choose(held: Held, budget: int) -> tuple[list[nn.Module], int]:
    """Return the fewest blocks from the bottom that make the budget hold, and the peak then."""
    blocks = held.blocks
    lowest = held.peak(())
    for count in range(len(blocks) + 1):
        peak = held.peak(set(blocks[:count]))
        lowest = min(lowest, peak)
        if peak <= budget:
            return blocks[:count], peak
    raise ValueError(
        f"budget must be at least {lowest} bytes for this model and example, got {budget}: that is "
        f"held with as many blocks checkpointed as pays, and {held.peak(())} with none; give a "
        "larger budget or an example with less in it, from a smaller batch or more parts"
    )


def _outermost(blocks: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the blocks that do not lie inside others."""
    inside = {each for block in blocks.values() for each in block.modules() if each is not block}
    return {name: block for name, block in blocks.items() if block not in inside}


def _refuse_others(blocks: dict[str, nn.Module]) -> None:
    """Raise ValueError where something else decides what blocks save."""
    for name, block in blocks.items():
        if any(map(is_compiled, block.modules())):
            raise ValueError(
                f"model has compiled blocks, as {name!r}, and torch.compile decides what these "
                "save; set torch._functorch.config.activation_memory_budget for them instead"
            )
        if any(getattr(module, "gradient_checkpointing", False) for module in block.modules()):
            raise ValueError(
                f"model already checkpoints its blocks, as {name!r}, which hides what they save; "
                "call model.gradient_checkpointing_disable() before"
            )


# The forward of a block


class _Checkpoint:
    """The forward of a block, which holds its arguments only, where it would save anything.

    It stands in the block's own attributes and refers to the block, not to a bound method, so that
    copies and pickles of a model work and are checkpointed too.
    """

    def __init__(
        self, block: nn.Module, written: tuple[str, ...], size: int, told: set[str]
    ) -> None:
        self.is_on = True
        self._block, self._written, self._size, self._told = block, written, size, told
        self._own: Callable[..., Any] | None = block.__dict__.get("forward")

    def install(self) -> None:
        """Take the place of the block's forward."""
        self._block.__dict__["forward"] = self

    def remove(self) -> None:
        """Give the place back; where others have wrapped this since, do nothing from now on."""
        self.is_on = False
        if self._block.__dict__.get("forward") is self:
            del self._block.__dict__["forward"]
            if self._own is not None:
                self._block.__dict__["forward"] = self._own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.is_on and self._saves(args, kwargs)):
            return self._forward(*args, **kwargs)
        self._check(args, kwargs)
        return checkpoint(
            partial(self._forward, **kwargs),
            *args,
            use_reentrant=False,
            context_fn=self._contexts if self._written else noop_context_fn,
        )

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._own is not None:
            return self._own(*args, **kwargs)
        return type(self._block).forward(self._block, *args, **kwargs)

    def _saves(self, args: Any, kwargs: Any) -> bool:
        """Return whether a call needs a backward: below the cutoff nothing does."""
        return torch.is_grad_enabled() and (
            any(parameter.requires_grad for parameter in self._block.parameters())
            or any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
        )

    def _check(self, args: Any, kwargs: Any) -> None:
        """Refuse caches, and warn once of an input that is larger than the example's."""
        cache = cache_in(args, kwargs)
        if cache is not None:
            raise _no_caches(cache)
        size = first_elements(args, kwargs)
        if size > self._size and not self._told:
            self._told.add("larger input")
            warn(
                f"a checkpointed block was given an input of {size} elements, and {self._size} in "
                "the example, so the budget may not hold; call checkpoint_blocks with the largest "
                "input of training"
            )

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Return what surrounds the first pass and the second, which writes into copies."""
        values = {name: self._block.get_buffer(name).clone() for name in self._written}
        return nullcontext(), _Buffers(self._block, values)


class _Buffers:
    """Lets a block run with copies of these values in place of its buffers, as often as needed."""

    def __init__(self, block: nn.Module, values: dict[str, Tensor]) -> None:
        self._values: list[tuple[dict[str, Tensor | None], str, Tensor]] = []
        for path, value in values.items():
            module, _, name = path.rpartition(".")
            self._values.append((block.get_submodule(module)._buffers, name, value))
        self._originals: list[Tensor | None] = []

    def __enter__(self) -> None:
        self._originals = [buffers[name] for buffers, name, _ in self._values]
        for buffers, name, value in self._values:
            buffers[name] = value.clone()

    def __exit__(self, *raised: object) -> None:
        for (buffers, name, _), original in zip(self._values, self._originals, strict=True):
            buffers[name] = original


def _no_caches(name: str) -> ValueError:
    return ValueError(
        f"checkpointed blocks cannot be given a cache, got {name}, which they would fill twice; "
        "set model.config.use_cache = False, or pass use_cache=False to the model"
    )


def _found(block: nn.Module) -> _Checkpoint | None:
    """Return what an earlier call has put in place of a block's forward."""
    found = block.__dict__.get("forward")
    return found if isinstance(found, _Checkpoint) else None


@contextmanager
def _switched_off(checkpoints: list[_Checkpoint]) -> Iterator[None]:
    """Run blocks as if they were not checkpointed."""
    for each in checkpoints:
        each.is_on = False
    try:
        yield
    finally:
        for each in checkpoints:
            each.is_on = True
