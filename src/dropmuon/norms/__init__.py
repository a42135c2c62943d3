"""How far is far: the geometry of each parameter, and the orthogonalisers it needs."""

from __future__ import annotations

from dropmuon.checks import unknown_name
from dropmuon.norms.adamw import AdamW
from dropmuon.norms.base import Norm
from dropmuon.norms.columnwise import ColumnWise
from dropmuon.norms.euclidean import Euclidean
from dropmuon.norms.matrices import Blocks, MatrixNorm
from dropmuon.norms.newton_schulz import NewtonSchulz
from dropmuon.norms.orthogonalizers import ORTHOGONALIZERS, Orthogonalize, orthogonalize
from dropmuon.norms.polar import SVD, Orthogonalizer
from dropmuon.norms.polar_express import PolarExpress
from dropmuon.norms.rowwise import RowWise
from dropmuon.norms.scaling import SCALES, Scale, ScaledNorm
from dropmuon.norms.sign import Sign
from dropmuon.norms.spectral import ScaledSpectral, Spectral

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
    "ScaledSpectral",
    "Sign",
    "Spectral",
    "by_name",
    "orthogonalize",
]

_PLAIN: dict[str, type[Norm] | type[AdamW]] = {
    "euclidean": Euclidean,
    "sign": Sign,
    "column-wise": ColumnWise,
    "row-wise": RowWise,
    "adamw": AdamW,
}
_SPECTRAL: dict[str, type[Spectral]] = {"spectral": Spectral, "scaled-spectral": ScaledSpectral}


def by_name(
    name: str | Norm | AdamW, orthogonalize: Orthogonalize = "newton-schulz"
) -> Norm | AdamW:
    """The norm of that name, with `orthogonalize` if it is a spectral one; a norm is itself."""
    if isinstance(name, Norm | AdamW):
        return name
    if not isinstance(name, str):
        raise TypeError(
            f"norm must be a name, a Norm or AdamW(), got {name!r}; the names are "
            f"{', '.join(sorted([*_PLAIN, *_SPECTRAL]))}"
        )
    if name in _SPECTRAL:
        return _SPECTRAL[name](orthogonalize)
    if name in _PLAIN:
        return _PLAIN[name]()
    raise unknown_name("norm", name, [*_PLAIN, *_SPECTRAL])
