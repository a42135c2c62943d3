"""Which gradients were followed already: a step without a new backward must not move anything."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor

__all__ = ["Followed"]


class Followed:
    """The gradients as the last step left them, by identity and version, without keeping them."""

    def __init__(self) -> None:
        self._seen: dict[Tensor, tuple[weakref.ref[Tensor], int]] = {}

    def remember(self, parameters: Iterable[Tensor]) -> None:
        """Take all present gradients for followed, those of layers that did not move too."""
        self._seen = {
            parameter: (weakref.ref(gradient), gradient._version)
            for parameter in parameters
            if (gradient := parameter.grad) is not None
        }

    def is_new(self, parameter: Tensor) -> bool:
        """Whether a parameter's gradient was written to since it was followed."""
        gradient = parameter.grad
        if parameter not in self._seen or gradient is None:
            return True
        followed, version = self._seen[parameter]
        return followed() is not gradient or version != gradient._version
