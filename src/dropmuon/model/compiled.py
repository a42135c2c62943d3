"""Compiled models: block by block, since every pattern of flags needs a graph of its own.

`torch.compile` guards the `requires_grad` of parameters and inputs. A model that is compiled as a
whole needs a graph per active set, and beyond a limit it runs eagerly, with a line in torch's log.
With cutoffs, a block has three patterns, however deep the model: frozen, the first active one, and
active above others. Blocks of the same code share their graphs.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from dropmuon.backward.replay import is_compiled
from dropmuon.model.layers import By, model_layers
from dropmuon.model.roster import Member
from dropmuon.samplers import Adaptive, Sampler

__all__ = [
    "block_modules",
    "compile_blocks",
    "compiled_modules",
    "mark_compiled",
    "too_many_graphs",
]


def compile_blocks(model: nn.Module, by: By = "block", **settings: Any) -> tuple[str, ...]:
    """Compile each block of a model in place, and return the names of those compiled.

    Blocks are the layers that `by` makes, as in `layer_groups`, so far as they are modules; what
    lies before and after them stays as it is. `settings` go to `torch.compile`. Call it before the
    optimizer is made. Blocks may differ in a number that their code uses, such as their index: the
    limit on graphs is therefore raised to what it would be for each block alone.
    """
    blocks = block_modules(model, by)
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        settings = {"recompile_limit": _limit() * len(blocks), **settings}
    for block in blocks.values():
        block.compile(**settings)
    return tuple(blocks)


def block_modules(model: nn.Module, by: By) -> dict[str, nn.Module]:
    """Return the layers that `by` makes, so far as they are modules, by their names."""
    if isinstance(model, nn.Module) and _is_whole(model):
        raise ValueError(
            f"model is compiled as a whole, got {type(model).__name__}; give the model before "
            "torch.compile"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of layers: the optimizer gives them
        roster = model_layers(model, by, include_frozen=True)
    modules = dict(_inside(model).named_modules())
    blocks = {
        name: modules[name]
        for name, layer in zip(roster.names, roster.layers, strict=True)
        if name in modules and all(_is_of(name, member) for member in layer)
    }
    if not blocks:
        raise ValueError(
            f"by must make layers that are modules, got {', '.join(map(repr, roster.names[:3]))}; "
            "use 'block' or 'module', or a callable that returns names of modules"
        )
    return blocks


def mark_compiled(model: nn.Module, members: Iterable[Member]) -> None:
    """Mark the members whose modules are called by compiled code, where hooks cost graphs."""
    inside = compiled_modules(model)
    for member in members:
        member.is_compiled = member.module in inside


def compiled_modules(model: nn.Module) -> set[nn.Module]:
    """Return the modules that are called by compiled code."""
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module not in inside and is_compiled(module):
            inside.update(module.modules())
    return inside


def too_many_graphs(model: nn.Module, sampler: Sampler, num_layers: int) -> str | None:
    """Return a warning if a model is compiled as a whole and has too many active sets for it."""
    if not _is_whole(model):
        return None
    count = _num_sets(sampler, num_layers)
    if count <= _limit():
        return None
    return (
        f"the model is compiled as a whole, and each of the {count} active sets of {sampler!r} "
        f"needs a graph of its own: above torch's recompile_limit of {_limit()} it runs eagerly; "
        "compile its blocks instead, with dropmuon.compile_blocks(model)"
    )


def _num_sets(sampler: Sampler, num_layers: int) -> int:
    """Return how many active sets a sampler may draw; at least the layers, if it cannot say."""
    if isinstance(sampler, Adaptive):
        return num_layers
    try:
        found = [sampler.distribution(num_layers, progress) for progress in (0.0, 0.5, 1.0)]
    except (NotImplementedError, ValueError):
        return num_layers
    return len({layers for chances in found for layers, chance in chances.items() if chance > 0})


def _is_of(block: str, member: Member) -> bool:
    """Return whether a member is in a block, or a vector that was joined to it, as a last norm."""
    return member.name.startswith(f"{block}.") or not member.is_matrix


def _is_whole(model: nn.Module) -> bool:
    """Return whether a model, or one inside DDP, was compiled as one."""
    return is_compiled(model) or is_compiled(_inside(model))


def _inside(model: nn.Module) -> nn.Module:
    while isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        model = model.module
    return model


def _limit() -> int:
    from torch._dynamo import config  # noqa: PLC0415 (slow, and loaded by compiled models only)

    return int(config.recompile_limit)
