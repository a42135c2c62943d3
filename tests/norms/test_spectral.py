"""The spectral norm: its directions one by one and in batches, its exact dual."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dropmuon.norms import ColumnWise, Euclidean, Norm, Sign, Spectral, orthogonalize, spectral
from dropmuon.norms.spectral import _stacking_pays
from tests.norms.singular_values import nuclear

SHAPES = [
    (6, 9),
    (9, 6),
    (6, 9),
    (4,),
    (1, 9),
    (6, 3, 3),
    (2, 6, 9),
    (),
    (0, 3),
    (6, 9),
    (1, 9),
    (2, 6, 9),
    (4,),
]
NORMS = [
    Spectral(),
    Spectral("svd", scale="muon"),
    Spectral("polar-express", blocks="batch"),
    Spectral("cubic", scale="rms"),
    Euclidean(scale="rms"),
    Sign(),
    ColumnWise(),
]


def mixed(device: str) -> list[Tensor]:
    wide = torch.float32 if device == "mps" else torch.float64
    dtypes = [torch.float32, torch.bfloat16, wide]
    return [torch.randn(shape).to(device, d) for d in dtypes for shape in SHAPES]


@pytest.mark.parametrize("norm", NORMS, ids=repr)
def test_unit_directions_of_many_are_those_of_each(norm: Norm, device: str) -> None:
    gs = mixed(device)
    before = [g.clone() for g in gs]
    together = norm.unit_directions(gs)
    assert all(torch.equal(g, b) for g, b in zip(gs, before, strict=True))
    for g, direction in zip(gs, together, strict=True):
        assert (direction.shape, direction.dtype) == (g.shape, g.dtype)
        tolerance = 1e-2 if g.dtype == torch.bfloat16 else 2e-5
        torch.testing.assert_close(
            direction, norm.unit_direction(g), rtol=tolerance, atol=tolerance
        )


def test_unit_directions_of_nothing_are_nothing() -> None:
    assert Spectral().unit_directions([]) == []


def test_equal_small_matrices_are_orthogonalised_in_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, ...]] = []

    def counted(x: Tensor, *rest: Any) -> Tensor:
        calls.append(tuple(x.shape))
        return orthogonalize(x, *rest)

    monkeypatch.setattr(spectral, "orthogonalize", counted)
    Spectral().unit_directions([torch.randn(s) for s in ((4, 6), (5, 5), (4, 6), (2, 3, 4, 6))])
    assert sorted(calls) == [(2, 4, 6), (2, 72), (5, 5)]
    calls.clear()
    Spectral(blocks="batch").unit_directions([torch.randn(4, 6), torch.randn(3, 4, 6)])
    assert calls == [(4, 4, 6)]
    calls.clear()
    Spectral().unit_directions([torch.randn(4, 6), torch.randn(4, 6, dtype=torch.float64)])
    assert calls == [(4, 6), (4, 6)]


def test_big_matrices_are_not_copied_into_a_stack_on_a_cpu() -> None:
    assert _stacking_pays(torch.empty(1, 64, 576))
    assert _stacking_pays(torch.empty(1, 576, 64))
    assert not _stacking_pays(torch.empty(1, 256, 1024))
    assert _stacking_pays(torch.empty(1, 256, 1024, device="meta"))


def test_a_stack_of_big_blocks_equals_its_blocks_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g = torch.randn(3, 8, 12)
    together = Spectral(blocks="batch").unit_direction(g)
    monkeypatch.setattr("dropmuon.norms.spectral._STACK_BELOW", 0)
    torch.testing.assert_close(Spectral(blocks="batch").unit_direction(g), together)


def test_matrices_stay_apart_for_a_function_of_ones_own() -> None:
    shapes: list[tuple[int, ...]] = []

    def own(matrix: Tensor) -> Tensor:
        shapes.append(tuple(matrix.shape))
        return matrix

    Spectral(own).unit_directions([torch.randn(3, 4), torch.randn(3, 4)])
    Spectral(own, blocks=2).unit_direction(torch.randn(4, 4))
    assert shapes == [(3, 4), (3, 4), (2, 2, 4)]


def test_default_orthogonaliser_keeps_the_facts_within_its_stated_band() -> None:
    g = torch.randn(24, 40, dtype=torch.float64)
    norm, exact = Spectral(), Spectral("svd")
    assert 0.7 < float(exact.norm(norm.lmo(g, 1.0))) < 1.25
    assert float(norm.dual(g)) == pytest.approx(float(exact.dual(g)), rel=0.25)
    torch.testing.assert_close(norm.unit_direction(g), orthogonalize(g))


def test_norm_and_dual_equal_their_closed_forms() -> None:
    g = torch.randn(5, 8, dtype=torch.float64)
    assert float(Spectral().norm(g)) == pytest.approx(float(torch.linalg.svdvals(g)[0]))
    assert float(Spectral("svd").dual(g)) == pytest.approx(nuclear(g))
    assert float(Spectral("cubic").dual(g)) == pytest.approx(nuclear(g), rel=1e-6)
    scaled = nuclear(g) * math.sqrt(5 / 8)
    assert float(Spectral("svd", scale="rms").dual(g)) == pytest.approx(scaled)
    v = torch.randn(9, dtype=torch.float64)
    assert float(Spectral().norm(v)) == pytest.approx(3 * float(v.square().mean().sqrt()))


def test_the_exact_dual_sums_the_singular_values_whatever_the_orthogonaliser() -> None:
    g = torch.randn(6, 2, 3, 3, dtype=torch.float64)
    matrix = g.reshape(6, 18)
    expected = nuclear(matrix) * math.sqrt(6 / 18)
    for method in ("newton-schulz", "polar-express", "svd"):
        norm = Spectral(method, scale="rms")
        assert float(norm.exact_dual(g)) == pytest.approx(expected)
    blocks = nuclear(matrix[:3]) + nuclear(matrix[3:])
    assert float(Spectral(blocks=2).exact_dual(g)) == pytest.approx(blocks)
    assert abs(float(Spectral().dual(g)) - nuclear(matrix)) > 1e-3 * nuclear(matrix)


def test_the_exact_dual_is_taken_in_at_least_float32() -> None:
    g = torch.randn(4, 6).bfloat16()
    assert Spectral().exact_dual(g).dtype == torch.float32
    assert float(Spectral().exact_dual(g)) == pytest.approx(nuclear(g.float()), rel=1e-5)
    assert float(Spectral().exact_dual(torch.zeros(0, 3))) == 0.0


def test_a_precision_that_is_no_float_is_refused() -> None:
    with pytest.raises(ValueError, match="precision must be None or one of"):
        Spectral(precision=torch.int32)
