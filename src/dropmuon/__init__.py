"""Train PyTorch models in less time by updating fewer layers.

    optimizer = DropMuon(model, lr=0.1, momentum=0.5, sampler="uniform")

takes the place of an optimizer in a loop that stays as it is: see `DropMuon`.
"""

from dropmuon import norms, presets, radii, samplers
from dropmuon.layers import layer_groups
from dropmuon.optimizer import DropMuon
from dropmuon.version import __version__

__all__ = ["DropMuon", "__version__", "layer_groups", "norms", "presets", "radii", "samplers"]
