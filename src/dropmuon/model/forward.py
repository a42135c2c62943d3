"""What forward passes show: the order in which parameters are used, and how much layers compute.

The order comes from one watched pass. Work is multiplications, counted from the shapes of passes:
only ratios matter, and they must be equal on all ranks, so operations are counted and not timed.
What has no parameters, such as attention scores, is left out: it grows with the layers around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from dropmuon.model.isolation import untouched
from dropmuon.model.roster import Roster

__all__ = ["Uses", "Work", "first_uses", "run_example"]


_PRODUCTS = 15
"""Products of m^2 n in an orthogonalisation: five iterations of three."""


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


class Work:
    """Counts the multiplications of every layer in the forward passes until it is closed."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._positions: dict[Tensor, float] = {}
        matrices: dict[nn.Module, list[Tensor]] = {}
        for member in roster.members():
            if member.module is not None and member.is_map and not member.is_compiled:
                matrices.setdefault(member.module, []).append(member.parameter)
        self._handles = [
            module.register_forward_hook(self._counting(found))
            for module, found in matrices.items()
        ]

    def close(self) -> None:
        """Stop counting."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def costs(self, turns: int) -> tuple[float, list[float]]:
        """Return the fixed cost of a step, and the backward of each layer, of all that was seen.

        Fixed are the forward pass and the updates. Backward through layer i computes the gradients
        of its own weights, and those of the inputs of layer i + 1, through which it is reached.
        A weight whose use was not seen counts as if it met as many positions as the others.
        """
        typical = max(self._positions.values(), default=1.0)
        forward = [
            sum(
                2.0 * member.parameter.numel() * self._positions.get(member.parameter, typical)
                for member in layer
                if member.is_map
            )
            for layer in self._roster.layers
        ]
        products = sum(member.direction_cost for member in self._roster.members())
        updates = 2.0 * _PRODUCTS * products / turns
        inputs = [*forward[1:], 0.0]
        backward = [own + above for own, above in zip(forward, inputs, strict=True)]
        return sum(forward) + updates, backward

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the hooks: a copy counts nothing more."""
        return {**self.__dict__, "_handles": []}

    def _counting(self, matrices: Sequence[Tensor]) -> Any:
        def count(module: nn.Module, inputs: Any, output: Any) -> None:
            if torch.compiler.is_compiling() or not isinstance(output, Tensor):
                return
            if torch.is_grad_enabled():
                found = inputs[0] if getattr(module, "transposed", False) else output
                channels = found.shape[1] if isinstance(module, _CONVOLUTIONS) else found.shape[-1]
                for matrix in matrices:
                    seen = self._positions.get(matrix, 0.0)
                    self._positions[matrix] = seen + found.numel() / max(channels, 1)

        return count


_CONVOLUTIONS = (nn.modules.conv._ConvNd,)
