"""What a rank hands to collectives, counted by name."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

__all__ = ["Traffic"]

_INPUT = {"alltoall_base_": 1, "allgather_": 1, "_allgather_base_": 1, "_reduce_scatter_base_": 1}
"""Which argument is what a rank sends, where the first is what it receives."""


class Traffic(TorchDispatchMode):
    """Counts the collectives inside the block, and the bytes that this rank contributes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::")
            sent = args[_INPUT.get(name, 0)]
            tensors = [each for each in tree_iter(sent) if isinstance(each, Tensor)]
            self.calls[name] += 1
            self.bytes[name] += sum(each.numel() * each.element_size() for each in tensors)
        return func(*args, **(kwargs or {}))
