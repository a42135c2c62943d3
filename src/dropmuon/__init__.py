"""Train PyTorch models in less time by updating fewer layers.

    optimizer = DropMuon(model, lr=0.1, momentum=0.5, sampler="uniform")

takes the place of an optimizer in a loop that stays as it is: see `DropMuon`.
"""

import importlib
from typing import Any

from dropmuon import norms, presets, samplers
from dropmuon.model import policies
from dropmuon.model.groups import layer_groups
from dropmuon.optimizer import DropMuon
from dropmuon.step import rules
from dropmuon.version import __version__

__all__ = [
    "DropMuon",
    "__version__",
    "layer_groups",
    "norms",
    "plan",
    "policies",
    "presets",
    "rules",
    "samplers",
    "theory",
]

_ON_DEMAND = {"theory": "dropmuon.theory", "plan": "dropmuon.planning"}


def __getattr__(name: str) -> Any:
    """Load `theory` and `plan` when they are asked for: the optimizer does not need SciPy."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'dropmuon' has no attribute {name!r}")
    try:
        room = importlib.import_module(_ON_DEMAND[name])
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; {name} needs it: pip install 'dropmuon[plan]'") from error
    return room.plan if name == "plan" else room
