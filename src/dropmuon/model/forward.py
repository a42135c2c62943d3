"""The order in which a forward pass uses parameters and modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from dropmuon.model.isolation import untouched

__all__ = ["Uses", "first_uses", "run_example"]


@dataclass
class Uses:
    """Ranks of first use, by identity; a module that was never called ranks last."""

    parameters: dict[int, int] = field(default_factory=dict)
    modules: dict[int, int] = field(default_factory=dict)

    def module_rank(self, module: nn.Module | None) -> float:
        """Return when the module was first called."""
        return self.modules.get(id(module), float("inf"))


def first_uses(model: nn.Module, example: Any) -> Uses:
    """Run the model once on an example and note when each parameter and module is first used.

    The pass runs without gradients, in evaluation mode, and leaves modes and random number
    generators as they were.
    """
    uses = Uses()
    wanted = {id(parameter) for parameter in model.parameters()}
    watch = _Watch(uses, wanted)

    def note(module: nn.Module, args: object) -> None:
        uses.modules.setdefault(id(module), watch.tick())

    handles = [module.register_forward_pre_hook(note) for module in model.modules()]
    try:
        with untouched(model, parameters=False), torch.no_grad(), watch:
            model.eval()
            run_example(model, example)
    finally:
        for handle in handles:
            handle.remove()
    return uses


class _Watch(TorchDispatchMode):
    """A mode that sees every operator: functional uses, tied weights and fused kernels too."""

    def __init__(self, uses: Uses, wanted: set[int]) -> None:
        TorchDispatchMode.__init__(self)
        self._uses, self._wanted, self._clock = uses, wanted, 0

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_iter((args, kwargs or {})):
            if id(value) in self._wanted:
                self._uses.parameters.setdefault(id(value), self.tick())
        return func(*args, **(kwargs or {}))


def run_example(model: nn.Module, example: Any) -> None:
    """Call a model with an example, in whatever form it is given."""
    try:
        if isinstance(example, Mapping):
            model(**example)
        elif isinstance(example, tuple):
            model(*example)
        else:
            model(example)
    except Exception as error:
        raise ValueError(
            f"example could not be run through the model: {error}; give a tensor, a tuple of "
            "positional arguments or a mapping of keyword arguments"
        ) from error
