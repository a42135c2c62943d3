"""Settings of norms and orthogonalisers: copies, names, scales, and norms of one's own."""

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
    Sign,
    Spectral,
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
    Spectral(scale="rms"),
    Spectral(scale="muon"),
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


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Spectral().scale = 2.0  # type: ignore[misc]


def test_every_scale_has_its_stated_value() -> None:
    g = torch.ones(8, 2)
    expected = {
        "muon": 2.0,
        "rms": 2.0,
        "rms-in": 1 / math.sqrt(2),
        "rms-out": math.sqrt(8),
        "mean-in": 0.5,
        "adamw": 0.2 * math.sqrt(8),
    }
    for name, factor in expected.items():
        assert float(Sign(scale=name).unit_direction(g)[0, 0]) == pytest.approx(factor)
    assert float(Sign(scale="muon").unit_direction(g.mT)[0, 0]) == 1.0
    assert float(Sign(scale="rms").unit_direction(g.mT)[0, 0]) == 0.5


def test_a_norm_of_ones_own_needs_two_methods() -> None:
    class Half(Norm):
        def norm(self, x: Tensor) -> Tensor:
            return 2 * x.norm()

        def unit_direction(self, g: Tensor) -> Tensor:
            return 0.5 * g / g.norm()

    g = torch.tensor([3.0, 4.0])
    assert float(Half().dual(g)) == pytest.approx(2.5)
    assert float(Half().norm(Half().sharp(g))) == pytest.approx(2.5)
    assert torch.equal(Half().unit_directions([g])[0], Half().unit_direction(g))


@pytest.mark.parametrize("scale", [0, -1.0, math.inf, math.nan])
def test_a_scale_is_positive_and_finite(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        Sign(scale=scale)


def test_the_value_of_a_scale_function_is_checked_when_it_is_used() -> None:
    with pytest.raises(ValueError, match="scale must be positive and finite, got -1"):
        Sign(scale=lambda out, in_: -1.0).unit_direction(torch.ones(2, 2))


@pytest.mark.parametrize("norm", [Euclidean(), Sign(scale="mean-in"), RowWise(), ColumnWise()])
def test_the_exact_dual_is_the_dual_where_that_has_a_closed_form(norm: Norm) -> None:
    g = torch.randn(4, 6)
    assert torch.equal(norm.exact_dual(g), norm.dual(g))


def test_str_shows_what_differs_from_the_defaults() -> None:
    assert str(Spectral()) == "Spectral"
    assert str(Spectral("svd", scale="rms")) == "Spectral(scale=rms, orthogonalize=SVD)"
    assert str(AdamW(eps=1e-6)) == "AdamW(eps=1e-06)"
