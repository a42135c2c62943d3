"""Norms, which measure step length for each parameter, and the orthogonalisers they need."""

from __future__ import annotations

from dropmuon.checks import unknown_name
from dropmuon.norms.base import SCALES, Norm, Scale, ScaledNorm
from dropmuon.norms.composed import Split, Transposed
from dropmuon.norms.entrywise import AdamW, Euclidean, Sign
from dropmuon.norms.matrices import Blocks, ColumnWise, MatrixNorm, RowWise, Spectral
from dropmuon.norms.orthogonalizers import (
    ORTHOGONALIZERS,
    SVD,
    NewtonSchulz,
    Orthogonalize,
    Orthogonalizer,
    PolarExpress,
    orthogonalize,
)

__all__ = [
    "ORTHOGONALIZERS",
    "SCALES",
    "SVD",
    "AdamW",
    "Blocks",
    "ColumnWise",
    "Euclidean",
    "MatrixNorm",
    "NewtonSchulz",
    "Norm",
    "Orthogonalize",
    "Orthogonalizer",
    "PolarExpress",
    "RowWise",
    "Scale",
    "ScaledNorm",
    "Sign",
    "Spectral",
    "Split",
    "Transposed",
    "by_name",
    "orthogonalize",
]

_NAMES: dict[str, type[Norm] | type[AdamW]] = {
    "spectral": Spectral,
    "euclidean": Euclidean,
    "sign": Sign,
    "column-wise": ColumnWise,
    "row-wise": RowWise,
    "adamw": AdamW,
}


def by_name(
    name: str | Norm | AdamW, orthogonalize: Orthogonalize = "newton-schulz"
) -> Norm | AdamW:
    """Return the norm of that name, with `orthogonalize` if it is spectral; a norm stays itself."""
    if isinstance(name, Norm | AdamW):
        return name
    if not isinstance(name, str):
        raise TypeError(
            f"norm must be a name, a Norm or AdamW(), got {name!r}; the names are "
            f"{', '.join(sorted(_NAMES))}"
        )
    if name not in _NAMES:
        raise unknown_name("norm", name, _NAMES)
    return Spectral(orthogonalize) if name == "spectral" else _NAMES[name]()
