"""What a forward pass holds for its backward, block by block, and at which moment it is most.

Autograd saves tensors as a forward pass goes on, and lets go of them in reverse as backward comes
back. A block that is checkpointed holds only what it was called with; when backward reaches it, it
is computed once more, and for that while it holds what it would have saved. So the most is held
either when the forward pass ends or when a checkpointed block is computed once more.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_iter

from dropmuon.backward.flags import wants_training
from dropmuon.model.forward import run_example
from dropmuon.model.isolation import untouched

__all__ = ["Held", "cache_in", "first_elements", "measure", "tensors_in"]

_CACHES = {"past_key_values", "past_key_value", "layer_past", "cache_params"}
"""Names of arguments that blocks write into."""

Bytes = dict[int, int]
"""The sizes of storages, by their identity: tensors that share one count once."""


@dataclass(frozen=True, eq=False)
class _Stretch:
    """A stretch of a forward pass: a call of a block, or what lies between two calls."""

    block: nn.Module | None = None
    inputs: Bytes = field(default_factory=dict)
    saved: Bytes = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    elements: int = 0


@dataclass(frozen=True, eq=False)
class Held:
    """What one forward pass holds, the buffers that its blocks write, and a cache they fill."""

    stretches: tuple[_Stretch, ...]
    written: Mapping[nn.Module, tuple[str, ...]]
    cache: str | None

    @property
    def blocks(self) -> list[nn.Module]:
        """The blocks that were called, in order of their first call."""
        called = (stretch.block for stretch in self.stretches)
        return list(dict.fromkeys(block for block in called if block is not None))

    def elements(self, block: nn.Module) -> int:
        """Return how large the first of a block's inputs was, at most."""
        return max(each.elements for each in self.stretches if each.block is block)

    def peak(self, checkpointed: Collection[nn.Module]) -> int:
        """Return the bytes that are held at once, at most, if these blocks are checkpointed."""
        seen: set[int] = set()
        total = highest = 0
        for stretch in self.stretches:
            again = stretch.block in checkpointed
            kept = stretch.inputs if again else stretch.saved
            total += sum(size for key, size in kept.items() if key not in seen)
            seen.update(kept)
            if stretch.block is not None and again:
                total += self._extras(stretch.block)
                new = (size for key, size in stretch.saved.items() if key not in seen)
                highest = max(highest, total + sum(new))
        return max(highest, total)

    def _extras(self, block: nn.Module) -> int:
        """Return what it takes to compute a block as before: random state and written buffers."""
        buffers = sum(block.get_buffer(name).nbytes for name in self.written[block])
        return int(torch.get_rng_state().nbytes) + buffers


def measure(model: nn.Module, blocks: Iterable[nn.Module], example: Any) -> Held:
    """Run a model on an example as in a full step of training, and return what that would hold.

    What is saved is counted and dropped at once, so the pass itself holds nothing. Parameters that
    an optimizer has frozen for a step are trainable in it. The model is left as it was.
    """
    watch = _Watch(model)
    handles = [handle for block in blocks for handle in watch.hooks(block)]
    try:
        with untouched(model, parameters=False), _all_trainable(model), torch.enable_grad():
            model.train()
            with saved_tensors_hooks(watch.count, _no_backward):
                run_example(model, example)
    finally:
        for handle in handles:
            handle.remove()
    written = {block: tuple(sorted(names)) for block, names in watch.written.items()}
    return Held(tuple(watch.stretches), written, watch.cache)


class _Watch:
    """Counts what is saved in each stretch of a forward pass.

    References to all storages are kept, weak ones: so none of their identities is used twice.
    """

    def __init__(self, model: nn.Module) -> None:
        self.stretches = [_Stretch()]
        self.written: dict[nn.Module, set[str]] = {}
        self.cache: str | None = None
        self._references: dict[int, StorageWeakRef] = {}
        self._own = set(self._sizes((*model.parameters(), *model.buffers())))

    def hooks(self, block: nn.Module) -> Iterator[Any]:
        """Put hooks on a block that begin a stretch at its call and another one after it."""
        yield block.register_forward_pre_hook(self._begin, with_kwargs=True)
        yield block.register_forward_hook(self._end)

    def count(self, tensor: Tensor) -> None:
        """Count a tensor that autograd wants to save, and let go of it."""
        self.stretches[-1].saved.update(self._sizes([tensor], but=self._own))

    def _begin(self, block: nn.Module, args: Any, kwargs: Any) -> None:
        inputs = self._sizes(tensors_in((args, kwargs)), but=self._own)
        size = first_elements(args, kwargs)
        self.stretches.append(_Stretch(block, inputs, {}, _copies(block), size))
        self.cache = self.cache or cache_in(args, kwargs)

    def _end(self, block: nn.Module, args: Any, output: Any) -> None:
        before = self.stretches[-1].buffers
        changed = {name for name in before if not torch.equal(before[name], block.get_buffer(name))}
        self.written.setdefault(block, set()).update(changed)
        self.stretches[-1].buffers.clear()
        self.stretches.append(_Stretch())

    def _sizes(self, tensors: Iterable[Tensor], but: Container[int] = ()) -> Bytes:
        found: Bytes = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            reference = StorageWeakRef(storage)
            if reference.cdata not in but:
                self._references.setdefault(reference.cdata, reference)
                found[reference.cdata] = storage.nbytes()
        return found


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors in nested arguments."""
    return [each for each in tree_iter(values) if isinstance(each, Tensor)]


def first_elements(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the number of elements of the first tensor that a block is given."""
    return next((each.numel() for each in tensors_in((args, kwargs))), 0)


def cache_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return what a block is given to keep keys and values in, if it is: it writes into that."""
    for name, value in (*kwargs.items(), *((type(each).__name__, each) for each in args)):
        if type(value).__name__.endswith("Cache") or (name in _CACHES and value is not None):
            return name
    return None


def _copies(block: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in block.named_buffers()}


@contextmanager
def _all_trainable(model: nn.Module) -> Iterator[None]:
    """Make trainable what an optimizer has frozen for a step, and not what the user froze."""
    with ExitStack() as stack:
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if not parameter.requires_grad and wants_training(parameter, (module, name)):
                    parameter.requires_grad_(True)
                    stack.callback(parameter.requires_grad_, False)
        yield


def _no_backward(packed: object) -> Tensor:
    raise RuntimeError("a backward was called in a forward pass that saves nothing for it")
