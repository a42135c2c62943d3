"""What a parameter is: told by the module that owns it, by its own name and by its shape.

A parameter of a torch module (a linear map, a convolution, an embedding) is what its module says.
One that a model registers itself may be anything: a class token, a table of positions, stacked
experts, or the weight of a linear map. Its name and its shape tell most of these apart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

__all__ = ["Kind", "Role", "is_stored_transposed", "kind_of_parameter"]

Role = Literal["vector", "table", "matrix", "convolution", "stack"]
"""How entries act: one by one; as rows that are looked up or added; or as linear maps.

A "stack" is a batch of matrices along the first axis, as experts are stored.
"""


@dataclass(frozen=True)
class Kind:
    """What a parameter was taken for: its role, and a few words for a table.

    `experts` is the number of blocks along the first axis that are used, and move, independently.
    """

    role: Role
    text: str
    experts: int = 1


def kind_of_parameter(name: str, shape: Sequence[int], module: nn.Module | None) -> Kind:
    """Return what a parameter of this qualified name, shape and module is taken for."""
    own = _own_name(name)
    if len(shape) < 2:
        return Kind("vector", _entries(own, module))
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return Kind("table", _table(_words(_owner_name(name))))
    if _is_convolution(own, module) or _may_be_weight(own, module):
        return _by_shape(shape, name, module)
    if math.prod(shape) == max(shape) and len(shape) >= 3:
        return Kind("vector", _entries(own, module))
    return _own_parameter(name, shape, module)


def is_stored_transposed(name: str, shape: Sequence[int], module: nn.Module | None) -> bool:
    """Return whether a matrix, or each of a stack, is stored as (in, out), and not as (out, in).

    GPT-2's `Conv1D` stores (nx, nf); the experts of transformers say it in `is_transposed`; others
    declare their sizes, which are compared with the shape.
    """
    own = _own_name(name)
    if module is None or len(shape) not in (2, 3) or _is_convolution(own, module):
        return False
    said, stored = getattr(module, "is_transposed", None), (shape[-2], shape[-1])
    if len(shape) == 3 and isinstance(said, bool):
        return said
    if len(shape) == 2 and stored == _declared(module, "nx", "nf"):
        return True
    if stored[0] == stored[1]:
        return False
    if any(stored == _declared(module, *pair) for pair in _SIZES):
        return True
    return len(shape) == 3 and _reads_rows(_words(own), stored, module)


_SIZES = (("in_features", "out_features"), ("in_dim", "out_dim"), ("d_in", "d_out"))
"""Attributes by which modules declare the sizes of a linear map."""

_POSITIONS = {"pos", "position", "positions", "positional", "posemb", "wpe", "rpb"}
_RELATIVE = {"rel", "relative", "rpb"}
_TOKENS = {"token", "tokens", "cls", "class"}
_EMBEDDINGS = {"embed", "embeds", "embedding", "embeddings"}
_BIASES = {"bias", "biases"}
_SCALES = {"scale", "scales", "gamma", "lambda", "log", "temperature"}
_INWARD = {"gate", "up"}
"""Words in the names of parameters, or of the embeddings that own them, for what they are."""


def _own_parameter(name: str, shape: Sequence[int], module: nn.Module | None) -> Kind:
    """Return the kind of a parameter with two axes or more that belongs to no module of torch."""
    own, words = _own_name(name), _words(_own_name(name))
    if words & _BIASES and not words & (_POSITIONS | _RELATIVE):
        experts = shape[0] if _holds_experts(name, module) else 1
        text = _entries(own, module)
        return Kind("vector", f"{text} of {experts} experts" if experts > 1 else text, experts)
    if words & _SCALES:
        return Kind("vector", _entries(own, module))
    if words & (_POSITIONS | _TOKENS | _EMBEDDINGS | _RELATIVE):
        return Kind("table", _table(words))
    if len(shape) >= 3 and shape[0] == 1:
        return Kind("table", "table")
    return _by_shape(shape, name, module)


def _by_shape(shape: Sequence[int], name: str, module: nn.Module | None) -> Kind:
    """Return the kind of a weight: a matrix, a stack or a convolution."""
    groups = getattr(module, "groups", 1)
    if _is_magnitude(name, shape, module):
        return Kind("vector", "scale")
    if len(shape) >= 3 and math.prod(shape) == shape[0] and groups == 1:
        return Kind("vector", "scale")
    if len(shape) == 2:
        return Kind("matrix", "matrix")
    if len(shape) > 3 or not _is_stack(name, module):
        return Kind("convolution", "convolution")
    is_moe, count = _holds_experts(name, module), shape[0]
    return Kind("stack", f"{count} experts" if is_moe else f"stack of {count} matrices", count)


def _is_magnitude(name: str, shape: Sequence[int], module: nn.Module | None) -> bool:
    """Return whether these are the lengths of rows that `weight_norm` keeps beside a matrix."""
    is_of_several = isinstance(module, ParametrizationList) and not module.is_tensor
    is_vector = math.prod(shape) == max(shape)
    return is_of_several and is_vector and _own_name(name) == "original0"


def _holds_experts(name: str, module: nn.Module | None) -> bool:
    """Return whether the owner of a parameter is called experts, by its name or by its class."""
    return "experts" in _words(_owner_name(name)) | _words(type(module).__name__)


def _is_stack(name: str, module: nn.Module | None) -> bool:
    """Return whether three axes are a batch of matrices: only a convolution has another use.

    Where the module is unknown, its name must tell.
    """
    if module is None:
        return _holds_experts(name, module)
    is_convolution = _is_convolution(_own_name(name), module)
    return not (is_convolution or isinstance(module, ParametrizationList))


def _is_convolution(own: str, module: nn.Module | None) -> bool:
    """Return whether it is of a convolution of torch, or of a module that declares a kernel."""
    is_torch = isinstance(module, nn.modules.conv._ConvNd)
    return is_torch or (own == "weight" and hasattr(module, "kernel_size"))


def _may_be_weight(own: str, module: nn.Module | None) -> bool:
    """Return whether only the shape tells: modules of torch, and weights of unknown modules."""
    if module is None:
        return own == "weight" or re.fullmatch(r"param\d+", own) is not None
    return isinstance(module, nn.Linear | nn.Bilinear | ParametrizationList)


def _reads_rows(words: set[str], stored: tuple[int, int], module: nn.Module) -> bool:
    """Return whether experts that declare only the size of their inputs are stored as (in, out)."""
    hidden = getattr(module, "hidden_size", getattr(module, "hidden_dim", None))
    if words & _INWARD:
        return stored[0] == hidden
    return "down" in words and stored[1] == hidden


def _entries(own: str, module: nn.Module | None) -> str:
    """Return what to call a parameter whose entries act one by one."""
    words = _words(own)
    if "norm" in type(module).__name__.lower():
        return "normalisation"
    for found, text in ((_BIASES, "bias"), (_TOKENS, "token"), (_SCALES, "scale")):
        if words & found:
            return text
    return "scale" if "scale" in type(module).__name__.lower() else "vector"


def _table(words: set[str]) -> str:
    """Return what to call a table, from the words of its name."""
    if words & _RELATIVE and (words & _BIASES or words & _POSITIONS):
        return "relative position bias"
    if words & _POSITIONS:
        return "position table"
    return "tokens" if words & _TOKENS and not words & _EMBEDDINGS else "embedding"


def _declared(module: nn.Module, inputs: str, outputs: str) -> tuple[object, object]:
    return getattr(module, inputs, None), getattr(module, outputs, None)


def _own_name(name: str) -> str:
    return name.rpartition(".")[2]


def _owner_name(name: str) -> str:
    return name.rpartition(".")[0].rpartition(".")[2]


def _words(name: str) -> set[str]:
    """Return the words of a name in snake case or camel case, in lower case, without numbers."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {part.lower() for part in parts}
