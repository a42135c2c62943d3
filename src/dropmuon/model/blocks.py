"""The main blocks of a model: the items of its main `ModuleList` or `Sequential`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from dropmuon.model.names import clean_name, owner_label

__all__ = ["block_labels"]


def block_labels(model: nn.Module, names: Sequence[str]) -> dict[str, str]:
    """Return the label of each parameter, by name: its block, or the run before or after blocks.

    What comes before the first block is the "stem", after the last the "head"; what lies between
    blocks is named after its first module.
    """
    blocks = sorted((clean_name(path) for path in _main_blocks(model)), key=len, reverse=True)
    labels: dict[str, str] = {}
    run: list[str] = []
    seen_block = False

    def close(label: str | None) -> None:
        labels.update({name: label or owner_label(run[0]) for name in run})
        run.clear()

    for name in names:
        block = next((b for b in blocks if name.startswith(b + ".")), None)
        if block is None:
            run.append(name)
            continue
        close(None if seen_block else "stem")
        labels[name], seen_block = block, True
    close("head" if seen_block else "stem")
    return labels


def _main_blocks(model: nn.Module) -> list[str]:
    """Return the paths of the items of sibling containers that share the most parameters.

    A candidate is all the items of the containers that one module holds (a ResNet has four
    `Sequential`s side by side, a GPT one `ModuleList`). The best has many parameters and no item
    that holds nearly all of them.
    """
    candidates = [_items(path, module) for path, module in model.named_modules()]
    if isinstance(model, nn.ModuleList | nn.Sequential):
        candidates.append(list(model.named_children()))
    best = max(candidates, key=_spread)
    if _spread(best) == 0:
        raise ValueError(
            'by="block" needs a ModuleList or Sequential with two or more items that hold '
            f'parameters, and {type(model).__name__} has none; use by="module" or a callable'
        )
    return [path for path, _ in best]


def _items(path: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    prefix = f"{path}." if path else ""
    return [
        (f"{prefix}{name}.{item_name}", item)
        for name, child in module.named_children()
        if isinstance(child, nn.ModuleList | nn.Sequential)
        for item_name, item in child.named_children()
    ]


def _spread(items: list[tuple[str, nn.Module]]) -> int:
    """Return how many parameters lie outside the largest item."""
    sizes = [sum(p.numel() for p in item.parameters()) for _, item in items]
    return sum(sizes) - max(sizes, default=0)
