"""Train PyTorch models in less time by updating fewer layers.

    optimizer = DropMuon(model, lr=0.1, momentum=0.5, sampler="uniform")

takes the place of an optimizer in a loop that stays as it is: see `DropMuon`.
"""

import importlib
from types import ModuleType

from dropmuon import norms, presets, radii, samplers
from dropmuon.layers import layer_groups
from dropmuon.optimizer import DropMuon
from dropmuon.version import __version__

__all__ = [
    "DropMuon",
    "__version__",
    "layer_groups",
    "norms",
    "presets",
    "radii",
    "samplers",
    "theory",
]


def __getattr__(name: str) -> ModuleType:
    """Load `theory` when it is asked for: it needs SciPy, and the optimizer does not."""
    if name == "theory":
        try:
            return importlib.import_module("dropmuon.theory")
        except ModuleNotFoundError as error:
            raise ImportError(
                f"{error}; theory needs it: pip install 'dropmuon[theory]'"
            ) from error
    raise AttributeError(f"module 'dropmuon' has no attribute {name!r}")
