from __future__ import annotations

import copy
import functools
import math
import pickle

import pytest
import torch
from torch import Tensor

from dropmuon.norms import (
    SVD,
    AdamW,
    ColumnWise,
    Euclidean,
    NewtonSchulz,
    Norm,
    PolarExpress,
    RowWise,
    ScaledSpectral,
    Sign,
    Spectral,
    by_name,
)


def halved(out: int, in_: int) -> float:
    return 0.5


def own_polar(matrix: Tensor) -> Tensor:
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    return u @ vh


SETTINGS = [
    Spectral(),
    Spectral("svd"),
    Spectral("polar-express", scale="muon", blocks=4, precision=torch.bfloat16),
    Spectral(NewtonSchulz(steps=7, gram=False)),
    Spectral([(2.0, -1.5, 0.5), (1.5, -0.5)]),
    Spectral(own_polar, scale=halved),
    ScaledSpectral(),
    ScaledSpectral(scale="muon"),
    Euclidean(),
    Euclidean(scale=2),
    Sign(),
    ColumnWise(blocks="batch"),
    RowWise(),
    AdamW(),
    AdamW(betas=(0.8, 0.9)),
    SVD(),
    NewtonSchulz(),
    NewtonSchulz(steps=6),
    PolarExpress(),
    PolarExpress(steps=6),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=repr)
def test_settings_survive_copies_and_pickles(setting: object) -> None:
    for twin in (copy.deepcopy(setting), pickle.loads(pickle.dumps(setting))):
        assert twin == setting
        assert hash(twin) == hash(setting)
        assert repr(twin) == repr(setting)


def test_different_settings_differ_in_everything() -> None:
    assert len(set(SETTINGS)) == len(SETTINGS)
    assert len({repr(setting) for setting in SETTINGS}) == len(SETTINGS)


def test_repr_is_complete_and_free_of_addresses() -> None:
    assert repr(Spectral(scale="muon")) == (
        "Spectral(scale='muon', blocks=1, orthogonalize=NewtonSchulz(gram=None, "
        "coefficients=(3.4445, -4.775, 2.0315), steps=5), precision=None)"
    )
    assert repr(Euclidean(scale=2)) == "Euclidean(scale=2.0)"
    assert repr(Euclidean(scale=halved)) == f"Euclidean(scale={__name__}.halved)"
    assert "0x" not in repr(Spectral(functools.partial(own_polar), scale=lambda out, in_: 1.0))


def test_a_name_and_what_it_stands_for_are_equal() -> None:
    assert Spectral("svd") == Spectral(SVD())
    assert Spectral() == Spectral("newton-schulz") == Spectral((3.4445, -4.7750, 2.0315))
    assert Spectral("cubic") == Spectral(NewtonSchulz((1.5, -0.5), 20))
    assert Spectral([[1.5, -0.5]]) == Spectral(((1.5, -0.5),))
    assert Euclidean(scale=1) == Euclidean()
    assert ScaledSpectral() != Spectral(scale="rms")


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Spectral().scale = 2.0  # type: ignore[misc]


def test_norms_by_name() -> None:
    assert by_name("spectral", "svd") == Spectral("svd")
    assert by_name("scaled-spectral", orthogonalize=(1.5, -0.5)) == ScaledSpectral("cubic")
    assert by_name("euclidean") == Euclidean()
    assert by_name("sign") == Sign()
    assert by_name("column-wise") == ColumnWise()
    assert by_name("row-wise") == RowWise()
    assert by_name("adamw") == AdamW()
    given = Sign(scale=3.0)
    assert by_name(given) is given


def test_misspelt_names_are_refused_at_once_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"norm must be one of .*did you mean 'spectral'"):
        by_name("spectrall")
    with pytest.raises(ValueError, match=r"orthogonalize must be .*did you mean 'newton-schulz'"):
        Spectral("newton-schultz")
    with pytest.raises(ValueError, match=r"orthogonalize must be"):
        by_name("spectral", "nope")
    with pytest.raises(ValueError, match=r"scale must be one of .*did you mean 'muon'"):
        Euclidean(scale="muonn")


@pytest.mark.parametrize(
    "coefficients",
    [(), (1.0,), (1.0, 2.0, 3.0, 4.0), (1.0, math.nan, 0.0), [(1.0,)], [()], 3.0, [(1.0, "a")]],
    ids=repr,
)
def test_bad_coefficients_are_refused_at_construction(coefficients: object) -> None:
    with pytest.raises(ValueError, match="coefficients must be finite numbers"):
        Spectral(coefficients)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_bad_steps_are_refused(steps: object) -> None:
    with pytest.raises(ValueError, match="steps must be a positive integer"):
        NewtonSchulz(steps=steps)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps must be a positive integer"):
        PolarExpress(steps=steps)  # type: ignore[arg-type]


def test_bad_settings_are_refused_with_their_value() -> None:
    with pytest.raises(ValueError, match=r"lower must be between 0 and 1, got 1\.5"):
        PolarExpress(lower=1.5)
    with pytest.raises(ValueError, match=r"safety must be in \[1, 2\), got 0\.5"):
        PolarExpress(safety=0.5)
    for scale in (0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="scale must be positive and finite"):
            Sign(scale=scale)
    with pytest.raises(ValueError, match="scale must be positive and finite, got -1"):
        Sign(scale=lambda out, in_: -1.0).direction(torch.ones(2, 2))
    for blocks in (0, -2, "rows", 1.5):
        with pytest.raises(ValueError, match="blocks must be a positive integer or 'batch'"):
            Spectral(blocks=blocks)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"blocks=4 for shape \(6, 2\)"):
        Spectral(blocks=4).direction(torch.ones(6, 2))
    with pytest.raises(ValueError, match="precision must be None or one of"):
        Spectral(precision=torch.int32)
    for betas in ((1.0, 0.9), (-0.1, 0.9), (0.9,)):
        with pytest.raises(ValueError, match="betas must be two numbers"):
            AdamW(betas=betas)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="eps must be at least 0"):
        AdamW(eps=-1.0)


def test_adamw_is_not_a_norm() -> None:
    assert not isinstance(AdamW(), Norm)


def test_a_norm_of_ones_own_needs_two_methods() -> None:
    class Half(Norm):
        def norm(self, x: Tensor) -> Tensor:
            return 2 * x.norm()

        def direction(self, g: Tensor) -> Tensor:
            return 0.5 * g / g.norm()

    g = torch.tensor([3.0, 4.0])
    assert float(Half().dual(g)) == pytest.approx(2.5)
    assert float(Half().norm(Half().sharp(g))) == pytest.approx(2.5)
    assert torch.equal(Half().directions([g])[0], Half().direction(g))
