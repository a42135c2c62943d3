"""The one record of each parameter, from the model to the step, and the layers they make up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dropmuon.backward.flags import Owner, wants_training
from dropmuon.backward.lookups import LookUp
from dropmuon.model.kinds import Kind, is_stored_transposed, kind_of_parameter
from dropmuon.norms import AdamW, MatrixNorm, Norm
from dropmuon.output import aligned, short_count

__all__ = ["Member", "Roster"]

_HEADERS = ("layer", "parameters", "shapes", "taken for", "norm", "why")


@dataclass(eq=False)
class Member:
    """One parameter as a member of a layer: what a policy routes, and a step moves.

    It is made once, with its name and, where that is known, its module, which tell what `kind` of
    parameter it is. The order of layers gives it its layer, a policy its norm and the reason for
    it, and `groups` its parameter group. `output` says whether it is the output layer, where the
    model shows it, and `tied` whether the output layer uses it as well; `lookups` are embeddings
    that use it, where it belongs to another layer. `is_guess` says that the module is not known,
    and only name and shape tell; `parent` is the module that holds the module, and `is_compiled`
    says that it is called by compiled code.
    """

    name: str
    parameter: Tensor = field(repr=False)
    module: nn.Module | None = field(default=None, repr=False)
    layer: int = 0
    num_layers: int = 1
    norm: Norm | AdamW = field(init=False, repr=False)
    reason: str = field(init=False, repr=False)
    group: int = field(init=False, repr=False)
    turn: int | None = field(default=None, repr=False)
    output: bool | None = field(default=None, repr=False)
    tied: bool = field(default=False, repr=False)
    parent: nn.Module | None = field(default=None, repr=False)
    lookups: tuple[LookUp, ...] = field(default=(), repr=False)
    is_compiled: bool = field(default=False, repr=False)
    shape: torch.Size = field(init=False, repr=False)
    kind: Kind = field(init=False, repr=False)
    is_guess: bool = field(init=False, repr=False)
    is_stored_transposed: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.shape = self.parameter.shape
        known = (self.name, self.shape, self.module)
        self.kind, self.is_guess = kind_of_parameter(*known), self.module is None
        self.is_stored_transposed = self.is_map and is_stored_transposed(*known)

    def check(self) -> None:
        """Raise ValueError if the parameter has no geometry."""
        if torch.is_complex(self.parameter):
            raise ValueError(
                f"parameter {self.name!r} is complex; keep it as two real tensors "
                "(torch.view_as_real)"
            )
        if not torch.is_floating_point(self.parameter):
            raise ValueError(
                f"parameter {self.name!r} has dtype {self.parameter.dtype}; only floats can move"
            )

    @property
    def owner(self) -> Owner:
        """The owning module and the parameter's name in it, where the module is known."""
        return None if self.module is None else (self.module, self.name.rpartition(".")[2])

    @property
    def is_wanted(self) -> bool:
        """Whether the user wants it trained, even if an optimizer froze it temporarily."""
        return wants_training(self.parameter, self.owner)

    @property
    def is_matrix(self) -> bool:
        """Whether it has rows and columns: a linear map, a convolution, an embedding table.

        A vector with axes of size one for broadcasting, as a layer scale (C, 1, 1) or a class
        token (1, 1, C), has not.
        """
        return self.kind.role != "vector"

    @property
    def is_embedding(self) -> bool:
        """Whether it is a table that is looked up or added, not multiplied."""
        return self.kind.role == "table"

    @property
    def is_map(self) -> bool:
        """Whether it multiplies: one matrix, a convolution or a stack of matrices."""
        return self.is_matrix and not self.is_embedding

    @property
    def may_be_embedding(self) -> bool:
        """Whether its module is unknown, and its shape is that of an embedding table."""
        return self.is_guess and self.kind.role == "matrix"

    @property
    def may_be_convolution(self) -> bool:
        """Whether its module is unknown, and its shape is that of a convolution."""
        return self.is_guess and self.kind.role == "convolution"

    @property
    def is_output(self) -> bool:
        """Whether it is a matrix of the output layer: as the model shows, or of the last layer."""
        if self.output is not None:
            return self.output
        return self.is_map and self.layer == self.num_layers - 1

    @property
    def experts(self) -> int:
        """The number of blocks along its first axis that keep still while they are not used.

        Where the module is unknown, a norm of a batch of matrices says that it is one.
        """
        norm = getattr(self, "norm", None)
        is_batch = isinstance(norm, MatrixNorm) and norm.blocks == "batch"
        is_said = self.may_be_convolution and is_batch and self.parameter.ndim == 3
        return self.parameter.shape[0] if is_said else self.kind.experts

    @property
    def taken_for(self) -> str:
        """What it was taken for, in a few words, as `describe()` prints them."""
        if self.output:
            return "output layer"
        text = self.kind.text
        if self.kind.role == "convolution" and self.experts > 1:
            text = f"stack of {self.experts} matrices"
        if self.tied:
            return f"{text}, tied to the output layer"
        return f"{text}, stored (in, out)" if self.is_stored_transposed else text

    @property
    def direction_cost(self) -> float:
        """The products of matrices that its update needs; none for vectors and on AdamW."""
        if isinstance(self.norm, AdamW):
            return 0.0
        return self.norm.direction_cost(torch.empty(self.parameter.shape, device="meta"))

    @property
    def conv_groups(self) -> int:
        """The groups of a convolution: the number of blocks of its block-diagonal matrix."""
        groups = getattr(self.module, "groups", 1) if self.parameter.ndim >= 3 else 1
        return groups if isinstance(groups, int) else 1

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """The shape (out, in) of a matrix, or of each of a stack, however it is stored."""
        rows, columns = self.parameter.shape[-2:]
        return (columns, rows) if self.is_stored_transposed else (rows, columns)

    @property
    def is_transposed(self) -> bool:
        """Whether it is a transposed convolution, whose first axis is its input."""
        return bool(getattr(self.module, "transposed", False))

    def __getstate__(self) -> dict[str, Any]:
        """Leave the user's modules out of copies and pickles of an optimizer."""
        return {**self.__dict__, "module": None, "parent": None}


