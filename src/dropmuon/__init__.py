"""Train PyTorch models in less time by updating fewer layers.

    optimizer = DropMuon(model, lr=0.1, momentum=0.5, sampler="uniform")

replaces the optimizer of an unchanged training loop: see `DropMuon`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropmuon import norms, presets, samplers
from dropmuon.checks import import_extra
from dropmuon.model import policies
from dropmuon.model.compiled import compile_blocks
from dropmuon.model.groups import layer_groups
from dropmuon.optimizer import DropMuon
from dropmuon.step import rules
from dropmuon.version import __version__

if TYPE_CHECKING:
    from dropmuon import theory
    from dropmuon.planning import Plan, plan

__all__ = [
    "DropMuon",
    "Plan",
    "__version__",
    "compile_blocks",
    "layer_groups",
    "norms",
    "plan",
    "policies",
    "presets",
    "rules",
    "samplers",
    "theory",
]

_ON_DEMAND = {"theory": "theory", "plan": "planning", "Plan": "planning"}


def __getattr__(name: str) -> object:
    """Load the theory and the planner on first use: the optimizer needs no SciPy."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'dropmuon' has no attribute {name!r}")
    module: object = import_extra(
        f"dropmuon.{_ON_DEMAND[name]}", "theory" if name == "theory" else "plan"
    )
    return module if name == "theory" else getattr(module, name)
