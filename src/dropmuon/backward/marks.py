"""Who froze a parameter: a mark that tells an optimizer's freezing from a user's.

A parameter that an optimizer froze for the moment carries a mark, and so does the module that owns
it, where that is known: a copy of a model takes the marks of its modules along, and so an optimizer
made for the copy knows what is meant to be trained.
"""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Owner", "mark", "marked_by", "owners", "wants_training"]

Owner = tuple[nn.Module, str]
"""A module and the name of one of its own parameters."""

_MARK = "_dropmuon_frozen"


def owners(model: nn.Module) -> dict[Tensor, Owner]:
    """The owner of each parameter of a model."""
    return {
        parameter: (module, name)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
    }


def wants_training(parameter: Tensor, owner: Owner | None = None) -> bool:
    """Whether the user wants a parameter trained, whatever an optimizer froze for the moment."""
    marked = owner is not None and owner[1] in owner[0].__dict__.get(_MARK, ())
    return parameter.requires_grad or hasattr(parameter, _MARK) or marked


def marked_by(parameter: Tensor) -> int | None:
    """Who froze a parameter, if it carries a mark."""
    return getattr(parameter, _MARK, None)


def mark(parameter: Tensor, owner: Owner | None, by: int | None) -> None:
    """Put someone's mark on a parameter and its owner; None takes it off."""
    frozen = by is not None
    if frozen:
        setattr(parameter, _MARK, by)
    elif hasattr(parameter, _MARK):
        delattr(parameter, _MARK)
    if owner is None:
        return
    module, name = owner
    names: set[str] = module.__dict__.setdefault(_MARK, set())
    if frozen:
        names.add(name)
    else:
        names.discard(name)
    if not names:
        del module.__dict__[_MARK]
