"""Names of parameters and modules as users know them, whatever wraps the model."""

from __future__ import annotations

from torch import nn

__all__ = ["clean_name", "owner_label", "unwrap", "unwrapped"]

_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def unwrap(model: nn.Module) -> nn.Module:
    """Return the user's own model inside DDP, DataParallel and torch.compile."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        else:
            return model


def unwrapped(path: str, module: nn.Module) -> tuple[str, nn.Module]:
    """Return the module that checkpointing or torch.compile has wrapped, and its path."""
    for name in _WRAPPERS:
        if name in module._modules:
            return unwrapped(f"{path}.{name}", module.get_submodule(name))
    return path, module


def clean_name(name: str) -> str:
    """Return a name without what DDP, FSDP, checkpointing and torch.compile add to it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def owner_label(name: str, module: nn.Module | None = None) -> str:
    """Return the layer that owns a parameter: its qualified name without the last part."""
    head = name.rpartition(".")[0].partition(".parametrizations.")[0]
    return head or (type(module).__name__ if module is not None else name)