@dataclass(frozen=True, eq=False)
class Roster:
    """Layers by name, in order, each with the records of its parameters."""

    names: tuple[str, ...]
    layers: tuple[tuple[Member, ...], ...]

    def __len__(self) -> int:
        return len(self.names)

    def members(self) -> Iterator[Member]:
        """Iterate over all members, in order."""
        for layer in self.layers:
            yield from layer

    def modules(self) -> Iterator[tuple[str, nn.Module, int]]:
        """Iterate over the modules that own parameters, with their names and lowest layers.

        Without compiled ones, which would be compiled again when a hook comes or goes.
        """
        seen: set[nn.Module] = set()
        for member in self.members():
            if member.module is None or member.is_compiled:
                continue
            if member.module not in seen:
                seen.add(member.module)
                yield member.name.rpartition(".")[0], member.module, member.layer

    @property
    def headers(self) -> tuple[str, ...]:
        """What the cells of a row are."""
        return _HEADERS

    def table(self, title: str) -> str:
        """Return the roster as text."""
        return f"{title}\n\n{aligned(self.headers, self.rows())}"

    def rows(self) -> list[tuple[str, ...]]:
        """Return one row per layer, kind and norm, with a layer's name in its first row only."""
        rows: list[tuple[str, ...]] = []
        for name, layer in zip(self.names, self.layers, strict=True):
            alike: dict[tuple[str, str, str], list[Member]] = {}
            for member in layer:
                taken_for = member.taken_for + ("" if member.is_wanted else ", frozen by the user")
                same = (taken_for, str(member.norm), member.reason)
                alike.setdefault(same, []).append(member)
            for n, (cells, members) in enumerate(alike.items()):
                rows.append(("" if n else name, *_parameters(name, members), *cells))
        return rows


def _parameters(layer: str, members: Sequence[Member]) -> tuple[str, str]:
    """Return two cells: the names and number of parameters, and their shapes."""
    inside = [member.name.removeprefix(f"{layer}.") for member in members]
    count = short_count(sum(member.parameter.numel() for member in members))
    texts = Counter("x".join(map(str, m.parameter.shape)) or "scalar" for m in members)
    shapes = [text if count == 1 else f"{count} of {text}" for text, count in texts.items()]
    return f"{_some(inside)} ({count})", _some(shapes)


def _some(texts: Sequence[str], most: int = 4) -> str:
    """Return the first texts of a list, and how many more there are."""
    more = len(texts) - most
    return ", ".join([*texts[:most], f"{more} more"] if more > 1 else texts)
