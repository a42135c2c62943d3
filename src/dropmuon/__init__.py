"""Train PyTorch models in less time by updating fewer layers.

    optimizer = DropMuon(model, lr=0.1, momentum=0.5, sampler="uniform")

replaces the optimizer of an unchanged training loop: see `DropMuon`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropmuon.checks import on_demand
from dropmuon.version import __version__

if TYPE_CHECKING:
    from dropmuon import norms, presets, samplers, theory
    from dropmuon.model import policies
    from dropmuon.model.checkpointed import checkpoint_blocks
    from dropmuon.model.compiled import compile_blocks
    from dropmuon.model.groups import layer_groups
    from dropmuon.optimizer import DropMuon
    from dropmuon.planning import Plan, plan
    from dropmuon.step import rules

__all__ = [
    "DropMuon",
    "Plan",
    "__version__",
    "checkpoint_blocks",
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

__getattr__ = on_demand(
    __name__,
    {
        "DropMuon": "dropmuon.optimizer:DropMuon",
        "Plan": "dropmuon.planning:Plan",
        "checkpoint_blocks": "dropmuon.model.checkpointed:checkpoint_blocks",
        "compile_blocks": "dropmuon.model.compiled:compile_blocks",
        "layer_groups": "dropmuon.model.groups:layer_groups",
        "norms": "dropmuon.norms",
        "plan": "dropmuon.planning:plan",
        "policies": "dropmuon.model.policies",
        "presets": "dropmuon.presets",
        "rules": "dropmuon.step.rules",
        "samplers": "dropmuon.samplers",
        "theory": "dropmuon.theory",
    },
    extras={"Plan": "plan", "plan": "plan", "theory": "theory"},
)
"""The command line starts without torch, and the optimizer needs no SciPy."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
